// What the catalog says can be produced is what can be rebuilt, step by step; digests are those of the live shards.
#include "actors/store_catalog.h"

#include <doctest/doctest.h>
#include <nlohmann/json.hpp>

#include "recovery/rebuild_shard.h"
#include "tests/unit/actors/actor_probe.h"
#include "tests/unit/actors/stored_job.h"

namespace gradtap::actors {
namespace {

using nlohmann::json;

void check_against_rebuilding(const test::StoredJob& job, ShardId shard, StepNumber first, StepNumber last) {
  for (StepNumber step = first; step <= last; ++step) {
    CAPTURE(step);
    const json said = stored_version(*job.store, *job.plan, shard, step);
    const auto rebuilt = recovery::rebuild_shard(*job.store, *job.plan, shard, step);
    CHECK(said["can_produce"] == rebuilt.has_value());
    if (!rebuilt) continue;
    CHECK(said["digest"] == to_hex(job.digests[shard].at(step)));
    CHECK(said["digest"] == to_hex(rebuilt->digest().sha));
    CHECK(said["full"] <= step);
  }
}

}  // namespace

TEST_CASE("the catalog knows what the store can produce: after logs, full versions, retention and a jump") {
  test::StoredJob job(test::three_shards(test::sgd()));
  job.base(0);
  for (StepNumber step = 1; step <= 12; ++step) {
    job.store_message(step);
    job.step(0, true, step == 5 || step == 9);
  }
  check_against_rebuilding(job, 0, 0, 14);
  CHECK(stored_version(*job.store, *job.plan, 0, 3)["full"] == 0);
  CHECK(stored_version(*job.store, *job.plan, 0, 9)["full"] == 9);
  CHECK(stored_version(*job.store, *job.plan, 0, 13)["can_produce"] == false);
  CHECK(stored_version(*job.store, *job.plan, 1, 3) ==
        json{{"digest", nullptr}, {"can_produce", false}, {"full", nullptr}, {"durable", nullptr}});
  json marks = stored_shards(*job.store, *job.plan)["marks"];
  REQUIRE(marks.size() == 1);
  CHECK(marks[0] == json{{"shard", 0},
                         {"durable", 12},
                         {"full", 9},
                         {"log_from", 1},
                         {"log_to", 12},
                         {"digest", to_hex(job.digests[0].at(12))}});
  // Older ones go: their digests stay, and what cannot be produced any more is not promised.
  const auto retained = job.store->retain(job.plan->job, job.plan->lineage, 6, 1);
  REQUIRE(retained);
  REQUIRE(retained->logs > 0);
  check_against_rebuilding(job, 0, 0, 14);
  CHECK(stored_version(*job.store, *job.plan, 0, 3)["can_produce"] == false);
  CHECK(stored_version(*job.store, *job.plan, 0, 3)["digest"] == to_hex(job.digests[0].at(3)));
  CHECK(stored_version(*job.store, *job.plan, 0, 7)["full"] == 5);
  // A whole version that came from a peer: nothing between is promised.
  for (StepNumber step = 13; step <= 16; ++step) {
    job.store_message(step);
    job.step(0, false);
  }
  job.base(0);
  for (StepNumber step = 17; step <= 18; ++step) {
    job.store_message(step);
    job.step(0);
  }
  check_against_rebuilding(job, 0, 13, 20);
  check_against_rebuilding(job, 0, 0, 5);
  CHECK(stored_version(*job.store, *job.plan, 0, 9)["full"] == 9);
  // Logs that lie before a jump may still be in the store; its mark does not count on them.
  CHECK(stored_version(*job.store, *job.plan, 0, 7)["can_produce"] == false);
  CHECK(stored_version(*job.store, *job.plan, 0, 14)["can_produce"] == false);
  marks = stored_shards(*job.store, *job.plan)["marks"];
  CHECK(marks[0]["log_from"] == 17);
}

TEST_CASE("a question before there is a job, and one about a shard that it has not, are answered with nothing") {
  test::StoredJob job(test::three_shards(test::sgd()));
  job.base(0);
  caf::actor_system_config config;
  caf::actor_system system{config};
  test::Probe asker{system};
  const CatalogActor catalog = spawn_store_catalog(system, job.store);
  const auto answer = [&](auto... question) { return json::parse(asker.ask<ActorStatus>(catalog, question...).json); };
  CHECK(answer(shards_atom_v) == json{{"marks", json::array()}});
  CHECK(answer(version_atom_v, std::uint64_t{0}, std::uint64_t{0}) == json::object());
  auto wiring = std::make_shared<Wiring>();
  wiring->plan = job.plan;
  asker.self->send(catalog, wire_atom_v, WiringPtr(wiring));
  CHECK(answer(shards_atom_v)["marks"].size() == 1);
  CHECK(answer(version_atom_v, std::uint64_t{0}, std::uint64_t{0})["can_produce"] == true);
  for (const std::uint64_t shard : {std::uint64_t{3}, ~std::uint64_t{0}, std::uint64_t{1} << 32})
    CHECK(answer(version_atom_v, shard, std::uint64_t{0}) == json::object());
  asker.end(catalog);
}

}  // namespace gradtap::actors
