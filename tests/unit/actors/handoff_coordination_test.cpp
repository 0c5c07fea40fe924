// A coordination whose node gets shards in an epoch, and gives others away.
#include <algorithm>

#include <doctest/doctest.h>

#include "tests/unit/actors/coordination_rig.h"

namespace gradtap::actors {
namespace {

using test::CoordinationRig;

using Owners = std::vector<std::vector<MemberIndex>>;

ClusterShape shape_of(std::uint64_t epoch, Owners owners, MemberIndex self = 0) {
  return {self, {"tap0", "tap1", "tap2"}, std::move(owners), epoch, {}};
}

// tap0 is this node. In epoch 1 it owns shards 0 and 2.
struct HandoffRig : CoordinationRig {
  explicit HandoffRig(CoordinationConfig config = {}, Owners owners = {{0, 1}, {1, 2}, {2, 0}})
      : CoordinationRig(config, nullptr, 0, shape_of(1, std::move(owners))) {
    applies = false;
    give_layout();
    for (const MemberIndex member : {1U, 2U}) live(member);
    for (const ShardId shard : {0U, 2U})
      if (core.progress().holder(shard, 0) != nullptr) make_durable(shard, 0);
  }
  void live(MemberIndex member, bool yes = true) {
    call([&] { core.on_live(member, yes); });
  }
  void epoch(std::uint64_t number, Owners owners) {
    call([&] { core.on_epoch(shape_of(number, std::move(owners))); });
  }
  // The member holds these shards, all durable at the step, with the right digests.
  void says(MemberIndex member, std::uint64_t epoch, StepNumber step, std::vector<ShardId> shards,
            StepNumber from = 0) {
    PeerReport report;
    report.member = member;
    report.epoch = epoch;
    report.training = report.bound = step;
    for (const ShardId shard : shards) {
      report.shards.push_back({shard, step, step, from});
      report.digests.push_back({shard, step, digest(shard, step)});
    }
    call([&] { core.on_peer(report); });
  }
  void own_step(StepNumber step, std::vector<ShardId> shards = {0, 2}) {
    give_message(step);
    for (const ShardId shard : shards) {
      apply(shard, step);
      make_durable(shard, step);
    }
    REQUIRE(core.bound() == step);
  }
  void jump(ShardId shard, StepNumber step) {
    call([&] { core.on_jumped(shard, step); });
    apply(shard, step);
  }
  [[nodiscard]] std::vector<StepNumber> fetched(ShardId shard) const {
    std::vector<StepNumber> steps;
    for (const FetchShard& fetch : fetched_shards)
      if (fetch.shard == shard) steps.push_back(fetch.go->scalars.step);
    return steps;
  }
};

}  // namespace

TEST_CASE("a shard that comes is copied from a version, then step by step, and then is one like the others") {
  HandoffRig rig;
  for (StepNumber step = 1; step <= 5; ++step) rig.own_step(step);
  rig.says(1, 1, 3, {0, 1});
  rig.epoch(2, {{0, 1}, {1, 0}, {2, 0}});
  REQUIRE(rig.versions_asked.size() == 1);
  CHECK(rig.versions_asked[0].shard == 1);
  CHECK(rig.versions_asked[0].at_least == 3);
  CHECK(rig.number("shards_here") == 3);
  CHECK(rig.number("shards_brought_up") == 1);
  rig.own_step(6);  // what it has goes on meanwhile
  rig.jump(1, 3);
  CHECK(rig.fetched(1) == std::vector<StepNumber>{4});
  rig.pass_ms(20);
  CHECK(rig.fetched(1) == std::vector<StepNumber>{4});
  rig.pass_ms(60);
  CHECK(rig.fetched(1) == std::vector<StepNumber>{4, 4});  // lost: asked again
  for (const StepNumber step : {4U, 5U}) rig.apply(1, step);
  CHECK(rig.fetched(1) == std::vector<StepNumber>{4, 4, 5, 6});
  rig.apply(1, 6);
  CHECK(rig.number("shards_brought_up") == 0);
  // From here on binding waits for it too.
  for (StepNumber step = 7; step <= 9; ++step) {
    rig.give_ops_of(step);
    rig.give_message(step);
    for (const ShardId shard : {0U, 2U}) rig.apply(shard, step);
  }
  CHECK(rig.core.bound() == 8);
  CHECK(rig.number("applied_here") == 6);
  rig.apply(1, 7);
  CHECK(rig.core.bound() == 9);
}

TEST_CASE("while a source writes the version that was asked for, nothing newer is asked for") {
  HandoffRig rig;
  rig.own_step(1);
  rig.says(1, 1, 1, {0, 1});
  rig.epoch(2, {{0, 1}, {1, 0}, {2, 0}});
  for (StepNumber step = 2; step <= 20; ++step) {
    rig.own_step(step);
    rig.says(1, 2, step, {0, 1});
    rig.pass_ms(310);
  }
  REQUIRE(rig.versions_asked.size() > 15);
  std::size_t older = 0;
  for (const AskVersion& ask : rig.versions_asked) {
    CHECK(ask.at_least <= 1);
    older += ask.at_least == 0 ? 1 : 0;
  }
  CHECK(older == rig.versions_asked.size() / 4);  // now and then whatever the logs here lead on from will do
  // In the end whoever promised it may be gone: then the newest of now.
  for (int i = 0; i < 40; ++i) rig.pass_ms(310);
  CHECK(std::any_of(rig.versions_asked.begin(), rig.versions_asked.end(),
                    [](const AskVersion& ask) { return ask.at_least == 20; }));
}

TEST_CASE("a version whose next step is not known here any more is replaced by a newer one") {
  CoordinationConfig config;
  config.goes_kept = 4;
  HandoffRig rig(config);
  for (StepNumber step = 1; step <= 10; ++step) rig.own_step(step);
  rig.says(1, 1, 5, {0, 1});
  rig.epoch(2, {{0, 1}, {1, 0}, {2, 0}});
  rig.jump(1, 5);
  CHECK(rig.fetched(1).empty());  // steps 7..10 are known
  REQUIRE(rig.versions_asked.size() == 2);
  CHECK(rig.versions_asked[1].at_least == 6);
  rig.says(1, 2, 10, {0, 1});
  rig.jump(1, 8);
  CHECK(rig.fetched(1) == std::vector<StepNumber>{9});
}

TEST_CASE("a node that has nothing begins where its first version ends, and needs no step before it") {
  HandoffRig rig({}, {{1, 2}, {1, 2}, {2, 1}});
  for (StepNumber step = 1; step <= 3; ++step) rig.give_message(step);
  rig.says(1, 1, 12, {0, 1, 2});
  rig.epoch(2, {{1, 0}, {1, 2}, {2, 0}});
  REQUIRE(rig.versions_asked.size() == 2);
  CHECK(rig.versions_asked[0].at_least == 12);
  rig.jump(2, 12);
  CHECK(rig.core.bound() == 12);
  CHECK(rig.binding("messages_pending") == 0);
  rig.jump(0, 13);  // another one may be newer
  CHECK(rig.number("shards_brought_up") == 0);
  rig.give_message(13);
  rig.apply(2, 13);
  CHECK(rig.core.bound() == 13);
}

TEST_CASE("a shard that never came to have a version is let go of at once, and may come again") {
  HandoffRig rig;
  rig.epoch(2, {{0, 1}, {1, 0}, {2, 0}});
  rig.epoch(3, {{0, 1}, {1, 2}, {2, 0}});
  CHECK(rig.released == std::vector<ShardId>{1});
  CHECK(rig.number("shards_here") == 2);
  rig.call([&] { rig.core.on_jumped(1, 4); });  // the answer was on its way
  rig.apply(1, 4);
  CHECK(rig.number("shards_here") == 2);
  rig.epoch(4, {{0, 1}, {1, 0}, {2, 0}});
  CHECK(rig.number("shards_brought_up") == 1);
  CHECK(rig.versions_asked.size() == 2);
}

TEST_CASE("a shard that leaves is held and kept up until the new owners have all of it") {
  HandoffRig rig;
  rig.own_step(1);
  rig.says(2, 1, 1, {1, 2});
  rig.says(1, 1, 1, {0, 1});
  rig.epoch(2, {{0, 1}, {1, 2}, {2, 1}});  // shard 2 goes from here to tap1
  CHECK(rig.released.empty());
  rig.own_step(2);
  CHECK(rig.core.progress().holder(2, 0)->progress.durable == 2);
  rig.says(2, 2, 2, {1, 2});
  rig.says(1, 1, 2, {0, 1, 2}, 2);  // it is not in the epoch yet
  CHECK(rig.released.empty());
  rig.says(1, 2, 2, {0, 1, 2}, 2);
  CHECK(rig.released.empty());
  CHECK(rig.core.placement().shards[2].holders.back().waits_for.find("newest recovery point is 0") !=
        std::string::npos);
  rig.call([&] { rig.core.on_published(2, {}); });
  CHECK(rig.released == std::vector<ShardId>{2});
  CHECK(rig.core.progress().holder(2, 0) == nullptr);
  CHECK(rig.number("released_shards") == 1);
  CHECK(rig.number("shards_here") == 1);
  // Late words about it mean nothing, and it is released once.
  rig.call([&] { rig.core.on_applied({2, 3, rig.digest(2, 3), {}}); });
  rig.call([&] { rig.core.on_durable({2, 3, {}}); });
  rig.pass_ms(500);
  CHECK(rig.released.size() == 1);
  CHECK(rig.core.progress().holder(2, 0) == nullptr);
  // What is left is enough to go on.
  rig.own_step(3, {0});
  CHECK(rig.number("applied_here") == 3);
}

TEST_CASE("a new owner that comes back is not relied on before it has said what it holds now") {
  HandoffRig rig;
  rig.own_step(1);
  rig.says(2, 1, 1, {1, 2});
  rig.epoch(2, {{0, 1}, {1, 2}, {2, 1}});
  rig.says(1, 2, 1, {0, 1, 2});
  rig.live(1, false);
  rig.says(2, 2, 1, {1, 2});
  CHECK(rig.released.empty());
  rig.live(1);
  rig.says(2, 2, 1, {1, 2});  // anything that makes it look again
  rig.call([&] { rig.core.on_published(1, {}); });
  CHECK(rig.released.empty());
  rig.says(1, 2, 1, {});  // with a new disk
  CHECK(rig.released.empty());
  rig.says(1, 2, 1, {0, 1, 2});
  CHECK(rig.released == std::vector<ShardId>{2});
}

TEST_CASE("an epoch that is old, or of other shards, changes nothing; a shard that comes back stays") {
  HandoffRig rig;
  rig.epoch(1, {{1}, {1}, {1}});
  rig.epoch(0, {{1}, {1}, {1}});
  rig.epoch(9, {{1}, {1}});
  CHECK(rig.core.shape().epoch == 1);
  CHECK(rig.core.progress().holder(0, 0)->assigned);
  rig.epoch(2, {{1, 2}, {1, 2}, {2, 1}});
  CHECK_FALSE(rig.core.progress().holder(0, 0)->assigned);
  rig.epoch(3, {{0, 1}, {1, 2}, {2, 0}});
  CHECK(rig.core.progress().holder(0, 0)->assigned);
  for (const MemberIndex member : {1U, 2U}) rig.says(member, 3, 0, {0, 1, 2});
  rig.call([&] { rig.core.on_published(0, {}); });
  CHECK(rig.released.empty());
  CHECK(rig.versions_asked.empty());
}

TEST_CASE("a shard that the store has and the epoch gives to others is held from the start") {
  std::map<ShardId, HeldShard> held{{0, {7, 3}}, {1, {9, 5}}};
  ManualClock clock;
  const JobPlanPtr plan = test::plan_of(test::three_shards(test::sgd()));
  Coordination core(plan, {}, clock, 7, {}, shape_of(4, {{0, 1}, {1, 2}, {2, 0}}), held);
  REQUIRE(core.progress().holder(1, 0) != nullptr);
  CHECK_FALSE(core.progress().holder(1, 0)->assigned);
  CHECK(core.progress().holder(1, 0)->progress.from == 5);
  CHECK(core.progress().holder(0, 0)->assigned);
  CHECK(core.status()["shards_brought_up"] == 1);  // shard 2
  CHECK(core.progress().kept_because(1, 0, 100) == "tap1 is down");
  CHECK(core.placement().heard == std::vector<bool>{true, false, false});
}

TEST_CASE("an owner that stands still is helped, again and again, and not while it moves") {
  HandoffRig rig;
  rig.own_step(1);
  rig.give_ops_of(2);
  rig.give_message(2);
  REQUIRE(rig.core.bound() == 2);
  rig.apply(0, 2);
  rig.pass_ms(500);
  rig.pass_ms(600);
  CHECK(rig.fetched(2) == std::vector<StepNumber>{2});
  CHECK(rig.fetched(0).empty());
  for (int i = 0; i < 10; ++i) rig.pass_ms(100);
  rig.pass_ms(100);
  CHECK(rig.fetched(2) == std::vector<StepNumber>{2, 2});
  rig.apply(2, 2);
  for (int i = 0; i < 30; ++i) rig.pass_ms(100);
  CHECK(rig.fetched(2).size() == 2);
}

TEST_CASE("without a mirror port what a peer has bound is fetched at once, and no queue is drained") {
  CoordinationConfig config;
  config.has_tap = false;
  HandoffRig rig(config);
  rig.give_message(1);
  rig.says(1, 1, 0, {0, 1});
  CHECK(rig.fetches.empty());
  rig.says(1, 1, 1, {0, 1});
  REQUIRE(rig.fetches.size() == 1);
  rig.pass_ms(20);
  CHECK(rig.fetches.size() == 1);
  rig.pass_ms(40);
  CHECK(rig.fetches.size() == 2);
  for (int i = 0; i < 10; ++i) rig.pass_ms(100);
  CHECK(rig.drains.empty());
  CHECK(rig.gos.empty());
  for (const ShardId shard : {0U, 2U}) rig.apply(shard, 1);
  CHECK(rig.core.bound() == 1);
}

TEST_CASE("who is out is not listened to, and what it held is nobody's copy") {
  HandoffRig rig;
  rig.own_step(1);
  rig.says(2, 1, 1, {1, 2});
  rig.says(1, 1, 1, {0, 1});
  ClusterShape shape = shape_of(2, {{0, 1}, {1, 0}, {0, 1}});
  shape.out = {false, false, true};
  rig.call([&] { rig.core.on_epoch(shape); });
  CHECK(rig.core.progress().holder(2, 2) == nullptr);
  rig.says(2, 2, 1, {0, 1, 2});
  for (ShardId shard = 0; shard < 3; ++shard) CHECK(rig.core.progress().holder(shard, 2) == nullptr);
}

}  // namespace gradtap::actors
