// A shard owner whose own tap lost bytes, or whose store is empty: what it asks of peers, and what it does with
// answers.
#include <mutex>
#include <thread>

#include <doctest/doctest.h>

#include "actors/shard_owner.h"
#include "tests/unit/actors/contribution_fixture.h"
#include "tests/unit/actors/fake_actor.h"

namespace gradtap::actors {
namespace {

using replica::Verdict;
using test::json;

PulledGradientPtr gradient(std::vector<std::uint8_t> bytes, StepNumber step, std::optional<Sha256> digest = {}) {
  auto pulled = std::make_shared<PulledGradient>();
  pulled->shard = 1;
  pulled->step = step;
  pulled->bytes = std::move(bytes);
  pulled->digest = digest;
  pulled->source = "tap1";
  return pulled;
}
PulledGradientPtr no_gradient(ErrorCode code) {
  auto pulled = std::make_shared<PulledGradient>();
  pulled->outcome = {false, {code, "not here", {}, {}, {}, {}}};
  return pulled;
}
PulledVersionPtr version(std::shared_ptr<replica::Shard> shard) {
  auto pulled = std::make_shared<PulledVersion>();
  pulled->shard = std::move(shard);
  if (!pulled->shard) pulled->outcome = {false, {ErrorCode::kStepUnavailable, "no live peer has it", {}, {}, {}, {}}};
  return pulled;
}

// Shard 1 of three: the end of a, all of b, the beginning of c.
struct FetchRig {
  JobPlanPtr plan = test::plan_of(test::three_shards(test::sgd()));
  test::Contributor contributor{plan, test::layout_of(*plan, {{2}, {1, 0}})};
  caf::actor_system_config config;
  caf::actor_system system{config};
  test::Probe coordinator{system}, keeper{system};
  std::shared_ptr<replica::Shard> twin = test::fresh_shard(*plan, 1);
  std::shared_ptr<test::Script<PulledGradientPtr>> gradients = std::make_shared<test::Script<PulledGradientPtr>>();
  std::shared_ptr<test::Script<PulledVersionPtr>> versions = std::make_shared<test::Script<PulledVersionPtr>>();
  std::shared_ptr<test::Log<StepNumber>> pulled = std::make_shared<test::Log<StepNumber>>();
  std::shared_ptr<test::Log<StepNumber>> versions_asked = std::make_shared<test::Log<StepNumber>>();
  std::shared_ptr<std::mutex> gate = std::make_shared<std::mutex>();  // closed: the fetcher is still waiting for a peer
  FetcherActor fetcher;
  OwnerActor owner;

  explicit FetchRig(bool with_shard = true) {
    fetcher = test::spawn_fake<FetcherActor>(
        system,
        [gradients = gradients, pulled = pulled, gate = gate](pull_atom, std::uint32_t lineage, std::uint32_t shard,
                                                              std::uint64_t step) {
          CHECK(lineage == 1);
          CHECK(shard == 1);
          pulled->add(step);
          const std::lock_guard open(*gate);
          return gradients->next(no_gradient(ErrorCode::kTimeout));
        },
        [versions = versions, asked = versions_asked](version_atom, std::uint32_t shard, std::uint64_t at_least) {
          CHECK(shard == 1);
          asked->add(at_least);
          return versions->next(version(nullptr));
        });
    ShardOwnerOptions options;
    options.plan = plan;
    options.id = 1;
    options.full_every_steps = 0;
    if (with_shard) {
      options.shard = test::fresh_shard(*plan, 1);
      options.durable = true;
    }
    owner = spawn_shard_owner(system, std::move(options));
  }
  ~FetchRig() {
    keeper.end(owner);
    keeper.end(fetcher);
  }

