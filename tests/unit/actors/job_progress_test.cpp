#include "actors/job_progress.h"

#include <algorithm>
#include <set>

#include <doctest/doctest.h>
#include <fmt/format.h>

#include "common/bytes.h"
#include "common/random.h"
#include "common/sha256.h"

namespace gradtap::actors {
namespace {

Sha256 digest_of(ShardId shard, StepNumber step, int variant = 0) {
  return sha256(fmt::format("shard {} step {} variant {}", shard, step, variant));
}

// Three members, two copies: shard 0 on tap0 and tap1, shard 1 on tap1 and tap2.
struct Pair {
  JobProgress progress;
  explicit Pair(bool degraded, std::size_t steps_kept = 4096)
      : progress({{0, 1}, {1, 2}}, {"tap0", "tap1", "tap2"}, {2, degraded, 8, steps_kept}) {
    for (MemberIndex member = 0; member < 3; ++member) progress.on_live(member, true);
  }
  void durable_everywhere(StepNumber step) {
    for (const auto& [member, shard] : {std::pair<MemberIndex, ShardId>{0, 0}, {1, 0}, {1, 1}, {2, 1}})
      progress.on_durable(member, shard, step);
  }
  [[nodiscard]] std::optional<Gap> gap(GapReason reason) const {
    for (const Gap& gap : progress.gaps())
      if (gap.reason == reason) return gap;
    return std::nullopt;
  }
};

// The rule of PROTOCOLS 5.5, from its words: no sorting, every step is tried.
struct Model {
  struct Owner {
    bool known = false;
    StepNumber version = 0;
    std::optional<StepNumber> durable;
  };
  std::vector<std::vector<MemberIndex>> owners;
  std::size_t copies = 2;
  bool degraded = true;
  StepNumber lag = 8;
  std::size_t kept = 6;
  std::vector<bool> live;
  std::vector<std::vector<Owner>> table;
  std::set<StepNumber> steps;                                // of which any digest was ever reported
  std::map<std::pair<StepNumber, ShardId>, Sha256> digests;  // the first that was reported
  bool diverged = false;

  static constexpr StepNumber kTop = 80;

