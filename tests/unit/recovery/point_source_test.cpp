#include "recovery/point_source.h"

#include <atomic>

#include <doctest/doctest.h>

#include "recovery/rebuild_shard.h"
#include "tests/unit/recovery/published_job.h"

namespace gradtap::recovery {
namespace {

using test::PublishedJob;
using test::text_of;

OpenPoint open(const PublishedJob& job, StepNumber step) {
  auto point = open_point(job.store(), "job", 1, step);
  if (!point) FAIL(point.error().text());
  return std::move(*point);
}

void check_state(const PublishedJob& job, StepNumber step) {
  const OpenPoint point = open(job, step);
  for (const auto& range : point.plan->shards.shards()) {
    const auto shard = rebuild_shard(*point.source, *point.plan, range.id, step);
    REQUIRE_MESSAGE(shard, shard.error().text());
    job.job.check_same(*shard, step);
  }
}

std::string code_of(const Error& error) {
  return std::string(error_name(error.code));
}

// A node that keeps another full version than its co-owner.
class OnlyTheFirstFull final : public ShardSource {
 public:
  explicit OnlyTheFirstFull(const ShardSource& inner) : inner_(inner) {}
  Result<std::vector<StepNumber>> full_steps(ShardId) const override { return std::vector<StepNumber>{0}; }
  Result<std::vector<FullKind>> full_version(ShardId shard, StepNumber step) const override {
    return inner_.full_version(shard, step);
  }
  Result<SourceBytes> log(ShardId shard, StepNumber step) const override { return inner_.log(shard, step); }
  Result<std::vector<std::uint8_t>> step_message(StepNumber step) const override { return inner_.step_message(step); }
  Result<std::optional<Sha256>> state_digest(ShardId shard, StepNumber step) const override {
    return inner_.state_digest(shard, step);
  }

 private:
  const ShardSource& inner_;
};

// Counts what is read through it.
class CountedReads final : public ShardSource {
 public:
  explicit CountedReads(std::shared_ptr<const ShardSource> inner) : inner_(std::move(inner)) {}
  Result<std::vector<StepNumber>> full_steps(ShardId shard) const override { return inner_->full_steps(shard); }
  Result<std::vector<FullKind>> full_version(ShardId shard, StepNumber step) const override {
    ++fulls;
    return inner_->full_version(shard, step);
  }
  Result<SourceBytes> log(ShardId shard, StepNumber step) const override { return inner_->log(shard, step); }
  Result<std::vector<std::uint8_t>> step_message(StepNumber step) const override { return inner_->step_message(step); }
  Result<std::optional<Sha256>> state_digest(ShardId shard, StepNumber step) const override {
    return inner_->state_digest(shard, step);
  }
  mutable std::atomic<int> fulls = 0;