  void wire() {
    auto wiring = std::make_shared<Wiring>();
    wiring->coordinator = coordinator.as<CoordinatorActor>();
    wiring->keeper = keeper.as<KeeperActor>();
    wiring->fetcher = fetcher;
    keeper.self->send(owner, wire_atom_v, WiringPtr(wiring));
  }
  void start() {
    wire();
    CHECK(coordinator.expect<Applied>(applied_atom_v).step == 0);
  }
  [[nodiscard]] GoPtr go(StepNumber step, Verdict verdict = Verdict::kApplied) const {
    auto message = std::make_shared<Go>();
    message->scalars = test::scalars_of(*plan, step, verdict);
    return message;
  }
  void fetch(StepNumber step, Verdict verdict = Verdict::kApplied) {
    coordinator.self->send(owner, fetch_atom_v, go(step, verdict));
  }
  void durable(StepNumber step) { keeper.self->send(owner, durable_atom_v, Durable{1, step, {}}); }
  [[nodiscard]] std::vector<std::uint8_t> bytes(StepNumber step) const { return test::gradient_bytes(*plan, 1, step); }
  // What the shard is after one more step, by the kernel itself.
  Sha256 advance_twin(StepNumber step, Verdict verdict = Verdict::kApplied) {
    const auto values = test::shard_gradient(*plan, 1, step);
    test::require_ok(twin->apply(test::scalars_of(*plan, step, verdict),
                                 replica::GradientView{replica::contiguous_pieces(twin->range(), values.data())}));
    return twin->digest().sha;
  }
  void expect_applied(StepNumber step, const Sha256& digest) {
    const Applied applied = coordinator.expect<Applied>(applied_atom_v);
    CHECK(applied.outcome.ok);
    CHECK(applied.step == step);
    CHECK(applied.digest == digest);
  }
  [[nodiscard]] bool nothing_applied() { return coordinator.silent<Applied>(applied_atom_v); }
  [[nodiscard]] json status() { return keeper.status(owner); }
  // Answers of peers come in their own time.
  [[nodiscard]] bool comes_to(const char* counter, std::uint64_t value) {
    for (int i = 0; i < 2000; ++i) {
      if (status()[counter] == value) return true;
      std::this_thread::sleep_for(std::chrono::milliseconds(10));
    }
    return false;
  }
};

std::vector<std::uint8_t> log_of(const ShardRecord& record) {
  std::vector<std::uint8_t> log;
  for (const ByteSpan& span : record.commit.log) log.insert(log.end(), span.begin(), span.end());
  return log;
}

}  // namespace

TEST_CASE("a gradient from a peer is applied with the step's scalars and becomes a log like any other") {
  FetchRig rig;
  rig.start();
  const Sha256 expected = rig.advance_twin(1);
  rig.gradients->then(gradient(rig.bytes(1), 1, expected));
  rig.fetch(1);
  rig.expect_applied(1, expected);
  const ShardRecordPtr record = rig.keeper.expect_record();
  CHECK(record->step == 1);
  CHECK(record->commit.has_log);
  CHECK(record->commit.full.empty());
  CHECK(record->commit.state_digest == expected);
  CHECK(log_of(*record) == rig.bytes(1));
  CHECK(rig.pulled->all() == std::vector<StepNumber>{1});
  CHECK(rig.status()["fetched"] == 1);
  // A tap that kept it knows no digest: the gradient is applied all the same.
  rig.durable(1);
  rig.gradients->then(gradient(rig.bytes(2), 2));
  rig.fetch(2);
  rig.expect_applied(2, rig.advance_twin(2));
}

TEST_CASE("a skipped step is fetched as nothing") {
  FetchRig rig;
  rig.start();
  const Sha256 expected = rig.advance_twin(1, Verdict::kSkipped);
  rig.gradients->then(gradient({}, 1, expected));
  rig.fetch(1, Verdict::kSkipped);
  rig.expect_applied(1, expected);
  CHECK(log_of(*rig.keeper.expect_record()).empty());
}

TEST_CASE("a gradient of another length is refused and the step stays open") {
  FetchRig rig;
  rig.start();
  auto cut = rig.bytes(1);
  cut.pop_back();
  auto longer = rig.bytes(1);
  longer.resize(longer.size() + 4);
  std::uint64_t refused = 0;
  for (const auto& wrong : {cut, longer, std::vector<std::uint8_t>()}) {
    rig.gradients->then(gradient(wrong, 1));
    rig.fetch(1);
    CHECK(rig.comes_to("fetches_failed", ++refused));
  }
  CHECK(rig.nothing_applied());
  const json status = rig.status();
  CHECK(status["version"] == 0);
  CHECK(status["state"] == "in_sync");
  CHECK(status["error"].get<std::string>().find("tap1 sent 0 bytes") != std::string::npos);
  rig.gradients->then(gradient(rig.bytes(1), 1, std::nullopt));
  rig.fetch(1);
  rig.expect_applied(1, rig.advance_twin(1));
  // A skipped step that brings bytes is none.
  rig.durable(1);
  rig.gradients->then(gradient(rig.bytes(2), 2));
  rig.fetch(2, Verdict::kSkipped);
  CHECK(rig.comes_to("fetches_failed", 4));
  CHECK(rig.status()["version"] == 1);
}

TEST_CASE("a digest that is not the co-owner's stops the shard") {
  FetchRig rig;
  rig.start();
  Sha256 theirs = rig.advance_twin(1);
  theirs[0] ^= 1;
  rig.gradients->then(gradient(rig.bytes(1), 1, theirs));
  rig.fetch(1);
  const Applied applied = rig.coordinator.expect<Applied>(applied_atom_v);
  CHECK_FALSE(applied.outcome.ok);
  CHECK(applied.step == 1);
  CHECK(applied.outcome.error.code == ErrorCode::kDigestMismatch);
  CHECK(applied.outcome.error.where.find("tap1") != std::string::npos);
  CHECK(rig.status()["state"] == "failed");
  CHECK_FALSE(rig.keeper.next_record(std::chrono::milliseconds(60)));  // nothing of it becomes durable
  rig.fetch(2);
  CHECK(rig.nothing_applied());
  CHECK(rig.status()["version"] == 1);
  CHECK(rig.pulled->all().size() == 1);
}

TEST_CASE("only the next step is asked for, once at a time") {
  FetchRig rig;
  rig.start();
  for (const StepNumber step : {0U, 2U, 7U}) rig.fetch(step);
  CHECK(rig.nothing_applied());
  CHECK(rig.pulled->all().empty());
  rig.gradients->then(no_gradient(ErrorCode::kTimeout));
  {
    const std::lock_guard closed(*rig.gate);
    rig.fetch(1);
    rig.fetch(1);
    CHECK(rig.status()["fetches_failed"] == 0);
  }
  CHECK(rig.comes_to("fetches_failed", 1));
  CHECK(rig.versions_asked->all().empty());  // a peer that did not answer may have it
  CHECK(rig.pulled->all() == std::vector<StepNumber>{1});
  rig.fetch(1);
  CHECK(rig.comes_to("fetches_failed", 2));
  CHECK(rig.pulled->all() == std::vector<StepNumber>{1, 1});
}

TEST_CASE("what the own tap brought first is kept, and the answer of the peer comes too late") {
  FetchRig rig;
  rig.start();
  const Sha256 expected = rig.advance_twin(1);
  rig.gradients->then(gradient(rig.bytes(9), 1));
  {
    const std::lock_guard closed(*rig.gate);
    rig.fetch(1);
    for (const std::uint32_t bucket : {0U, 1U})
      rig.coordinator.self->send(rig.owner, contrib_atom_v, rig.contributor.make(1, bucket, 1));
    rig.coordinator.self->send(rig.owner, go_atom_v, rig.go(1));
    rig.expect_applied(1, expected);
  }
  // The next fetch is asked once the late answer is in.
  rig.durable(1);
  rig.gradients->then(no_gradient(ErrorCode::kTimeout));
  for (int i = 0; i < 2000 && rig.pulled->all().size() < 2; ++i) {
    rig.fetch(2);
    std::this_thread::sleep_for(std::chrono::milliseconds(10));
  }
  CHECK(rig.pulled->all() == std::vector<StepNumber>{1, 2});
  CHECK(rig.nothing_applied());
  CHECK(rig.status()["digest"] == to_hex(expected));
  CHECK(rig.status()["version"] == 1);
  CHECK(rig.status()["fetched"] == 0);
}

TEST_CASE("a step that nobody keeps any more is stepped over by a whole version, durable first") {
  FetchRig rig;
  rig.start();
  for (StepNumber step = 1; step <= 5; ++step) (void)rig.advance_twin(step);
  const Sha256 at_five = rig.twin->digest().sha;
  rig.gradients->then(no_gradient(ErrorCode::kStepUnavailable));
  rig.versions->then(version(std::move(rig.twin)));
  rig.fetch(1);
  std::optional<StepNumber> jumped;
  rig.coordinator.self->receive(
      [&](version_atom, std::uint32_t shard, std::uint64_t step) {
        CHECK(shard == 1);
        jumped = step;
      },
      caf::after(std::chrono::seconds(20)) >> [] {});
  CHECK(jumped == 5);
  rig.expect_applied(5, at_five);
  const ShardRecordPtr base = rig.keeper.expect_record();
  CHECK(base->step == 5);
  CHECK_FALSE(base->commit.has_log);
  CHECK_FALSE(base->commit.full.empty());
  CHECK(base->commit.state_digest == at_five);
  CHECK(rig.versions_asked->all() == std::vector<StepNumber>{1});
  // What comes meanwhile waits for the disk.
  for (const std::uint32_t bucket : {0U, 1U})
    rig.coordinator.self->send(rig.owner, contrib_atom_v, rig.contributor.make(6, bucket, 1));
  rig.coordinator.self->send(rig.owner, go_atom_v, rig.go(6));
  CHECK(rig.nothing_applied());
  CHECK(rig.status()["state"] == "baseline");
  rig.durable(5);
  CHECK(rig.coordinator.expect<Applied>(applied_atom_v).step == 6);
  CHECK(log_of(*rig.keeper.expect_record()) == rig.bytes(6));
  CHECK(rig.status()["jumps"] == 1);
}

TEST_CASE("a version that is not newer is not taken") {
  FetchRig rig;
  rig.start();
  rig.gradients->then(no_gradient(ErrorCode::kStepUnavailable));
  rig.versions->then(version(test::fresh_shard(*rig.plan, 1)));  // at step 0
  rig.fetch(1);
  CHECK(rig.comes_to("fetches_failed", 2));  // the gradient, then the version
  const json status = rig.status();
  CHECK(status["jumps"] == 0);
  CHECK(status["version"] == 0);
  CHECK(status["state"] == "in_sync");
}

TEST_CASE("an owner with nothing asks when it is told to, and starts from what a peer has") {
  FetchRig rig(false);
  CHECK(rig.status()["state"] == "syncing");
  (void)rig.advance_twin(1);
  const Sha256 at_one = rig.twin->digest().sha;
  rig.versions->then(version(nullptr));
  rig.versions->then(version(std::move(rig.twin)));
  const auto bring = [&](StepNumber step) {
    for (const std::uint32_t bucket : {0U, 1U})
      rig.coordinator.self->send(rig.owner, contrib_atom_v, rig.contributor.make(step, bucket, 1));
    rig.coordinator.self->send(rig.owner, go_atom_v, rig.go(step));
  };
  bring(1);
  rig.wire();
  CHECK(rig.nothing_applied());
  CHECK(rig.versions_asked->all().empty());  // the coordinator knows when
  // Without a version nothing is kept: memory would fill with what comes from logs anyhow.
  CHECK(rig.status()["dropped_contributions"] == 2);
  rig.coordinator.self->send(rig.owner, version_atom_v, std::uint64_t{0});
  CHECK(rig.comes_to("fetches_failed", 1));
  rig.coordinator.self->send(rig.owner, version_atom_v, std::uint64_t{1});
  rig.expect_applied(1, at_one);
  CHECK(rig.versions_asked->all() == std::vector<StepNumber>{0, 1});
  bring(2);
  const ShardRecordPtr base = rig.keeper.expect_record();
  CHECK(base->step == 1);
  CHECK_FALSE(base->commit.full.empty());
  CHECK(rig.nothing_applied());
  rig.durable(1);
  CHECK(rig.coordinator.expect<Applied>(applied_atom_v).step == 2);
  CHECK(rig.status()["state"] == "in_sync");
}

TEST_CASE("an owner with nothing that is told to fetch a step asks for a version instead") {
  FetchRig rig(false);
  rig.wire();
  rig.fetch(6);
  CHECK(rig.comes_to("fetches_failed", 1));
  CHECK(rig.versions_asked->all() == std::vector<StepNumber>{6});
  CHECK(rig.pulled->all().empty());
}

TEST_CASE("a version that comes after the owner was released is not taken") {
  FetchRig rig(false);
  rig.wire();
  (void)rig.advance_twin(1);
  rig.versions->then(version(std::move(rig.twin)));
  {
    // The fetcher is busy with a gradient for somebody else: the version's answer comes after the release.
    const std::lock_guard closed(*rig.gate);
    rig.keeper.self->send(rig.fetcher, pull_atom_v, std::uint32_t{1}, std::uint32_t{1}, std::uint64_t{1});
    rig.coordinator.self->send(rig.owner, version_atom_v, std::uint64_t{0});
    CHECK(rig.status()["state"] == "syncing");
    rig.coordinator.self->send(rig.owner, release_atom_v);
    CHECK(rig.status()["state"] == "released");
  }
  for (int i = 0; i < 2000 && rig.versions_asked->all().empty(); ++i)
    std::this_thread::sleep_for(std::chrono::milliseconds(10));
  CHECK(rig.nothing_applied());
  CHECK_FALSE(rig.keeper.next_record(std::chrono::milliseconds(60)));
  CHECK(rig.status()["jumps"] == 0);
}

}  // namespace gradtap::actors