  [[nodiscard]] std::size_t place(MemberIndex member, ShardId shard) const {
    for (std::size_t i = 0; i < owners[shard].size(); ++i)
      if (owners[shard][i] == member) return i;
    return ~std::size_t{0};
  }
  [[nodiscard]] bool step_kept(StepNumber step) const {
    const auto newer = std::count_if(steps.begin(), steps.end(), [&](StepNumber other) { return other > step; });
    return steps.contains(step) && static_cast<std::size_t>(newer) < kept;
  }
  [[nodiscard]] bool synced(ShardId shard, std::size_t i) const {
    const Owner& owner = table[shard][i];
    if (!live[owners[shard][i]] || !owner.durable) return false;
    return std::none_of(table[shard].begin(), table[shard].end(),
                        [&](const Owner& other) { return other.durable && *other.durable > *owner.durable + lag; });
  }
  [[nodiscard]] std::optional<StepNumber> durable_of(ShardId shard) const {
    std::size_t in_sync = 0;
    for (std::size_t i = 0; i < owners[shard].size(); ++i) in_sync += synced(shard, i) ? 1 : 0;
    std::size_t need = std::min(copies, owners[shard].size());
    if (degraded) need = std::clamp<std::size_t>(in_sync, 1, need);
    // Those in sync count; when they are too few, whatever is on a disk does.
    const bool only_synced = in_sync >= need;
    for (StepNumber step = kTop + 1; step-- > 0;) {
      std::size_t have = 0;
      for (std::size_t i = 0; i < owners[shard].size(); ++i) {
        const Owner& owner = table[shard][i];
        if (owner.durable && *owner.durable >= step && (!only_synced || synced(shard, i))) ++have;
      }
      if (have >= need) return step;
    }
    return std::nullopt;
  }
  [[nodiscard]] StepNumber durable() const {
    StepNumber lowest = kTop;
    for (ShardId shard = 0; shard < owners.size(); ++shard) lowest = std::min(lowest, durable_of(shard).value_or(0));
    return lowest;
  }
  [[nodiscard]] std::optional<StepNumber> publishable() const {
    for (ShardId shard = 0; shard < owners.size(); ++shard)
      if (!durable_of(shard)) return std::nullopt;
    if (diverged) return std::nullopt;
    return durable();
  }
  [[nodiscard]] StepNumber verified() const {
    StepNumber lowest = kTop;
    for (ShardId shard = 0; shard < owners.size(); ++shard) {
      StepNumber best = durable_of(shard).value_or(0);
      for (std::size_t i = 0; i < owners[shard].size(); ++i)
        if (live[owners[shard][i]] && table[shard][i].known) best = std::max(best, table[shard][i].version);
      lowest = std::min(lowest, best);
    }
    return lowest;
  }
};

}  // namespace

TEST_CASE("two copies make a step durable, one makes it verified") {
  Pair job(true);
  CHECK(job.progress.durable() == 0);
  CHECK_FALSE(job.progress.publishable());
  CHECK_FALSE(job.progress.base_durable());
  job.durable_everywhere(0);
  CHECK(job.progress.base_durable());
  CHECK(job.progress.publishable() == 0);
  job.progress.on_version(0, 0, 3);
  CHECK(job.progress.verified() == 0);  // shard 1 is not there
  job.progress.on_version(2, 1, 2);
  CHECK(job.progress.verified() == 2);
  CHECK(job.progress.durable() == 0);
  job.progress.on_durable(0, 0, 3);
  job.progress.on_durable(2, 1, 3);
  CHECK(job.progress.durable() == 0);  // one copy each
  job.progress.on_durable(1, 0, 2);
  job.progress.on_durable(1, 1, 3);
  CHECK(job.progress.durable() == 2);
  CHECK(job.progress.publishable() == 2);
  CHECK(job.progress.verified() == 3);  // what is durable is verified
  CHECK(job.progress.lowest_durable(0) == 2);
  CHECK(job.progress.lowest_durable(1) == 3);
}

TEST_CASE("an owner that goes down stops the others from being durable only when nothing may be degraded") {
  for (const bool degraded : {true, false}) {
    CAPTURE(degraded);
    Pair job(degraded);
    job.durable_everywhere(5);
    job.progress.on_live(2, false);
    CHECK(job.gap(GapReason::kReplicaShort));
    CHECK(job.gap(GapReason::kReplicaShort)->evidence.find("1 (tap1, tap2)") != std::string::npos);
    CHECK_FALSE(job.gap(GapReason::kOwnerDown));
    for (const auto& [member, shard] : {std::pair<MemberIndex, ShardId>{0, 0}, {1, 0}, {1, 1}})
      job.progress.on_durable(member, shard, 9);
    CHECK(job.progress.durable() == (degraded ? 9 : 5));
    // The co-owner keeps its log from where the other one is.
    CHECK(job.progress.lowest_durable(1) == 5);
    CHECK(job.progress.producers(1, 9) == std::vector<MemberIndex>{1});
    job.progress.on_live(2, true);
    job.progress.on_durable(2, 1, 9);
    CHECK(job.progress.durable() == 9);
    CHECK_FALSE(job.gap(GapReason::kReplicaShort));
    CHECK(job.progress.producers(1, 9) == std::vector<MemberIndex>{1, 2});
  }
}

TEST_CASE("an owner far behind does not hold durable back, one that is near does") {
  Pair job(true);
  job.durable_everywhere(0);
  for (const MemberIndex member : {0U, 1U}) job.progress.on_durable(member, 0, 20);
  job.progress.on_durable(1, 1, 20);
  job.progress.on_durable(2, 1, 11);  // more than 8 behind
  CHECK(job.progress.durable() == 20);
  CHECK(job.gap(GapReason::kReplicaShort));
  job.progress.on_durable(2, 1, 12);  // 8 behind: in sync, and its copy is wanted
  CHECK(job.progress.durable() == 12);
  CHECK_FALSE(job.gap(GapReason::kReplicaShort));
}

TEST_CASE("a shard without a live owner is said, and stays where its disks are") {
  Pair job(true);
  job.durable_everywhere(4);
  job.progress.on_live(1, false);
  job.progress.on_live(2, false);
  const auto down = job.gap(GapReason::kOwnerDown);
  REQUIRE(down);
  CHECK(down->since_step == 5);
  CHECK(down->evidence.find("1 (tap1, tap2)") != std::string::npos);
  CHECK(down->evidence.find("0 (tap0") == std::string::npos);
  CHECK(job.progress.durable() == 4);
  CHECK(job.progress.verified() == 4);
  CHECK(job.progress.producers(1, 4).empty());
  CHECK(job.progress.base_durable());
}

TEST_CASE("digests of co-owners that differ are an alarm, and nothing is publishable after it") {
  Pair job(true);
  job.durable_everywhere(2);
  for (const ShardId shard : {0U, 1U}) job.progress.on_digest(1, shard, 2, digest_of(shard, 2));
  CHECK(job.progress.digests(2) == std::vector<Sha256>{digest_of(0, 2), digest_of(1, 2)});
  job.progress.on_digest(0, 0, 2, digest_of(0, 2));
  CHECK_FALSE(job.progress.diverged());
  CHECK(job.progress.publishable() == 2);
  job.progress.on_digest(0, 1, 2, digest_of(1, 2, 9));  // no owner of it: nobody listens
  CHECK_FALSE(job.progress.diverged());
  job.progress.on_digest(2, 1, 2, digest_of(1, 2, 1));
  CHECK(job.progress.diverged());
  CHECK_FALSE(job.progress.publishable());
  const auto gap = job.gap(GapReason::kDiverged);
  REQUIRE(gap);
  CHECK(gap->since_step == 2);
  CHECK(gap->evidence.find("shard 1 step 2: tap2") != std::string::npos);
  // It is no vote: later agreement does not clear it.
  job.progress.on_digest(2, 1, 2, digest_of(1, 2));
  CHECK(job.progress.diverged());
}

TEST_CASE("roots are those of steps of which every shard's digest is known, as far back as they are kept") {
  Pair job(true, 3);
  for (StepNumber step = 1; step <= 5; ++step) {
    job.progress.on_digest(0, 0, step, digest_of(0, step));
    if (step != 4) job.progress.on_digest(2, 1, step, digest_of(1, step));
  }
  const auto roots = job.progress.roots(0, 100);
  REQUIRE(roots.size() == 2);
  for (const StepNumber step : {3U, 5U}) {
    // The concatenation's SHA-256, computed here.
    const Sha256 first = digest_of(0, step);
    const Sha256 second = digest_of(1, step);
    std::vector<std::uint8_t> both(first.begin(), first.end());
    both.insert(both.end(), second.begin(), second.end());
    CHECK(roots.at(step) == sha256(ByteSpan(both)));
  }
  CHECK(job.progress.roots(5, 5).size() == 1);
  CHECK_FALSE(job.progress.digests(4));
  job.progress.on_digest(0, 0, 2, digest_of(0, 2));  // older than everything kept
  CHECK_FALSE(job.progress.digests(2));
  CHECK(job.progress.digests(3));  // and takes no newer one's place
  job.progress.on_digest(2, 1, 4, digest_of(1, 4));
  CHECK(job.progress.digests(4));
}

TEST_CASE("a peer that was away is told what a member's own shards were, oldest first and as much as fits") {
  Pair pair(true);
  for (StepNumber step = 1; step <= 5; ++step) {
    for (const MemberIndex member : {0, 1}) pair.progress.on_digest(member, 0, step, digest_of(0, step));
    pair.progress.on_digest(2, 1, step, digest_of(1, step));
  }
  pair.progress.on_version(0, 0, 4);
  const auto told = pair.progress.digests_of(0, 3, 100);  // 5 is the co-owner's word only
  REQUIRE(told.size() == 2);
  for (std::size_t i = 0; i < told.size(); ++i) {
    CHECK(told[i].shard == 0);
    CHECK(told[i].step == 3 + i);
    CHECK(told[i].digest == digest_of(0, 3 + i));
  }
  CHECK(pair.progress.digests_of(0, 1, 3).size() == 3);
  CHECK(pair.progress.digests_of(0, 1, 3).back().step == 3);
  CHECK(pair.progress.digests_of(2, 1, 100).empty());  // it never said how far it is
  CHECK(pair.progress.digests_of(0, 6, 100).empty());
}

TEST_CASE("an owner that starts again is at its durable step, one with an empty store has nothing") {
  Pair job(false);
  job.durable_everywhere(6);
  job.progress.on_version(2, 1, 9);
  job.progress.on_version(2, 1, 6);
  CHECK(job.progress.holder(1, 2)->progress.version == 6);
  CHECK(job.progress.holder(1, 2)->progress.durable == 6);
  job.progress.on_version(2, 1, 0);  // a new disk
  CHECK(job.progress.holder(1, 2)->progress.durable == 0);
  CHECK(job.progress.durable() == 0);
  CHECK(job.progress.lowest_durable(1) == 0);
  // A step that is durable was applied.
  job.progress.on_durable(2, 1, 7);
  CHECK(job.progress.holder(1, 2)->progress.version == 7);
}

TEST_CASE("reports about what there is not change nothing") {
  Pair job(true);
  job.durable_everywhere(3);
  job.progress.on_durable(7, 0, 9);
  job.progress.on_durable(2, 0, 9);  // not its owner
  job.progress.on_durable(0, 5, 9);
  job.progress.on_version(0, 5, 9);
  job.progress.on_version(2, 0, 9);
  job.progress.on_digest(0, 5, 9, {});
  job.progress.on_live(9, true);
  CHECK(job.progress.verified() == 3);
  CHECK(job.progress.durable() == 3);
  CHECK(job.progress.producers(5, 1).empty());
  CHECK_FALSE(job.progress.digests(9));
  const JobProgress empty({}, {"tap0"}, {});
  CHECK(empty.verified() == 0);
  CHECK(empty.durable() == 0);
  CHECK_FALSE(empty.publishable());
}

TEST_CASE("random reports say the same as the rule's words") {
  std::uint64_t published = 0;
  std::uint64_t divergences = 0;
  for (std::uint64_t seed = 1; seed <= 200; ++seed) {
    CAPTURE(seed);
    SeededRandom random(seed);
    Model model;
    const std::size_t members = 1 + random.below(4);
    const std::size_t shards = 1 + random.below(3);
    const std::size_t replicas = 1 + random.below(std::min<std::size_t>(members, 3));
    std::vector<std::string> names;
    for (std::size_t i = 0; i < members; ++i) names.push_back(fmt::format("tap{}", i));
    for (ShardId shard = 0; shard < shards; ++shard) {
      model.owners.emplace_back();
      for (std::size_t i = 0; i < replicas; ++i) model.owners.back().push_back((shard + i) % members);
      model.table.emplace_back(replicas);
    }
    model.live.assign(members, false);
    model.copies = std::min<std::size_t>(replicas, 2);
    model.degraded = random.below(2) == 0;
    model.lag = random.below(6);
    JobProgress progress(model.owners, names, {model.copies, model.degraded, model.lag, model.kept});
    for (int event = 0; event < 150; ++event) {
      const MemberIndex member = random.below(members);
      const auto shard = static_cast<ShardId>(random.below(shards));
      const std::size_t place = model.place(member, shard);
      const bool owner = place < replicas;
      const StepNumber step = std::min<StepNumber>(Model::kTop, static_cast<StepNumber>(event) / 4 + random.below(8));
      switch (random.below(5)) {
        case 0: {
          const bool live = random.below(4) != 0;
          progress.on_live(member, live);
          model.live[member] = live;
          break;
        }
        case 1:
          progress.on_version(member, shard, step);
          if (owner) {
            auto& entry = model.table[shard][place];
            entry.known = true;
            entry.version = step;
            if (entry.durable) entry.durable = std::min(*entry.durable, step);
          }
          break;
        case 2: {
          const bool wrong = random.below(12) == 0;
          const Sha256 digest = digest_of(shard, step, wrong ? 1 : 0);
          progress.on_digest(member, shard, step, digest);
          if (owner) {
            model.steps.insert(step);
            if (model.step_kept(step)) {
              const auto first = model.digests.emplace(std::pair(step, shard), digest).first;
              model.diverged = model.diverged || first->second != digest;
            }
          }
          break;
        }
        default:
          progress.on_durable(member, shard, step);
          if (owner) {
            auto& entry = model.table[shard][place];
            entry.durable = std::max(entry.durable.value_or(0), step);
            entry.version = entry.known ? std::max(entry.version, step) : step;
            entry.known = true;
          }
      }
      REQUIRE(progress.durable() == model.durable());
      REQUIRE(progress.verified() == model.verified());
      REQUIRE(progress.durable() <= progress.verified());
      REQUIRE(progress.publishable() == model.publishable());
      REQUIRE(progress.diverged() == model.diverged);
      const StepNumber asked = random.below(Model::kTop);
      std::vector<MemberIndex> producers;
      StepNumber lowest = Model::kTop;
      for (std::size_t i = 0; i < replicas; ++i) {
        const auto& entry = model.table[shard][i];
        if (model.live[model.owners[shard][i]] && entry.durable && *entry.durable >= asked)
          producers.push_back(model.owners[shard][i]);
        lowest = std::min(lowest, entry.durable.value_or(0));
      }
      REQUIRE(progress.producers(shard, asked) == producers);
      REQUIRE(progress.lowest_durable(shard) == lowest);
      bool whole = model.step_kept(step);
      for (ShardId each = 0; each < shards; ++each) whole = whole && model.digests.contains({step, each});
      REQUIRE(progress.digests(step).has_value() == whole);
      if (whole) REQUIRE(progress.roots(step, step).size() == 1);
    }
    published += progress.publishable().value_or(0);
    divergences += progress.diverged() ? 1 : 0;
  }
  CHECK(published > 100);  // the model was not compared with nothing
  CHECK(divergences > 20);
  CHECK(divergences < 180);
}

namespace {

// Shard 0 goes from tap0 to tap1, in epoch 2; tap2 stays its other owner.
struct HandOff {
  JobProgress progress{{{0, 2}}, {"tap0", "tap1", "tap2"}, {2, true, 8, 4096}, 1};
  HandOff() {
    for (MemberIndex member = 0; member < 3; ++member) progress.on_live(member, true);
    say(0, 1, 100);
    say(2, 1, 100);
    progress.set_owners({{1, 2}}, {"tap0", "tap1", "tap2"}, {}, 2);
  }
  void say(MemberIndex member, std::uint64_t epoch, StepNumber step, StepNumber from = 0) {
    progress.on_report(member, epoch);
    progress.on_holds(member, {0});
    progress.on_version(member, 0, step);
    progress.on_from(member, 0, from);
    progress.on_durable(member, 0, step);
    progress.on_digest(member, 0, step, digest_of(0, step));
  }
  // tap1 has copied it, and everybody said so in the new epoch.
  void copied() {
    say(2, 2, 100);
    say(1, 2, 100);
  }
  [[nodiscard]] std::string waits(StepNumber published = 100) const {
    return progress.kept_because(0, 0, published).value_or("");
  }
};

bool contains(const std::string& text, const std::string& part) {
  return text.find(part) != std::string::npos;
}

}  // namespace

TEST_CASE("a leaving owner waits for each of its successors, and says for which and why") {
  HandOff job;
  CHECK(contains(job.waits(), "tap1 has not said yet what it holds in epoch 2"));
  job.copied();
  CHECK(job.waits().empty());
  CHECK(job.progress.kept_because(0, 1, 100) == "the shard is assigned to it");
  SUBCASE("one is down") {
    job.progress.on_live(2, false);
    CHECK(job.waits() == "tap2 is down");
  }
  SUBCASE("one is far behind, or near but not as durable") {
    job.say(0, 2, 109);
    CHECK(job.waits(109) == "tap1 copies the shard");
    job.say(1, 2, 108);
    job.say(2, 2, 109);
    CHECK(job.waits(109) == "tap1 is less durable");
    job.say(1, 2, 109);
    CHECK(job.waits(109).empty());
  }
  SUBCASE("one has nothing in its store") {
    job.progress.on_report(1, 2);
    job.progress.on_holds(1, {});
    CHECK(job.waits() == "tap1 copies the shard");
  }
  SUBCASE("one cannot produce what comes after the newest recovery point") {
    job.say(1, 2, 100, 97);
    CHECK(contains(job.waits(96), "tap1 cannot produce the steps before 97"));
    CHECK(job.waits(97).empty());
  }
  SUBCASE("digests differ: nothing is given up, even when all agree later") {
    job.progress.on_digest(1, 0, 100, digest_of(0, 100, 7));
    CHECK(contains(job.waits(), "different digests"));
    job.say(1, 2, 101);
    CHECK(contains(job.waits(), "different digests"));
  }
  SUBCASE("nobody is assigned") {
    job.progress.set_owners({{}}, {"tap0", "tap1", "tap2"}, {}, 3);
    CHECK(job.waits() == "nobody else is assigned to it");
  }
}

TEST_CASE("a successor whose digest was never compared is not believed") {
  HandOff job;
  job.say(2, 2, 100);
  job.progress.on_report(1, 2);
  job.progress.on_holds(1, {0});
  job.progress.on_version(1, 0, 100);
  job.progress.on_durable(1, 0, 100);
  CHECK(contains(job.waits(), "no digest of tap1"));
  job.progress.on_digest(1, 0, 100, digest_of(0, 100));
  CHECK(job.waits().empty());
  // It starts again from an older step and goes the way a second time: what agreed before proves nothing of it.
  job.progress.on_version(1, 0, 99);
  job.progress.on_version(1, 0, 100);
  job.progress.on_durable(1, 0, 100);
  CHECK(contains(job.waits(), "no digest of tap1"));
}

TEST_CASE("a successor that was away is not relied on before it has said what it still holds") {
  HandOff job;
  job.copied();
  job.progress.on_live(1, false);
  job.progress.on_live(1, true);
  CHECK(contains(job.waits(), "tap1 has not said yet"));
  CHECK_FALSE(job.progress.heard(1));
  SUBCASE("it lost its disk") {
    job.progress.on_report(1, 2);
    job.progress.on_holds(1, {});
    CHECK(job.waits() == "tap1 copies the shard");
  }
  SUBCASE("it has everything") {
    job.say(1, 2, 100);
    CHECK(job.waits().empty());
  }
}

TEST_CASE("two members in different epochs never both let go, whatever order their reports come in") {
  // Epoch 2 gives the shard from tap0 to tap1, epoch 3 back again; tap0 is still in 2, tap1 in 3.
  const std::vector<std::string> names{"tap0", "tap1"};
  JobProgress at_tap0({{0}}, names, {1, true, 8, 4096}, 1);
  JobProgress at_tap1({{0}}, names, {1, true, 8, 4096}, 1);
  const auto say = [](JobProgress& to, MemberIndex member, std::uint64_t epoch) {
    to.on_live(member, true);
    to.on_report(member, epoch);
    to.on_holds(member, {0});
    to.on_version(member, 0, 50);
    to.on_durable(member, 0, 50);
    to.on_digest(member, 0, 50, digest_of(0, 50));
  };
  for (JobProgress* const view : {&at_tap0, &at_tap1}) {
    say(*view, 0, 1);
    view->set_owners({{1}}, names, {}, 2);
    say(*view, 1, 2);
  }
  at_tap1.set_owners({{0}}, names, {}, 3);
  say(at_tap1, 1, 3);
  const bool tap0_may = !at_tap0.kept_because(0, 0, 50);
  const bool tap1_may = !at_tap1.kept_because(0, 1, 50);
  CHECK(tap0_may);
  CHECK_FALSE(tap1_may);
  // tap0 comes to epoch 3 with what it has; only its word from there counts.
  say(at_tap1, 0, 2);
  CHECK(at_tap1.kept_because(0, 1, 50));
  at_tap1.on_report(0, 3);
  at_tap1.on_holds(0, {});
  CHECK(at_tap1.kept_because(0, 1, 50) == "tap0 copies the shard");
}

TEST_CASE(
    "another epoch: who stays keeps what is known, who leaves counts on, who is out or never had it is forgotten") {
  HandOff job;
  CHECK(job.progress.holders(0).size() == 3);
  CHECK(job.progress.role(0, *job.progress.holder(0, 0)) == HolderRole::kReleasing);
  CHECK(job.progress.role(0, *job.progress.holder(0, 1)) == HolderRole::kSyncing);
  CHECK(job.progress.role(0, *job.progress.holder(0, 2)) == HolderRole::kInSync);
  CHECK(job.progress.durable() == 100);  // the leaving one is the second copy
  CHECK(job.progress.producers(0, 100) == std::vector<MemberIndex>{2, 0});
  CHECK(job.progress.lowest_durable(0) == 0);  // logs are kept for the one that copies
  job.progress.set_owners({{2}}, {"tap0", "tap1", "tap2"}, {}, 3);
  CHECK(job.progress.holder(0, 1) == nullptr);
  REQUIRE(job.progress.holder(0, 0) != nullptr);
  job.progress.set_owners({{2}}, {"tap0", "tap1", "tap2", "tap3"}, {true, false, false, false}, 4);
  CHECK(job.progress.holder(0, 0) == nullptr);
  CHECK_FALSE(job.progress.kept_because(0, 0, 0));
  job.progress.on_live(3, true);
  CHECK(job.progress.live(3));
  // More or fewer shards than there are: of a hostile or broken map only what fits is taken.
  job.progress.set_owners({}, {"tap0", "tap1", "tap2", "tap3"}, {}, 5);
  CHECK(job.progress.holder(0, 2) != nullptr);
  job.progress.set_owners({{3}, {0}, {1}}, {"tap0", "tap1", "tap2", "tap3"}, {}, 6);
  CHECK(job.progress.shards() == 1);
  CHECK(job.progress.holder(0, 3)->assigned);
}

TEST_CASE("what a member says that it holds: nothing is kept of what it does not name") {
  HandOff job;
  job.progress.on_holds(0, {});  // it has released it
  CHECK(job.progress.holder(0, 0) == nullptr);
  job.progress.on_holds(0, {0, 7, ~ShardId{0}});  // before this node knew of it, and shards that there are not
  REQUIRE(job.progress.holder(0, 0) != nullptr);
  CHECK_FALSE(job.progress.holder(0, 0)->assigned);
  job.progress.on_holds(9, {0});  // no member
  CHECK(job.progress.holder(0, 9) == nullptr);
  job.progress.on_holds(2, {});  // its disk is new
  CHECK(job.progress.holder(0, 2)->assigned);
  CHECK_FALSE(job.progress.holder(0, 2)->progress.known);
  job.progress.on_released(0, 0);
  CHECK(job.progress.holder(0, 0) == nullptr);
  job.progress.on_released(2, 0);  // what is assigned is not let go by word
  CHECK(job.progress.holder(0, 2) != nullptr);
  job.progress.on_released(0, 44);
  job.progress.on_report(44, 9);
  CHECK_FALSE(job.progress.heard(44));
}

TEST_CASE("an owner that begins in the middle produces no step before it") {
  Pair job(true);
  job.durable_everywhere(9);
  job.progress.on_from(1, 0, 6);
  CHECK(job.progress.producers(0, 5) == std::vector<MemberIndex>{0});
  CHECK(job.progress.producers(0, 6) == std::vector<MemberIndex>{0, 1});
  job.progress.on_from(1, 5, 6);
  job.progress.on_from(7, 0, 6);
}

}  // namespace gradtap::actors
