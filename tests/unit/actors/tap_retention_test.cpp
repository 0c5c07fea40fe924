#include "actors/tap_retention.h"

#include <doctest/doctest.h>

#include "tests/unit/actors/contribution_fixture.h"

namespace gradtap::actors {
namespace {

// Shard 1 lies in both buckets, shard 0 in bucket 1 alone, shard 2 in bucket 0 alone.
struct RetentionRig {
  JobPlanPtr plan = test::plan_of(test::three_shards(test::sgd()));
  test::Contributor contributor{plan, test::layout_of(*plan, {{2}, {1, 0}})};
  TapRetention retention;

  explicit RetentionRig(std::uint64_t bytes_max = std::uint64_t{1} << 30, StepNumber reference_steps = 2,
                        std::shared_ptr<MemoryLedger> memory = std::make_shared<MemoryLedger>())
      : retention(bytes_max, reference_steps, std::move(memory)) {
    retention.begin(plan);
  }
  void add(StepNumber step, std::uint32_t bucket, ShardId shard, LineageId lineage = 1, std::uint64_t order = 1,
           StepNumber content = 0) {
    retention.add(contributor.make(step, bucket, shard, lineage, order, content));
  }
  void whole(StepNumber step, ShardId shard) {
    if (shard != 0) add(step, 0, shard);
    if (shard != 2) add(step, 1, shard);
  }
  [[nodiscard]] bool has(StepNumber step, ShardId shard) {
    const auto bytes = retention.gradient(1, shard, step);
    if (bytes) CHECK(*bytes == test::gradient_bytes(*plan, shard, step));
    return bytes.has_value();
  }
  [[nodiscard]] std::uint64_t bytes_of(ShardId shard) const { return plan->shards.shards()[shard].elements * 4; }
};

}  // namespace

TEST_CASE("a gradient is given once every bucket's part of it is here") {
  RetentionRig rig;
  CHECK_FALSE(rig.has(1, 1));
  rig.add(1, 0, 1);
  CHECK_FALSE(rig.has(1, 1));
  rig.add(1, 1, 1);
  CHECK(rig.has(1, 1));
  for (const ShardId shard : {0U, 2U}) {
    rig.whole(1, shard);
    CHECK(rig.has(1, shard));
  }
  CHECK_FALSE(rig.has(2, 1));
  CHECK_FALSE(rig.retention.gradient(2, 1, 1));  // another lineage
  CHECK(rig.retention.counters().served == 3);
  CHECK(rig.retention.counters().not_held == 4);
  CHECK(rig.retention.counters().steps == 3);
  CHECK(rig.retention.counters().bytes == 0);  // references
}

TEST_CASE("an order that was given again replaces the bytes of the one before, and never the other way round") {
  RetentionRig rig;
  rig.add(1, 0, 1);
  rig.add(1, 1, 1, 1, 10, 500);
  CHECK(rig.retention.gradient(1, 1, 1) != test::gradient_bytes(*rig.plan, 1, 1));
  rig.add(1, 1, 1, 1, 20);
  CHECK(rig.has(1, 1));
  rig.add(1, 1, 1, 1, 15, 500);
  CHECK(rig.has(1, 1));
}

TEST_CASE("what is older than a few steps is copied, and the ops are let go") {
  RetentionRig rig;
  for (StepNumber step = 1; step <= 3; ++step) rig.whole(step, 1);
  CHECK(rig.retention.counters().bytes == 0);
  const auto held = rig.contributor.pool->usage().in_use_bytes;
  rig.whole(4, 1);
  CHECK(rig.retention.counters().bytes == rig.bytes_of(1));
  CHECK(rig.contributor.pool->usage().in_use_bytes == held);  // step 1 went, step 4 came
  for (StepNumber step = 5; step <= 9; ++step) rig.whole(step, 1);
  CHECK(rig.contributor.pool->usage().in_use_bytes == held);
  CHECK(rig.retention.counters().bytes == 6 * rig.bytes_of(1));
  for (StepNumber step = 1; step <= 9; ++step) CHECK(rig.has(step, 1));
  // A late part of a step that was copied changes nothing.
  rig.add(1, 1, 1, 1, 99, 500);
  CHECK(rig.has(1, 1));
}

TEST_CASE("a step that never became whole is let go when it is old") {
  RetentionRig rig;
  rig.add(1, 0, 1);
  for (StepNumber step = 2; step <= 4; ++step) rig.whole(step, 1);
  CHECK(rig.retention.counters().steps == 3);
  CHECK_FALSE(rig.has(1, 1));
  CHECK(rig.has(2, 1));
}

TEST_CASE("beyond the limit the oldest step goes, counted") {
  RetentionRig rig(1);
  RetentionRig enough(3 * rig.bytes_of(1) + 1);
  for (StepNumber step = 1; step <= 10; ++step) {
    rig.whole(step, 1);
    enough.whole(step, 1);
    CHECK(enough.retention.counters().bytes <= 3 * rig.bytes_of(1) + 1);
  }
  // Copies of steps 1..7 were made; three of them fit.
  CHECK(enough.retention.counters().evicted == 4);
  for (StepNumber step = 1; step <= 4; ++step) CHECK_FALSE(enough.has(step, 1));
  for (StepNumber step = 5; step <= 10; ++step) CHECK(enough.has(step, 1));
  // Not one copy fits here; references cost nothing.
  CHECK(rig.retention.counters().bytes == 0);
  CHECK(rig.retention.counters().evicted == 7);
  for (StepNumber step = 8; step <= 10; ++step) CHECK(rig.has(step, 1));
}

TEST_CASE("what every owner has durably is let go, of that shard and up to that step") {
  RetentionRig rig;
  for (StepNumber step = 1; step <= 6; ++step)
    for (ShardId shard = 0; shard < 3; ++shard) rig.whole(step, shard);
  rig.retention.release(7, 1, 6);  // another lineage
  CHECK(rig.retention.counters().steps == 18);
  rig.retention.release(1, 1, 4);
  rig.retention.release(1, 1, 2);
  CHECK(rig.retention.counters().steps == 14);
  for (StepNumber step = 1; step <= 6; ++step) {
    CHECK(rig.has(step, 1) == (step > 4));
    CHECK(rig.has(step, 0));
    CHECK(rig.has(step, 2));
  }
  CHECK(rig.retention.counters().bytes == 3 * (rig.bytes_of(0) + rig.bytes_of(2)));
  // What comes late is not kept again.
  rig.whole(3, 1);
  CHECK_FALSE(rig.has(3, 1));
  for (const ShardId shard : {0U, 1U, 2U}) rig.retention.release(1, shard, 100);
  CHECK(rig.retention.counters().steps == 0);
  CHECK(rig.retention.counters().bytes == 0);
  CHECK(rig.contributor.pool->usage().in_use_bytes == 0);
}

TEST_CASE("a new lineage lets go of the one before; the same one again does not") {
  RetentionRig rig;
  rig.add(1, 0, 1, 2);  // of a lineage that is not in force
  CHECK(rig.retention.counters().steps == 0);
  for (StepNumber step = 1; step <= 5; ++step) rig.whole(step, 1);
  rig.retention.begin(rig.plan);
  CHECK(rig.has(5, 1));
  const JobPlanPtr next = test::plan_of(test::three_shards(test::sgd()), 65'536, 2);
  rig.retention.begin(next);
  CHECK(rig.retention.counters().steps == 0);
  CHECK(rig.retention.counters().bytes == 0);
  CHECK_FALSE(rig.has(5, 1));
  rig.add(1, 0, 1, 2);
  rig.add(1, 1, 1, 2);
  CHECK(rig.retention.gradient(2, 1, 1) == test::gradient_bytes(*next, 1, 1));
}

TEST_CASE("without memory for a copy the oldest step makes room, then the one that would be copied goes") {
  const std::uint64_t one = RetentionRig().bytes_of(1);
  const auto ledger = std::make_shared<MemoryLedger>(2 * one);
  {
    RetentionRig rig(std::uint64_t{1} << 30, 1, ledger);
    for (StepNumber step = 1; step <= 4; ++step) rig.whole(step, 1);
    // Steps 3 and 4 are references, 1 and 2 copies.
    CHECK(ledger->usage(MemoryAccount::kRetention).in_use_bytes == 2 * one);
    rig.whole(5, 1);
    CHECK_FALSE(rig.has(1, 1));
    for (StepNumber step = 2; step <= 5; ++step) CHECK(rig.has(step, 1));
    CHECK(rig.retention.counters().evicted == 1);
    CHECK(ledger->usage(MemoryAccount::kRetention).in_use_bytes == rig.retention.counters().bytes);
    rig.retention.release(1, 1, 3);
    CHECK(ledger->usage(MemoryAccount::kRetention).in_use_bytes == 0);
    REQUIRE(ledger->take(MemoryAccount::kShards, 2 * one));
    rig.whole(6, 1);  // now 4 would be copied, and nothing older is there to make room
    CHECK_FALSE(rig.has(4, 1));
    CHECK(rig.has(5, 1));
    CHECK(rig.retention.counters().evicted == 2);
    ledger->give_back(MemoryAccount::kShards, 2 * one);
  }
  CHECK(ledger->total().in_use_bytes == 0);
}

}  // namespace gradtap::actors