 private:
  std::shared_ptr<const ShardSource> inner_;
};

}  // namespace

TEST_CASE("every point is the state of its step, whatever its bases and logs are") {
  for (const test::json& optimizer : {test::sgd(), test::adamw()}) {
    PublishedJob job(test::three_shards(optimizer));
    job.publish();
    for (StepNumber step = 1; step <= 7; ++step) {
      job.step(step == 4, step == 3 ? replica::Verdict::kSkipped : replica::Verdict::kApplied);
      job.publish(3);
    }
    for (StepNumber step = 0; step <= 7; ++step) check_state(job, step);
  }
}

TEST_CASE("a point takes over the objects of the one before it, and its base follows the newest full version") {
  PublishedJob job(test::three_shards(test::adamw()));
  const auto first = job.publish();
  job.step();
  const auto second = job.publish();
  job.step();
  const auto third = job.publish();
  job.step(true);  // full version at 3
  job.step();
  const auto fourth = job.publish();  // of step 4: step 3 was not published
  job.step(true);                     // full version at 5
  const auto fifth = job.publish();
  for (ShardId id = 0; id < 3; ++id) {
    CHECK(first.shards[id].logs.empty());
    CHECK(second.shards[id].base == first.shards[id].base);
    CHECK(third.shards[id].base == first.shards[id].base);
    REQUIRE(third.shards[id].logs.size() == 2);
    CHECK(third.shards[id].logs[0] == second.shards[id].logs[0]);
    CHECK(fourth.shards[id].base_step == 3);
    REQUIRE(fourth.shards[id].logs.size() == 1);
    CHECK(fourth.shards[id].logs[0].step == 4);
    CHECK(fifth.shards[id].base_step == 5);
    CHECK(fifth.shards[id].logs.empty());
  }
  CHECK(third.steps.size() == 2);
  CHECK(third.steps[0] == second.steps[0]);
  CHECK(fourth.steps.size() == 1);
  CHECK(fifth.steps.empty());
}

TEST_CASE("a base that moves takes the logs after it from the point before: nothing is uploaded twice") {
  PublishedJob job(test::three_shards(test::sgd()));
  job.step();
  job.step(true);  // full version at 2
  job.step();
  const auto before = put_shard(job.target(), OnlyTheFirstFull(*job.source), 1, 3, nullptr, 64);
  REQUIRE(before);
  REQUIRE(before->base_step == 0);
  REQUIRE(before->logs.size() == 3);
  job.step();
  const auto after = put_shard(job.target(), *job.source, 1, 4, &*before, 64);
  REQUIRE(after);
  CHECK(after->base_step == 2);
  REQUIRE(after->logs.size() == 2);
  CHECK(after->logs[0] == before->logs[2]);
  CHECK(after->logs[1].step == 4);
}

TEST_CASE("where logs are gone a newer full version stands for them") {
  PublishedJob job(test::three_shards(test::sgd()));
  job.publish();
  for (int i = 0; i < 4; ++i) job.step(i == 2);
  const auto gone = job.job.store->retain(job.job.plan->job, 1, 3, 1);
  REQUIRE(gone);
  REQUIRE(gone->logs > 0);
  const auto point = job.publish();
  for (ShardId id = 0; id < 3; ++id) CHECK(point.shards[id].base_step == 3);
  check_state(job, 4);
}

TEST_CASE("an export from a point is byte for byte the export from the store") {
  PublishedJob job(test::three_shards(test::adamw()));
  for (int i = 0; i < 3; ++i) job.step();
  job.publish();
  const OpenPoint point = open(job, 3);
  for (const StateFormat format : {StateFormat::kSafetensors, StateFormat::kTorch})
    for (const bool optimizer : {false, true}) {
      const auto from_store = prepare_state(job.source, job.job.plan, 3, {optimizer, format});
      const auto from_point = prepare_state(point.source, point.plan, 3, {optimizer, format});
      REQUIRE(from_store);
      REQUIRE(from_point);
      CHECK(text_of(*from_point) == text_of(*from_store));
    }
}

TEST_CASE("an export is the same with several threads and any memory, and what is kept is read once") {
  PublishedJob job(test::three_shards(test::adamw()));
  for (int i = 0; i < 3; ++i) job.step();
  job.publish();
  const OpenPoint point = open(job, 3);
  const auto plain = prepare_state(point.source, point.plan, 3, {true, StateFormat::kSafetensors});
  REQUIRE(plain);
  const std::string expected = text_of(*plain);
  const std::uint64_t first = point.plan->shards.shards()[0].elements * sizeof(float) * 3;
  struct Case {
    std::uint64_t kept_bytes;
    int fulls;
  };
  for (const Case c : {Case{0, 6}, Case{first - 1, 6}, Case{first, 5}, Case{1U << 30, 3}})
    for (const unsigned threads : {1U, 2U, 8U}) {
      const auto counted = std::make_shared<const CountedReads>(point.source);
      const RebuildLimits limits{threads, c.kept_bytes};
      const auto stream = prepare_state(counted, point.plan, 3, {true, StateFormat::kSafetensors, {}, limits});
      REQUIRE(stream);
      CHECK(text_of(*stream) == expected);
      CHECK(counted->fulls == c.fulls);
      CHECK(text_of(*stream) == expected);  // a second run rebuilds everything
      CHECK(counted->fulls == c.fulls + 3);
    }
}

TEST_CASE("of several damaged shards the lowest one is named, however many threads read") {
  PublishedJob job(test::three_shards(test::adamw()));
  job.step();
  const auto record = job.publish();
  const OpenPoint point = open(job, 1);
  job.flip(record.shards[2].base.key, 500);
  job.flip(record.shards[1].base.key, 500);
  for (const unsigned threads : {1U, 3U}) {
    const RebuildLimits limits{threads, 1U << 30};
    const auto stream = prepare_state(point.source, point.plan, 1, {true, StateFormat::kSafetensors, {}, limits});
    REQUIRE_FALSE(stream);
    CHECK(stream.error().where.find(record.shards[1].base.key) != std::string::npos);
  }
}

TEST_CASE("a flipped byte of any object is seen, and named by its key") {
  PublishedJob job(test::three_shards(test::sgd()));
  job.step();
  const auto point = job.publish();
  const auto read_all = [&]() -> Status {
    const auto opened = open_point(job.store(), "job", 1, 1);
    if (!opened) return std::unexpected(opened.error());
    if (const auto side = read_side_state(*opened); !side) return std::unexpected(side.error());
    for (ShardId id = 0; id < 3; ++id)
      if (const auto shard = rebuild_shard(*opened->source, *opened->plan, id, 1); !shard)
        return std::unexpected(shard.error());
    return {};
  };
  REQUIRE(read_all());
  for (const storage::PointObject& object : storage::objects_of(point)) {
    CAPTURE(object.ref->key);
    for (const std::uint64_t offset : {std::uint64_t{1}, object.ref->bytes / 2, object.ref->bytes - 1}) {
      job.flip(object.ref->key, offset);
      const Status status = read_all();
      REQUIRE_FALSE(status);
      CHECK(status.error().where.find(object.ref->key) != std::string::npos);
      job.flip(object.ref->key, offset);
    }
  }
  CHECK(read_all());
}

TEST_CASE("a record that does not fit what it names is refused by name") {
  PublishedJob job(test::three_shards(test::sgd()));
  job.step();
  const auto refusal = [&](const std::function<void(schema::PointRecord&)>& change) {
    auto record = assemble_point(*job.job.plan, job.side_of(1), job.facts(1));
    REQUIRE(record);
    storage::StoredPoint stored;
    stored.record = *record;
    change(stored.record);
    const auto point = open_point(job.store(), stored);
    if (!point) return code_of(point.error());
    if (const auto side = read_side_state(*point); !side) return code_of(side.error());
    for (ShardId id = 0; id < 3; ++id)
      if (const auto shard = rebuild_shard(*point->source, *point->plan, id, 1); !shard) return code_of(shard.error());
    return std::string("read");
  };
  CHECK(refusal([](auto&) {}) == "read");
  CHECK(refusal([](auto& r) { r.canonical.schema_id[0] ^= 1; }) == "OBJECT_FOREIGN");
  CHECK(refusal([](auto& r) { r.canonical.job[0] ^= 1; }) == "OBJECT_FOREIGN");
  CHECK(refusal([](auto& r) { r.canonical.lineage = 2; }) == "OBJECT_FOREIGN");
  CHECK(refusal([](auto& r) { r.canonical.world = 3; }) == "OBJECT_FOREIGN");
  CHECK(refusal([](auto& r) { r.canonical.recipe_id = "lerp+fma"; }) == "OBJECT_FOREIGN");
  CHECK(refusal([](auto& r) { r.canonical.shards.pop_back(); }) == "OBJECT_FOREIGN");
  CHECK(refusal([](auto& r) { r.canonical.state_root[0] ^= 1; }) == "DIGEST_MISMATCH");
  CHECK(refusal([](auto& r) { r.canonical.step_message[0] ^= 1; }) == "DIGEST_MISMATCH");
  CHECK(refusal([](auto& r) { r.canonical.ranks[1].digest[0] ^= 1; }) == "DIGEST_MISMATCH");
  CHECK(refusal([](auto& r) { r.shards[1].logs.clear(); }) == "STEP_UNAVAILABLE");
  // Another state under a root that fits it: only rebuilding shows it.
  CHECK(refusal([](auto& r) {
          r.canonical.shards[2].digest[5] ^= 1;
          std::vector<Sha256> digests;
          for (const auto& shard : r.canonical.shards) digests.push_back(shard.digest);
          r.canonical.state_root = test::sha_of_all(digests);
        }) == "DIGEST_MISMATCH");
}

TEST_CASE("a point needs every shard and every rank (H6, I14)") {
  PublishedJob job(test::three_shards(test::sgd()));
  job.step();
  const auto assembled = [&](schema::SideState side, const std::function<void(PointFacts&)>& change) {
    PointFacts facts = job.facts(1);
    change(facts);
    const auto record = assemble_point(*job.job.plan, side, std::move(facts));
    return record ? std::string("whole") : code_of(record.error());
  };
  CHECK(assembled(job.side_of(1), [](auto&) {}) == "whole");
  CHECK(assembled(job.side_of(1), [](auto& f) { f.shards.pop_back(); }) == "STATE_INCOMPLETE");
  CHECK(assembled(job.side_of(1), [](auto& f) { f.shard_digests.pop_back(); }) == "STATE_INCOMPLETE");
  CHECK(assembled(job.side_of(0), [](auto&) {}) == "STATE_INCOMPLETE");
  schema::SideState one_rank = job.side_of(1);
  one_rank.ranks.pop_back();
  CHECK(assembled(one_rank, [](auto&) {}) == "STATE_INCOMPLETE");
}

}  // namespace gradtap::recovery
