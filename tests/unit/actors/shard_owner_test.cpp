#include "actors/shard_owner.h"

#include <atomic>
#include <cstring>

#include <doctest/doctest.h>

#include "tests/unit/actors/actor_probe.h"
#include "tests/unit/actors/job_fixture.h"

namespace gradtap::actors {
namespace {

using replica::Verdict;
using test::json;

// Shard 1 of the three: the end of a, all of b, the beginning of c; two buckets bring its gradient.
struct OwnerRig {
  JobPlanPtr plan = test::plan_of(test::three_shards(test::sgd()));
  LayoutPtr layout = test::layout_of(*plan, {{2}, {1, 0}});
  caf::actor_system_config config;
  caf::actor_system system{config};
  test::Probe coordinator{system}, keeper{system};
  std::shared_ptr<dataplane::OpBufferPool> pool = dataplane::OpBufferPool::create(std::size_t{1} << 28);
  std::shared_ptr<replica::Shard> twin = test::fresh_shard(*plan, 1);  // what it should become
  OwnerActor owner;

  explicit OwnerRig(std::uint64_t full_every = 64, std::uint64_t flush_queue = 2,
                    std::shared_ptr<MemoryLedger> memory = std::make_shared<MemoryLedger>()) {
    ShardOwnerOptions options;
    options.plan = plan;
    options.shard = test::fresh_shard(*plan, 1);
    options.full_every_steps = full_every;
    options.flush_queue_steps = flush_queue;
    options.memory = std::move(memory);
    owner = spawn_shard_owner(system, std::move(options));
  }
  ~OwnerRig() { keeper.end(owner); }

