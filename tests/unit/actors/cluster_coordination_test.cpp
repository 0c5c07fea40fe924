// A coordination that is one of three: what it fetches, what its owners do without it, what peers say.
#include <map>
#include <set>

#include <doctest/doctest.h>

#include "actors/coordination.h"
#include "tests/unit/actors/coordination_rig.h"

namespace gradtap::actors {
namespace {

using test::CoordinationRig;
using Steps = std::vector<StepNumber>;

// tap0 owns shards 0 and 2; shard 1 is on tap1 and tap2.
ClusterShape three_nodes(MemberIndex self = 0) {
  return {self, {"tap0", "tap1", "tap2"}, {{0, 1}, {1, 2}, {2, 0}}};
}

struct ClusterRig : CoordinationRig {
  explicit ClusterRig(CoordinationConfig config = {}, ClusterShape shape = three_nodes())
      : CoordinationRig(config, nullptr, 0, std::move(shape)) {
    applies = false;
    give_layout();
  }
  void live(MemberIndex member, bool yes = true) {
    call([&] { core.on_live(member, yes); });
  }
  void report(const PeerReport& report) {
    call([&] { core.on_peer(report); });
  }
  void peer_bound(MemberIndex member, StepNumber bound) {
    PeerReport said;
    said.member = member;
    said.training = said.bound = bound;
    report(said);
  }
  // By the owners here.
  void apply_here(StepNumber step) {
    for (const ShardId shard : {0U, 2U}) apply(shard, step);
  }
  void bind_whole(StepNumber step) {
    give_ops_of(step);
    give_message(step);
    apply_here(step);
    REQUIRE(core.bound() == step);
  }
  [[nodiscard]] Steps fetched() const {
    Steps steps;
    for (const GoPtr& go : fetches) steps.push_back(go->scalars.step);
    return steps;
  }
};

}  // namespace

TEST_CASE("a node far behind its peers fetches what its tap has not shown, at once") {
  ClusterRig rig;
  rig.live(1);
  for (StepNumber step = 1; step <= 6; ++step) rig.give_message(step);
  rig.peer_bound(1, 3);
  CHECK(rig.fetches.empty());  // two steps: its own frames may be just behind
  rig.peer_bound(1, 4);
  CHECK(rig.fetched() == Steps{1});
  CHECK(rig.fetches[0]->scalars.groups.size() == 1);
  rig.peer_bound(1, 4);
  CHECK(rig.fetched() == Steps{1});  // asked already
  rig.pass_ms(999);
  CHECK(rig.fetched() == Steps{1});
  rig.pass_ms(2);
  CHECK(rig.fetched() == Steps{1, 1});  // the answer was lost
  rig.apply(0, 1);
  CHECK(rig.core.bound() == 0);  // shard 2 has not got it
  rig.apply(2, 1);
  CHECK(rig.core.bound() == 1);
  rig.peer_bound(1, 5);
  CHECK(rig.fetched() == Steps{1, 1, 2});
  CHECK(rig.gos.empty());
  CHECK(rig.binding("fetched_steps") == 1);
}

TEST_CASE("who is not live, or is alone, is not asked") {
  ClusterRig rig;
  rig.give_message(1);
  rig.peer_bound(1, 9);
  CHECK(rig.fetches.empty());
  rig.live(1);
  rig.peer_bound(1, 9);
  CHECK(rig.fetches.size() == 1);
  rig.live(1, false);
  rig.pass_ms(1500);
  rig.pass_ms(1500);
  CHECK(rig.fetches.size() == 1);
  CoordinationRig alone;
  alone.give_message(1);
  PeerReport said;
  said.member = 1;
  said.bound = 100;
  alone.call([&] { alone.core.on_peer(said); });
  alone.pass_ms(300);
  CHECK(alone.fetches.empty());
  CHECK(alone.core.training() == 1);
}

TEST_CASE("a step that is definitely lost here is fetched when any live peer has bound it") {
  ClusterRig rig;
  rig.live(2);
  rig.bind_whole(1);
  rig.give_op_of(2, 0);
  rig.give_op_of(2, 1, {{8, 20}});
  rig.give_message(2);
  rig.peer_bound(2, 1);
  rig.make_definitive();
  CHECK(rig.gap(GapReason::kLostDefinitive));
  CHECK(rig.fetches.empty());  // nobody has it
  rig.peer_bound(2, 2);
  CHECK(rig.fetched() == Steps{2});
  rig.apply_here(2);
  CHECK(rig.core.bound() == 2);
  CHECK_FALSE(rig.gap(GapReason::kLostDefinitive));
  // The next one is whole again and needs nobody.
  rig.give_ops_of(3);
  rig.give_message(3);
  CHECK(rig.steps_gone() == Steps{1, 3});
  CHECK(rig.fetched() == Steps{2});
  // Ops of the step that came from elsewhere are let go like those of any other.
  REQUIRE(!rig.forgotten.empty());
  CHECK(rig.forgotten.back().tag == rig.tag_of(3, 1) + 1);
  CHECK(std::any_of(rig.forgotten.begin(), rig.forgotten.end(),
                    [&](const ForgetBelow& forget) { return forget.tag == rig.tag_of(2, 1) + 1; }));
}

TEST_CASE("before absence is definitive a peer that is level is not asked") {
  ClusterRig rig;
  rig.live(1);
  rig.bind_whole(1);
  rig.give_op_of(2, 0);
  rig.give_message(2);
  rig.peer_bound(1, 2);
  rig.pass_ms(100);
  CHECK(rig.fetches.empty());
  rig.give_op_of(2, 1);
  CHECK(rig.steps_gone() == Steps{1, 2});
}

TEST_CASE("a step that the owners here have already is not bound, and the next one is") {
  ClusterRig rig;
  rig.give_message(1);
  rig.give_message(2);
  rig.give_op_of(1, 0);
  CHECK(rig.binds.empty());
  rig.apply_here(1);
  CHECK(rig.core.bound() == 1);
  rig.give_op_of(1, 1);  // its bytes come at last
  CHECK(rig.gos.empty());
  CHECK(rig.binds.empty());
  rig.give_ops_of(2);
  CHECK(rig.steps_gone() == Steps{2});
  rig.give_message(1);
  CHECK(rig.steps_gone() == Steps{2});
  CHECK(rig.binding("messages_pending") == 0);
}

TEST_CASE("words and binds of a step that the owners got meanwhile do it no second time") {
  ClusterRig rig;
  rig.bind_whole(1);
  rig.answers_words = false;
  rig.answers_binds = false;
  rig.words.clear();
  rig.binds.clear();
  rig.gos.clear();
  rig.give_ops_of(2);
  rig.give_message(2);
  REQUIRE(rig.words.size() == 2);
  rig.apply_here(2);  // a fetch was quicker than the assemblers' answers
  SUBCASE("the answers come") {
    rig.answer_words(rig.words[0]);
    rig.answer_words(rig.words[1]);
    for (const OrderBind& order : std::vector(rig.binds)) rig.call([&] { rig.core.on_bind(order.ticket, {}); });
  }
  SUBCASE("they never come") {
    for (const AskWords& ask : std::vector(rig.words)) rig.call([&] { rig.core.on_words(ask.ticket, std::nullopt); });
    CHECK(rig.words.size() == 2);
    CHECK(rig.binds.empty());
    CHECK(rig.gos.empty());
  }
  SUBCASE("the orders are not obeyed") {
    rig.answer_words(rig.words[0]);
    rig.answer_words(rig.words[1]);
    const Outcome silent{false, {ErrorCode::kTimeout, "silent", {}, {}, {}, {}}};
    for (const OrderBind& order : std::vector(rig.binds)) rig.call([&] { rig.core.on_bind(order.ticket, silent); });
    CHECK(rig.gos.empty());
  }
  CHECK(rig.core.bound() == 2);
  // A go for what they have is nothing to them; there is never more than one.
  CHECK(rig.gos.size() <= 1);
  const std::size_t words = rig.words.size();
  const std::size_t binds = rig.binds.size();
  rig.give_ops_of(3);
  rig.give_message(3);
  REQUIRE(rig.words.size() == words + 2);
  // Late answers to the questions of step 2 say nothing about step 3.
  for (std::size_t i = 0; i < words; ++i) rig.answer_words(rig.words[i]);
  for (std::size_t i = 0; i < binds; ++i) rig.call([&] { rig.core.on_bind(rig.binds[i].ticket, {}); });
  CHECK(rig.binds.size() == binds);
  CHECK(rig.core.bound() == 2);
  rig.answer_words(rig.words[words]);
  rig.answer_words(rig.words[words + 1]);
  REQUIRE(rig.binds.size() == binds + 2);
  for (std::size_t i = binds; i < binds + 2; ++i) rig.call([&] { rig.core.on_bind(rig.binds[i].ticket, {}); });
  CHECK(rig.core.bound() == 3);
  CHECK(rig.gos.back()->scalars.step == 3);
}

TEST_CASE("owners that took a whole version over go on from there") {
  ClusterRig rig;
  for (const StepNumber step : {1U, 10U, 11U}) rig.give_message(step);
  rig.call([&] { rig.core.on_jumped(0, 10); });
  CHECK(rig.core.bound() == 0);
  rig.call([&] { rig.core.on_jumped(1, 10); });  // not owned here
  CHECK(rig.core.bound() == 0);
  rig.call([&] { rig.core.on_jumped(2, 10); });
  CHECK(rig.core.bound() == 10);
  rig.call([&] { rig.core.on_jumped(2, 4); });  // back is no way to jump
  CHECK(rig.core.bound() == 10);
  CHECK(rig.number("applied_here") == 10);
  rig.give_ops_of(11);
  CHECK(rig.steps_gone() == Steps{11});
}

TEST_CASE("a node that owns nothing binds all the same, for what its tap keeps, and fetches nothing") {
  ClusterRig rig({}, {2, {"tap0", "tap1", "tap2"}, {{0, 1}, {1, 0}, {0, 1}}});
  rig.live(0);
  for (StepNumber step = 1; step <= 5; ++step) {
    rig.give_ops_of(step);
    rig.give_message(step);
  }
  CHECK(rig.core.bound() == 5);
  CHECK(rig.number("shards_here") == 0);
  rig.give_message(6);
  rig.peer_bound(0, 60);
  rig.pass_ms(300);
  CHECK(rig.fetches.empty());
}

TEST_CASE("verified and durable are those of all owners, published is whatever the home says (I18)") {
  ClusterRig rig;
  rig.live(1);
  rig.live(2);
  rig.bind_whole(1);
  CHECK(rig.core.verified() == 0);  // nobody has told of shard 1
  PeerReport tap1;
  tap1.member = 1;
  tap1.training = 1;
  tap1.bound = 1;
  tap1.shards = {{0, 1, 1}, {1, 1, 0}};
  tap1.digests = {{1, 1, rig.digest(1, 1)}};
  rig.report(tap1);
  CHECK(rig.core.verified() == 1);
  CHECK(rig.core.durable() == 0);
  CHECK(rig.core.roots(1, 1)["digests"][0]["root"] ==
        to_hex(test::sha_of_all({rig.digest(0, 1), rig.digest(1, 1), rig.digest(2, 1)})));
  for (const ShardId shard : {0U, 2U}) rig.make_durable(shard, 1);
  rig.make_durable(1, 7);  // this node does not own it
  CHECK(rig.core.durable() == 0);
  tap1.shards = {{0, 1, 1}, {1, 1, 1}};
  rig.report(tap1);
  PeerReport tap2;
  tap2.member = 2;
  tap2.shards = {{1, 1, 1}, {2, 1, 1}};
  rig.report(tap2);
  CHECK(rig.core.durable() == 1);
  CHECK(rig.core.base_durable());
  CHECK(rig.core.published() == 0);
  tap2.published = 1;
  rig.report(tap2);
  CHECK(rig.core.published() == 1);
  // Another digest of the same shard and step: an alarm.
  tap2.digests = {{2, 1, rig.digest(2, 99)}};
  rig.report(tap2);
  CHECK(rig.gap(GapReason::kDiverged));
}

TEST_CASE("what peers say of themselves is shown with their name, what is known here is not shown twice") {
  ClusterRig rig;
  rig.live(1);
  rig.live(2);
  rig.give_message(1);
  PeerReport tap1;
  tap1.member = 1;
  tap1.gaps = {{GapReason::kStorageFull, 4, "no space", "freed by hand"}, {GapReason::kInFlight, 1, "there too", {}}};
  rig.report(tap1);
  const auto full = rig.gap(GapReason::kStorageFull);
  REQUIRE(full);
  CHECK(full->evidence == "tap1: no space");
  CHECK(full->since_step == 4);
  const auto gaps = rig.core.gaps();
  CHECK(std::count_if(gaps.begin(), gaps.end(), [](const Gap& gap) { return gap.reason == GapReason::kInFlight; }) ==
        1);
  CHECK(rig.gap(GapReason::kInFlight)->evidence.find("tap1") == std::string::npos);
  for (const Gap& gap : rig.core.local_gaps()) CHECK(gap.reason != GapReason::kStorageFull);
  rig.live(1, false);
  CHECK_FALSE(rig.gap(GapReason::kStorageFull));
  // Of members that there are not, and of this node itself, nobody listens.
  for (const MemberIndex member : {MemberIndex{0}, MemberIndex{3}, ~MemberIndex{0}}) {
    PeerReport false_one = tap1;
    false_one.member = member;
    false_one.training = false_one.published = 1000;
    rig.report(false_one);
  }
  CHECK(rig.core.training() == 1);
  CHECK(rig.core.published() == 0);
  CHECK_FALSE(rig.gap(GapReason::kStorageFull));
}

TEST_CASE(
    "whatever the tap loses and peers have, every step is applied once, in order, and nothing is bound but the truth") {
  constexpr StepNumber kSteps = 12;
  std::uint64_t from_peers = 0;
  std::uint64_t from_tap = 0;
  for (std::uint64_t seed = 1; seed <= 120; ++seed) {
    CAPTURE(seed);
    SeededRandom random(seed);
    ClusterRig rig;
    rig.answers_words = rig.answers_binds = rig.answers_drains = false;
    rig.live(1);
    std::set<StepNumber> lost;  // a bucket of it will never be whole here
    for (StepNumber step = 2; step <= kSteps; ++step)
      if (random.below(3) == 0) lost.insert(step);
    std::size_t words = 0, binds = 0, drains = 0, gos = 0, fetches = 0, checked = 0;
    std::map<std::pair<StepNumber, std::uint32_t>, bool> obeyed;
    std::map<ShardId, StepNumber> version{{0, 0}, {2, 0}};
    std::map<ShardId, std::set<StepNumber>> gone, got;  // what each owner could apply: from here, from a peer
    StepNumber peer = 0;
    const auto check = [&] {
      for (; checked < rig.binds.size(); ++checked) {
        const BindOrder& order = rig.binds[checked].order;
        REQUIRE(order.op.tag == rig.tag_of(order.step, order.bucket));
        REQUIRE(rig.ops[order.op.tag].missing.empty());
        obeyed[{order.step, order.bucket}] = false;
      }
      for (; gos < rig.gos.size(); ++gos) {
        const StepNumber step = rig.gos[gos]->scalars.step;
        REQUIRE((gos == 0 || step > rig.gos[gos - 1]->scalars.step));
        REQUIRE(!lost.contains(step));
        REQUIRE((obeyed[{step, 0}] && obeyed[{step, 1}]));
        for (const ShardId shard : {0U, 2U}) gone[shard].insert(step);
      }
      for (; fetches < rig.fetches.size(); ++fetches) {
        const StepNumber step = rig.fetches[fetches]->scalars.step;
        REQUIRE(step <= peer);
        for (const ShardId shard : {0U, 2U})
          if (random.below(4) != 0) got[shard].insert(step);  // or the answer is lost
      }
    };
    // An owner applies the next step when it has it from anywhere.
    const auto advance = [&](ShardId shard) {
      const StepNumber next = version[shard] + 1;
      if (gone[shard].contains(next))
        ++from_tap;
      else if (got[shard].contains(next))
        ++from_peers;
      else
        return;
      version[shard] = next;
      rig.apply(shard, next);
    };
    const auto event = [&](bool generous) {
      check();
      const StepNumber step =
          generous ? 1 + random.below(kSteps) : std::min<StepNumber>(kSteps, rig.core.bound() + 1 + random.below(3));
      switch (random.below(9)) {
        case 0:
          rig.give_message(step);
          break;
        case 1:
          rig.give_op_of(step, 0);
          break;
        case 2:
          rig.give_op_of(step, 1, lost.contains(step) ? std::vector<Interval>{{4, 12}} : std::vector<Interval>{});
          break;
        case 3:
          if (words < rig.words.size()) rig.answer_words(rig.words[words++]);
          break;
        case 4:
          if (binds < rig.binds.size()) {
            const OrderBind order = rig.binds[binds++];
            const bool ok = random.below(6) != 0;
            obeyed[{order.order.step, order.order.bucket}] = ok;
            Outcome outcome;
            if (!ok) outcome = {false, {ErrorCode::kTimeout, "silent", {}, {}, {}, {}}};
            rig.call([&] { rig.core.on_bind(order.ticket, outcome); });
          }
          break;
        case 5:
          if (drains < rig.drains.size()) rig.call([&] { rig.core.on_drained(rig.drains[drains++]); });
          break;
        case 6:
          rig.pass_ms(generous ? 300 : random.below(150));
          break;
        case 7:
          peer = generous ? kSteps : std::min<StepNumber>(kSteps, peer + random.below(2));
          rig.peer_bound(1, peer);
          break;
        default:
          advance(random.below(2) == 0 ? 0 : 2);
      }
      check();
    };
    for (int i = 0; i < 400; ++i) event(false);
    for (int i = 0; i < 20'000 && (rig.number("applied_here") < kSteps || rig.core.bound() < kSteps); ++i) event(true);
    CHECK(rig.core.bound() == kSteps);
    CHECK(rig.number("applied_here") == kSteps);
    CHECK(version == std::map<ShardId, StepNumber>{{0, kSteps}, {2, kSteps}});
  }
  CHECK(from_peers > 300);
  CHECK(from_tap > 300);
}

}  // namespace gradtap::actors
