#include "actors/keeper.h"

#include <algorithm>
#include <filesystem>

#include <doctest/doctest.h>

#include "tests/unit/actors/actor_probe.h"
#include "tests/unit/actors/stored_job.h"

namespace gradtap::actors {
namespace {

using test::json;
using test::StoredJob;

struct KeeperRig {
  StoredJob job{test::three_shards(test::sgd())};
  caf::actor_system_config config;
  caf::actor_system system{config};
  test::Probe owner{system}, coordinator{system};
  KeeperActor keeper;

  explicit KeeperRig(std::uint64_t keep_fulls = 2, std::uint64_t catch_up_steps_max = 4096) {
    KeeperOptions options;
    options.job = job_id("job");
    options.store = job.store;
    options.keep_fulls = keep_fulls;
    options.retry_ms_max = 400;
    options.catch_up_steps_max = catch_up_steps_max;
    keeper = spawn_keeper(system, std::move(options));
  }
  ~KeeperRig() { owner.end(keeper); }

  // The lineage is in force: its coordinator is there, and its owners come after.
  void wire(LineageId lineage = 1) {
    auto plan = std::make_shared<JobPlan>(*job.plan);
    plan->lineage = lineage;
    auto wiring = std::make_shared<Wiring>();
    wiring->coordinator = coordinator.as<CoordinatorActor>();
    wiring->plan = std::move(plan);
    owner.self->send(keeper, wire_atom_v, WiringPtr(wiring));
  }
  // A live shard's step as its owner would hand it over.
  [[nodiscard]] ShardRecordPtr record(ShardId id, StepNumber step, bool full, LineageId lineage = 1) {
    auto record = std::make_shared<ShardRecord>();
    record->lineage = lineage;
    record->step = step;
    record->commit.shard = id;
    record->commit.has_log = step > 0;
    record->commit.state_digest = job.digests[id].at(step);
    if (step > 0) {
      auto gradient = std::make_shared<const std::vector<float>>(test::shard_gradient(*job.plan, id, step));
      record->commit.log = {{reinterpret_cast<const std::uint8_t*>(gradient->data()), gradient->size() * 4}};
      record->keep_alive.push_back(gradient);
    }
    if (full) {
      auto copy = std::make_shared<const recovery::FullVersion>(*job.shards[id]);
      record->commit.full = copy->parts();
      record->keep_alive.push_back(copy);
    }
    return record;
  }
  void give(const ShardRecordPtr& record) { owner.self->send(keeper, record_atom_v, record, owner.pointer()); }
  [[nodiscard]] std::optional<StepNumber> mark(ShardId id, LineageId lineage = 1) const {
    const auto marks = job.store->marks(job.plan->job, lineage);
    REQUIRE(marks);
    for (const auto& mark : *marks)
      if (mark.shard == id) return mark.version;
    return std::nullopt;
  }
  // A durable message must be true at the moment it comes.
  void expect_durable(StepNumber step) {
    const Durable durable = owner.expect<Durable>(durable_atom_v);
    CHECK(durable.outcome.ok);
    CHECK(durable.step == step);
    REQUIRE(mark(durable.shard));
    CHECK(*mark(durable.shard) >= step);
    const Durable told = coordinator.expect<Durable>(durable_atom_v);
    CHECK(told.outcome.ok);
    CHECK(told.step == step);
  }
};

}  // namespace

TEST_CASE("records become durable, and only then are answered") {
  KeeperRig rig;
  rig.wire();
  for (ShardId id = 0; id < 3; ++id) rig.give(rig.record(id, 0, true));
  for (int i = 0; i < 3; ++i) rig.expect_durable(0);
  for (ShardId id = 0; id < 3; ++id) rig.job.step(id, false);
  for (ShardId id = 0; id < 3; ++id) rig.give(rig.record(id, 1, false));
  for (int i = 0; i < 3; ++i) rig.expect_durable(1);
  const json status = rig.owner.status(rig.keeper);
  CHECK(status["shard_records"] == 6);
  CHECK(status["queue"] == 0);
  CHECK(status["failures"] == 0);
  rig.job.store_message(1);
  for (ShardId id = 0; id < 3; ++id) {
    const auto log = rig.job.store->read_log(rig.job.plan->job, 1, id, 1);
    REQUIRE(log);
    const auto gradient = test::shard_gradient(*rig.job.plan, id, 1);
    CHECK(std::memcmp(log->data(), gradient.data(), log->size()) == 0);
  }
}

TEST_CASE("a store that fails is tried again, and what gathered meanwhile goes in one group (J14)") {
  KeeperRig rig;
  rig.wire();
  // Whatever the store's layout: without its directory nothing can be staged.
  const std::filesystem::path place = rig.job.dir.path;
  const std::filesystem::path away = place.string() + ".away";
  std::filesystem::rename(place, away);
  for (ShardId id = 0; id < 3; ++id) rig.give(rig.record(id, 0, true));
  const Durable failed = rig.coordinator.expect<Durable>(durable_atom_v);
  CHECK_FALSE(failed.outcome.ok);
  CHECK(failed.outcome.error.code == ErrorCode::kStoreWrite);
  CHECK(rig.owner.silent<Durable>(durable_atom_v));
  json status = rig.owner.status(rig.keeper);
  CHECK(status["queue"] == 3);
  CHECK(status["failures"].get<int>() >= 1);
  CHECK(status["retry_ms"].get<int>() > 0);
  std::filesystem::rename(away, place);
  for (int i = 0; i < 3; ++i) {
    const Durable durable = rig.owner.expect<Durable>(durable_atom_v);
    CHECK(durable.outcome.ok);
    CHECK(rig.mark(durable.shard) == 0);
  }
  status = rig.owner.status(rig.keeper);
  CHECK(status["commits"] == 1);
  CHECK(status["queue"] == 0);
  CHECK(status["retry_ms"] == 0);
}

TEST_CASE("when the node stops, what was given is durable before the answer; a store that fails is said") {
  KeeperRig rig;
  rig.wire();
  for (ShardId id = 0; id < 3; ++id) rig.give(rig.record(id, 0, true));
  for (StepNumber step = 1; step <= 20; ++step)
    for (ShardId id = 0; id < 3; ++id) {
      rig.job.step(id, false);
      rig.give(rig.record(id, step, false));
    }
  CHECK(rig.owner.ask<Outcome>(rig.keeper, drain_atom_v).ok);
  for (ShardId id = 0; id < 3; ++id) CHECK(rig.mark(id) == 20);
  CHECK(rig.owner.ask<Outcome>(rig.keeper, drain_atom_v).ok);  // nothing left
  // A step is missing before this one: the store refuses it.
  rig.job.step(0, false);
  rig.job.step(0, false);
  rig.give(rig.record(0, 22, false));
  const auto refused = rig.owner.ask<Outcome>(rig.keeper, drain_atom_v);
  CHECK_FALSE(refused.ok);
  CHECK(rig.mark(0) == 20);
}

TEST_CASE("side values are in the store when the answer comes") {
  KeeperRig rig;
  auto entries = std::make_shared<SideEntries>();
  entries->entries.push_back({storage::side_key(storage::SideKind::kStepMessage, rig.job.plan->job, 1, 5), {1, 2, 3}});
  CHECK(rig.owner.ask<Outcome>(rig.keeper, side_atom_v, SideEntriesPtr(entries)).ok);
  const auto stored = rig.job.store->get_side(entries->entries[0].key);
  REQUIRE(stored);
  CHECK(*stored == std::vector<std::uint8_t>{1, 2, 3});
}

TEST_CASE("records of a superseded lineage never reach the new one") {
  KeeperRig rig;
  rig.wire();
  for (ShardId id = 0; id < 3; ++id) rig.give(rig.record(id, 0, true));
  for (int i = 0; i < 3; ++i) rig.expect_durable(0);
  for (ShardId id = 0; id < 3; ++id) rig.job.step(id, false);
  const auto next = test::record_of(rig.job.body, 65'536, std::string(32, 'c'));
  const auto open = [&] {
    return rig.owner.ask<LineageAnswer>(rig.keeper, lineage_atom_v,
                                        LineageRecordPtr(std::make_shared<schema::LineageRecord>(next)));
  };
  const LineageAnswer opened = open();
  CHECK(opened.outcome.ok);
  CHECK(opened.lineage.id == 2);
  CHECK(opened.lineage.created);
  CHECK(rig.owner.status(rig.keeper)["lineage"] == 1);  // its attach has only begun
  rig.wire(2);
  // The old owners had more under way: a log, and one with a full version.
  rig.give(rig.record(0, 1, false));
  rig.give(rig.record(1, 1, true));
  CHECK(rig.owner.silent<Durable>(durable_atom_v));
  CHECK_FALSE(rig.mark(0, 2));
  CHECK_FALSE(rig.mark(1, 2));
  CHECK(rig.owner.status(rig.keeper)["queue"] == 0);
  CHECK(rig.owner.status(rig.keeper)["failures"] == 0);
  CHECK(rig.owner.status(rig.keeper)["stale_records"] == 2);
  // The new lineage is not held up.
  CHECK(open().lineage.id == 2);
  rig.give(rig.record(2, 0, true, 2));
  const Durable durable = rig.owner.expect<Durable>(durable_atom_v);
  CHECK(durable.outcome.ok);
  CHECK(rig.mark(2, 2) == 0);
  CHECK(rig.mark(0, 1) == 0);
}

TEST_CASE("a superseded run does not take the keeper back") {
  KeeperRig rig;
  rig.wire();
  const auto ask = [&](char run) {
    const auto record = test::record_of(rig.job.body, 65'536, std::string(32, run));
    return rig.owner.ask<LineageAnswer>(rig.keeper, lineage_atom_v,
                                        LineageRecordPtr(std::make_shared<schema::LineageRecord>(record)));
  };
  CHECK(ask('c').lineage.id == 2);
  rig.wire(2);
  CHECK(ask('a').lineage.superseded);
  CHECK(rig.owner.status(rig.keeper)["lineage"] == 2);
}

TEST_CASE("a shard whose mark is ahead after a recovery goes the way a second time") {
  KeeperRig rig;
  // Shard 0 is durable at 3, the others at 1: all of them start again at 1.
  for (ShardId id = 0; id < 3; ++id) rig.job.base(id);
  for (ShardId id = 0; id < 3; ++id)
    for (StepNumber step = 1; step <= 4; ++step) rig.job.step(id, step <= (id == 0 ? 3 : 1));
  rig.wire();
  SUBCASE("to the same state") {
    for (StepNumber step = 2; step <= 4; ++step) {
      for (ShardId id = 0; id < 3; ++id) rig.give(rig.record(id, step, false));
      for (int i = 0; i < 3; ++i) rig.expect_durable(step);
    }
    for (ShardId id = 0; id < 3; ++id) CHECK(rig.mark(id) == 4);
    CHECK(rig.owner.status(rig.keeper)["failures"] == 0);
  }
  SUBCASE("to another state") {
    auto wrong = std::make_shared<ShardRecord>(*rig.record(0, 2, false));
    wrong->commit.state_digest[0] ^= 1;
    rig.give(wrong);
    const Durable told = rig.coordinator.expect<Durable>(durable_atom_v);
    CHECK_FALSE(told.outcome.ok);
    CHECK(told.outcome.error.code == ErrorCode::kDigestMismatch);
    CHECK(rig.mark(0) == 3);
  }
}

namespace {

// Six steps, a full version with every other one; `everybody_has`: how far the co-owners and recovery points are.
template <class F>
void run_six_steps(KeeperRig& rig, F everybody_has) {
  rig.wire();
  for (ShardId id = 0; id < 3; ++id) rig.give(rig.record(id, 0, true));
  for (int i = 0; i < 3; ++i) rig.expect_durable(0);
  for (StepNumber step = 1; step <= 6; ++step) {
    rig.job.store_message(step);
    rig.owner.self->send(rig.keeper, retain_atom_v, everybody_has(step));
    for (ShardId id = 0; id < 3; ++id) {
      rig.job.step(id, false);
      rig.give(rig.record(id, step, step % 2 == 0));
    }
    for (int i = 0; i < 3; ++i) rig.expect_durable(step);
  }
  (void)rig.owner.status(rig.keeper);  // retention comes after the answers
}

}  // namespace

TEST_CASE("full versions beyond keep_fulls go, what recovery needs stays") {
  KeeperRig rig(1);
  run_six_steps(rig, [](StepNumber step) { return step; });
  for (ShardId id = 0; id < 3; ++id) {
    const auto fulls = rig.job.store->full_steps(rig.job.plan->job, 1, id);
    REQUIRE(fulls);
    CHECK(fulls->size() <= 2);
    CHECK(std::find(fulls->begin(), fulls->end(), 0) == fulls->end());
    CHECK_FALSE(rig.job.store->read_log(rig.job.plan->job, 1, id, 1));
  }
}

TEST_CASE("what a co-owner that is away or the next recovery point still needs is kept") {
  KeeperRig rig(1);
  run_six_steps(rig, [](StepNumber step) { return std::min<StepNumber>(step, 3); });
  for (ShardId id = 0; id < 3; ++id) {
    const auto fulls = rig.job.store->full_steps(rig.job.plan->job, 1, id);
    REQUIRE(fulls);
    CHECK(*fulls == std::vector<StepNumber>{2, 4, 6});
    for (StepNumber step = 1; step <= 6; ++step)
      CHECK(rig.job.store->read_log(rig.job.plan->job, 1, id, step).has_value() == (step > 2));
  }
  CHECK(rig.owner.status(rig.keeper)["needed_after"] == 3);
}

TEST_CASE("but for so many steps at most") {
  KeeperRig rig(1, 3);
  run_six_steps(rig, [](StepNumber) { return StepNumber{0}; });
  for (ShardId id = 0; id < 3; ++id)
    for (StepNumber step = 1; step <= 6; ++step)
      CHECK(rig.job.store->read_log(rig.job.plan->job, 1, id, step).has_value() == (step > 2));
}

TEST_CASE("side state that no kept message names goes with the logs") {
  KeeperRig rig(1);
  const auto blob = [&](char name) {
    const std::string content(1, name);
    const Sha256 digest = sha256(std::string_view(content));
    return storage::side_key(storage::SideKind::kBlob, rig.job.plan->job, 1, 0, 0) +
           std::string(digest.begin(), digest.end());
  };
  test::require_ok(rig.job.store->put_side(blob('a'), {}, true));
  run_six_steps(rig, [](StepNumber step) { return step; });
  CHECK_FALSE(rig.job.store->get_side(blob('a')));
  CHECK(rig.owner.status(rig.keeper)["blobs_dropped"] == 1);
}

TEST_CASE("a released shard is gone, the others are not, and it may come again") {
  KeeperRig rig;
  rig.wire();
  for (ShardId id = 0; id < 3; ++id) rig.give(rig.record(id, 0, true));
  for (int i = 0; i < 3; ++i) rig.expect_durable(0);
  const auto release = [&](LineageId lineage, ShardId id) {
    rig.owner.self->send(rig.keeper, release_atom_v, std::uint32_t{lineage}, std::uint32_t{id});
  };
  release(2, 1);  // of another lineage
  CHECK(rig.owner.status(rig.keeper)["shards_released"] == 0);
  CHECK(rig.mark(1) == 0);
  release(1, 1);
  release(1, 1);
  release(1, 99);
  json status = rig.owner.status(rig.keeper);
  CHECK(status["shards_released"] == 3);
  CHECK(status["failures"] == 0);
  CHECK_FALSE(rig.mark(1));
  CHECK(rig.mark(0) == 0);
  CHECK(rig.mark(2) == 0);
  // Retention is not held up by what is no longer here.
  for (StepNumber step = 1; step <= 4; ++step) {
    for (const ShardId id : {0U, 2U}) {
      rig.job.step(id, false);
      rig.give(rig.record(id, step, step == 4));
    }
    for (int i = 0; i < 2; ++i) rig.expect_durable(step);
  }
  CHECK(rig.owner.status(rig.keeper)["failures"] == 0);
  // It comes back as another version, after which logs follow.
  for (StepNumber step = 1; step <= 3; ++step) rig.job.step(1, false);
  rig.give([&] {
    auto base = std::make_shared<ShardRecord>(*rig.record(1, 3, true));
    base->commit.has_log = false;
    base->commit.log.clear();
    return ShardRecordPtr(base);
  }());
  rig.expect_durable(3);
  rig.job.step(1, false);
  rig.give(rig.record(1, 4, false));
  rig.expect_durable(4);
  CHECK(rig.mark(1) == 4);
  CHECK(rig.job.store->full_steps(rig.job.plan->job, 1, 1).value() == std::vector<StepNumber>{3});
  CHECK_FALSE(rig.job.store->read_log(rig.job.plan->job, 1, 1, 3));
}

TEST_CASE("what is queued of a shard goes with it, and what is queued of others stays") {
  KeeperRig rig;
  rig.wire();
  for (ShardId id = 0; id < 3; ++id) rig.give(rig.record(id, 0, true));
  for (int i = 0; i < 3; ++i) rig.expect_durable(0);
  const std::filesystem::path place = rig.job.dir.path;
  const std::filesystem::path away = place.string() + ".away";
  std::filesystem::rename(place, away);  // nothing can be committed now
  for (ShardId id = 0; id < 3; ++id) {
    rig.job.step(id, false);
    rig.give(rig.record(id, 1, false));
  }
  CHECK_FALSE(rig.coordinator.expect<Durable>(durable_atom_v).outcome.ok);
  rig.owner.self->send(rig.keeper, release_atom_v, std::uint32_t{1}, std::uint32_t{1});
  CHECK(rig.owner.status(rig.keeper)["queue"] == 2);
  std::filesystem::rename(away, place);
  std::vector<ShardId> done;
  for (int i = 0; i < 2; ++i) {
    const Durable durable = rig.owner.expect<Durable>(durable_atom_v);
    CHECK(durable.step == 1);
    done.push_back(durable.shard);
  }
  std::sort(done.begin(), done.end());
  CHECK(done == std::vector<ShardId>{0, 2});
  CHECK(rig.owner.silent<Durable>(durable_atom_v));
}

}  // namespace gradtap::actors
