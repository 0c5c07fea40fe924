#include "actors/baseline_hold.h"

#include <doctest/doctest.h>

#include "tests/unit/actors/job_fixture.h"

namespace gradtap::actors {

TEST_CASE("what is held of a baseline is given for its lineage alone, and goes with the next one") {
  const JobPlanPtr plan = test::plan_of(test::three_shards(test::sgd()));
  const auto shard = test::fresh_shard(*plan, 1);
  const auto version = [&](StepNumber step) {
    return HeldVersion{step, shard->digest().sha, std::make_shared<const recovery::FullVersion>(*shard)};
  };
  BaselineHold hold;
  CHECK_FALSE(hold.get(1, 1).full);
  hold.begin(4);
  CHECK_FALSE(hold.get(4, 1).full);
  hold.put(1, version(10));
  hold.put(2, version(11));
  CHECK(hold.get(4, 1).step == 10);
  CHECK(hold.get(4, 1).digest == shard->digest().sha);
  CHECK(hold.get(4, 2).step == 11);
  CHECK_FALSE(hold.get(4, 0).full);
  CHECK_FALSE(hold.get(3, 1).full);
  hold.put(1, version(12));
  const HeldVersion newer = hold.get(4, 1);
  CHECK(newer.step == 12);
  hold.begin(5);
  CHECK_FALSE(hold.get(4, 1).full);
  CHECK_FALSE(hold.get(5, 1).full);
  // Who has it in hand keeps it: the bytes are those of the shard, parameter first.
  const auto parts = newer.full->parts();
  REQUIRE_FALSE(parts.empty());
  REQUIRE(parts[0].kind == storage::kKindParam);
  const auto values = shard->kind(0);
  REQUIRE(parts[0].bytes[0].size() == values.size() * sizeof(float));
  CHECK(std::memcmp(parts[0].bytes[0].data(), values.data(), parts[0].bytes[0].size()) == 0);
}

}  // namespace gradtap::actors