  void wire() {
    auto wiring = std::make_shared<Wiring>();
    wiring->coordinator = coordinator.as<CoordinatorActor>();
    wiring->keeper = keeper.as<KeeperActor>();
    keeper.self->send(owner, wire_atom_v, WiringPtr(wiring));
  }
  void start() {
    wire();
    const ShardRecordPtr base = keeper.expect_record();
    CHECK(base->step == 0);
    CHECK(base->lineage == 1);
    CHECK_FALSE(base->commit.has_log);
    CHECK_FALSE(base->commit.full.empty());
    const Applied first = coordinator.expect<Applied>(applied_atom_v);
    CHECK(first.step == 0);
    CHECK(first.digest == twin->digest().sha);
    durable(0);
  }
  void durable(StepNumber step, bool ok = true) {
    Durable message{1, step, {}};
    message.outcome.ok = ok;
    keeper.self->send(owner, durable_atom_v, message);
  }
  void contribute(StepNumber step, std::uint32_t bucket, LineageId lineage = 1, std::uint64_t order = 1,
                  StepNumber content = 0) {
    const std::uint64_t numel = layout->bucket_numel(bucket);
    auto buffer = pool->acquire(numel * 4);
    REQUIRE(buffer);
    auto* const values = reinterpret_cast<float*>(buffer.data());
    std::uint64_t at = 0;
    for (const replica::LayoutEntry& entry : layout->bucket(bucket))
      for (std::uint64_t i = 0; i < entry.numel; ++i)
        values[at++] = test::gradient_at(content == 0 ? step : content, entry.parameter, i);
    auto contribution = std::make_shared<Contribution>();
    contribution->step = step;
    contribution->bucket = bucket;
    contribution->shard = 1;
    contribution->lineage = lineage;
    contribution->order = order;
    contribution->bytes = std::make_shared<const dataplane::OpBytes>(std::move(buffer), numel * 4);
    for (const replica::Slice& slice : plan->shards.slices(*layout, bucket))
      if (slice.shard == 1) contribution->slices.push_back(slice);
    coordinator.self->send(owner, contrib_atom_v, ContributionPtr(std::move(contribution)));
  }
  void go(StepNumber step, Verdict verdict = Verdict::kApplied, std::uint64_t first_order = 1) {
    auto message = std::make_shared<Go>();
    message->scalars = test::scalars_of(*plan, step, verdict);
    message->first_order = first_order;
    coordinator.self->send(owner, go_atom_v, GoPtr(std::move(message)));
  }
  void all_of(StepNumber step) {
    contribute(step, 0);
    contribute(step, 1);
    go(step);
  }
  // The step happened, to the state that the twin comes to with the same gradient.
  ShardRecordPtr expect_applied(StepNumber step, Verdict verdict = Verdict::kApplied) {
    const auto gradient = test::shard_gradient(*plan, 1, step);
    test::require_ok(twin->apply(test::scalars_of(*plan, step, verdict),
                                 replica::GradientView{replica::contiguous_pieces(twin->range(), gradient.data())}));
    const Applied applied = coordinator.expect<Applied>(applied_atom_v);
    CHECK(applied.outcome.ok);
    CHECK(applied.shard == 1);
    CHECK(applied.step == step);
    CHECK(applied.digest == twin->digest().sha);
    ShardRecordPtr record = keeper.expect_record();
    CHECK(record->step == step);
    CHECK(record->commit.shard == 1);
    CHECK(record->commit.has_log);
    CHECK(record->commit.state_digest == applied.digest);
    std::string log;
    for (const ByteSpan& span : record->commit.log) log.append(reinterpret_cast<const char*>(span.data()), span.size());
    if (verdict == Verdict::kSkipped) {
      CHECK(log.empty());
    } else {
      REQUIRE(log.size() == gradient.size() * 4);
      CHECK(std::memcmp(log.data(), gradient.data(), log.size()) == 0);
    }
    return record;
  }
  [[nodiscard]] bool nothing_applied() { return coordinator.silent<Applied>(applied_atom_v); }
};

}  // namespace

TEST_CASE("a step is applied when the go and every byte are there, whatever came first") {
  OwnerRig rig;
  rig.start();
  rig.contribute(1, 1);
  rig.go(1);
  CHECK(rig.nothing_applied());
  rig.contribute(1, 0);
  rig.expect_applied(1);
  rig.durable(1);
  rig.contribute(2, 0);
  rig.contribute(2, 1);
  CHECK(rig.nothing_applied());  // no go
  rig.go(2);
  rig.expect_applied(2);
}

TEST_CASE("steps are applied in order, each once") {
  OwnerRig rig(64, 10);
  rig.start();
  rig.all_of(3);
  rig.all_of(2);
  CHECK(rig.nothing_applied());
  rig.all_of(1);
  for (StepNumber step = 1; step <= 3; ++step) rig.expect_applied(step);
  rig.all_of(2);
  rig.all_of(3);
  CHECK(rig.nothing_applied());
  const json status = rig.keeper.status(rig.owner);
  CHECK(status["version"] == 3);
  CHECK(status["pending"] == 0);
  CHECK(status["dropped_contributions"] == 4);
}

TEST_CASE("nothing is applied before the base is durable, nor further ahead than the flush queue") {
  OwnerRig rig;
  for (StepNumber step = 1; step <= 5; ++step) rig.all_of(step);
  rig.wire();
  CHECK(rig.keeper.expect_record()->step == 0);
  CHECK(rig.coordinator.expect<Applied>(applied_atom_v).step == 0);
  CHECK(rig.nothing_applied());
  rig.durable(0, false);  // a failure makes nothing durable
  CHECK(rig.nothing_applied());
  rig.durable(0);
  rig.expect_applied(1);
  rig.expect_applied(2);
  CHECK(rig.nothing_applied());
  CHECK(rig.keeper.status(rig.owner)["waits_for_flush"].get<int>() > 0);
  rig.durable(1);
  rig.expect_applied(3);
  CHECK(rig.nothing_applied());
  rig.durable(3);
  rig.expect_applied(4);
  rig.expect_applied(5);
}

TEST_CASE("a skipped step is an empty log") {
  OwnerRig rig;
  rig.start();
  rig.go(1, Verdict::kSkipped);
  rig.expect_applied(1, Verdict::kSkipped);
}

TEST_CASE("a step that cannot be applied is reported, and the shard stays") {
  OwnerRig rig;
  rig.start();
  auto bad = std::make_shared<Go>();
  bad->scalars = test::scalars_of(*rig.plan, 1);
  bad->first_order = 1;
  bad->scalars.param_state[1] = replica::ParamState::kStale;
  rig.contribute(1, 0);
  rig.contribute(1, 1);
  rig.coordinator.self->send(rig.owner, go_atom_v, GoPtr(bad));
  const Applied failed = rig.coordinator.expect<Applied>(applied_atom_v);
  CHECK_FALSE(failed.outcome.ok);
  CHECK(failed.step == 1);
  CHECK(failed.outcome.error.code == ErrorCode::kGradientUnwired);
  rig.all_of(2);
  CHECK(rig.nothing_applied());
  const json status = rig.keeper.status(rig.owner);
  CHECK(status["version"] == 0);
  CHECK(status["state"] == "failed");
  CHECK(status["digest"] == to_hex(rig.twin->digest().sha));
}

TEST_CASE("a full version goes along at its steps, and stays what it was") {
  OwnerRig rig(4, 100);  // shard 1 of 4: steps 1, 5, 9
  rig.start();
  ShardRecordPtr at_five;
  std::vector<float> expected;
  for (StepNumber step = 1; step <= 9; ++step) {
    rig.all_of(step);
    const ShardRecordPtr record = rig.expect_applied(step);
    CHECK(record->commit.full.empty() == (step % 4 != 1));
    if (step == 5) {
      at_five = record;
      expected.assign(rig.twin->kind(0).begin(), rig.twin->kind(0).end());
    }
  }
  REQUIRE(at_five);
  const ByteSpan bytes = at_five->commit.full[0].bytes[0];
  REQUIRE(bytes.size() == expected.size() * 4);
  CHECK(std::memcmp(bytes.data(), expected.data(), bytes.size()) == 0);
}

TEST_CASE("contributions of another lineage, of a far step or of an order that was given up are not used") {
  OwnerRig rig;
  rig.start();
  rig.contribute(1, 0, 2);  // another lineage
  rig.contribute(~StepNumber{0}, 0);
  rig.contribute(1, 1, 1, 10, 500);  // an order that was given up, with other bytes
  rig.contribute(1, 1, 1, 20);
  rig.contribute(1, 1, 1, 11, 500);  // and one that is late
  rig.go(1, Verdict::kApplied, 20);
  CHECK(rig.nothing_applied());
  rig.contribute(1, 0, 1, 21);
  rig.expect_applied(1);
  CHECK(rig.keeper.status(rig.owner)["dropped_contributions"] == 2);
}

TEST_CASE("a recovered shard says that it is durable and writes no base") {
  OwnerRig rig;
  ShardOwnerOptions options;
  options.plan = rig.plan;
  options.shard = test::fresh_shard(*rig.plan, 1);
  options.durable = true;
  rig.keeper.end(rig.owner);
  rig.owner = spawn_shard_owner(rig.system, std::move(options));
  rig.wire();
  const Durable durable = rig.coordinator.expect<Durable>(durable_atom_v);
  CHECK(durable.shard == 1);
  CHECK(durable.step == 0);
  CHECK(rig.coordinator.expect<Applied>(applied_atom_v).step == 0);
  CHECK_FALSE(rig.keeper.next_record(std::chrono::milliseconds(60)));
  rig.all_of(1);
  rig.expect_applied(1);
}

TEST_CASE("a full version that a peer waits for goes along with the next step") {
  OwnerRig rig;
  rig.start();
  rig.all_of(1);
  rig.expect_applied(1);                                                  // not durable yet
  rig.coordinator.self->send(rig.owner, full_atom_v, ~std::uint64_t{0});  // what is far away means the next one
  CHECK_FALSE(rig.keeper.next_record(std::chrono::milliseconds(60)));
  rig.all_of(2);
  CHECK_FALSE(rig.expect_applied(2)->commit.full.empty());
  rig.durable(1);
  rig.durable(2);
  CHECK_FALSE(rig.keeper.next_record(std::chrono::milliseconds(60)));  // once
  rig.all_of(3);
  CHECK(rig.expect_applied(3)->commit.full.empty());
}

TEST_CASE("a released owner lets go once, and nothing makes it do anything after that") {
  OwnerRig rig;
  const auto told = std::make_shared<std::atomic<int>>(0);
  ShardOwnerOptions options;
  options.plan = rig.plan;
  options.shard = test::fresh_shard(*rig.plan, 1);
  options.durable = true;
  options.on_released = [told](ShardId id) {
    CHECK(id == 1);
    ++*told;
  };
  rig.keeper.end(rig.owner);
  rig.owner = spawn_shard_owner(rig.system, std::move(options));
  const auto release = [&] { rig.coordinator.self->send(rig.owner, release_atom_v); };
  const auto released = [&](std::chrono::milliseconds most) {
    bool got = false;
    rig.keeper.self->receive(
        [&](release_atom, std::uint32_t lineage, std::uint32_t shard) {
          CHECK(lineage == 1);
          CHECK(shard == 1);
          got = true;
        },
        caf::after(most) >> [] {});
    return got;
  };
  release();  // it is not connected yet
  CHECK_FALSE(released(std::chrono::milliseconds(60)));
  rig.wire();
  CHECK(rig.coordinator.expect<Applied>(applied_atom_v).step == 0);
  rig.contribute(1, 0);
  rig.contribute(1, 1);
  release();
  release();
  CHECK(released(std::chrono::seconds(20)));
  CHECK_FALSE(released(std::chrono::milliseconds(60)));
  CHECK(*told == 1);
  rig.all_of(1);
  rig.coordinator.self->send(rig.owner, full_atom_v, std::uint64_t{0});
  rig.durable(0);
  CHECK(rig.nothing_applied());
  CHECK_FALSE(rig.keeper.next_record(std::chrono::milliseconds(60)));
  const json status = rig.keeper.status(rig.owner);
  CHECK(status["state"] == "released");
  CHECK(status["version"] == 0);
  CHECK(status["pending"] == 0);
}

TEST_CASE("contributions are held for so many steps after the version, and not for more") {
  OwnerRig rig;
  ShardOwnerOptions options;
  options.plan = rig.plan;
  options.shard = test::fresh_shard(*rig.plan, 1);
  options.durable = true;
  options.hold_steps = 3;
  rig.keeper.end(rig.owner);
  rig.owner = spawn_shard_owner(rig.system, std::move(options));
  for (StepNumber step = 1; step <= 6; ++step) rig.contribute(step, 0);
  const json status = rig.keeper.status(rig.owner);
  CHECK(status["pending"] == 3);
  CHECK(status["dropped_contributions"] == 3);
}

TEST_CASE("without memory for a copy the first version waits, and a later one comes with a later step") {
  // Parameters and momentum of shard 1, in bytes.
  const JobPlanPtr plan = test::plan_of(test::three_shards(test::sgd()));
  const std::uint64_t copy = plan->shards.shards()[1].elements * 4 * 2;
  const auto memory = std::make_shared<MemoryLedger>(2 * copy);
  REQUIRE(memory->take(MemoryAccount::kOps, copy + 1));
  OwnerRig rig(4, 100, memory);  // full versions at steps 1, 5, 9
  rig.wire();
  CHECK(rig.coordinator.expect<Applied>(applied_atom_v).step == 0);
  rig.all_of(1);
  CHECK(rig.nothing_applied());
  CHECK(rig.keeper.status(rig.owner)["waits_for_memory"].get<int>() > 0);
  CHECK(memory->usage(MemoryAccount::kVersions).refused > 0);
  memory->give_back(MemoryAccount::kOps, copy + 1);
  {
    const ShardRecordPtr base = rig.keeper.expect_record();
    CHECK(base->step == 0);
    CHECK_FALSE(base->commit.full.empty());
    CHECK(memory->usage(MemoryAccount::kVersions).in_use_bytes == copy);
    REQUIRE(memory->take(MemoryAccount::kOps, copy));
    rig.durable(0);
    // Step 1 is due to bring a full version, and has no memory for it: its log goes on without.
    CHECK(rig.expect_applied(1)->commit.full.empty());
  }
  memory->give_back(MemoryAccount::kOps, copy);
  rig.all_of(2);
  const ShardRecordPtr late = rig.expect_applied(2);
  CHECK_FALSE(late->commit.full.empty());
  rig.all_of(3);
  CHECK(rig.expect_applied(3)->commit.full.empty());
  CHECK(memory->usage(MemoryAccount::kVersions).peak_bytes <= 2 * copy);
}

}  // namespace gradtap::actors
