// PublishedJob: a StoredJob whose steps are published as recovery points in a directory.
#pragma once

#include <fstream>

#include "common/random.h"
#include "recovery/point_choice.h"
#include "recovery/point_writer.h"
#include "recovery/store_source.h"
#include "storage/directory_store.h"
#include "storage/lineage_registry.h"
#include "tests/unit/recovery/stored_job.h"

namespace gradtap::recovery::test {

struct PublishedJob {
  StoredJob job;
  storage::test::TempDir points{true};
  std::shared_ptr<storage::DirectoryStore> objects;
  SeededRandom random{7};
  std::shared_ptr<const ShardSource> source;
  std::optional<schema::PointRecord> last;
  Sha256 last_digest{};
  schema::ObjectRef meta;

  explicit PublishedJob(json body) : job(std::move(body)) {
    storage::DirectoryStoreOptions options;
    options.path = points.path;
    options.writer = "test";
    auto opened = storage::DirectoryStore::open(options);
    if (!opened) FAIL(opened.error().text());
    objects = std::move(*opened);
    storage::LineageRequest request;
    request.job_name = "job";
    request.run_nonce = std::string(32, 'a');
    request.node = "tap0";
    request.wall_ms = 1000;
    const auto grant = storage::claim_lineage(*objects, request);
    if (!grant) FAIL(grant.error().text());
    REQUIRE(grant->claim.lineage == job.plan->lineage);
    source = std::make_shared<const StoreSource>(job.store, job.plan->job, job.plan->lineage);
    auto put = put_meta(target(), job.record);
    if (!put) FAIL(put.error().text());
    meta = *put;
    for (ShardId id = 0; id < job.shards.size(); ++id) job.base(id);
  }

  PointTarget target() { return {*objects, *job.plan, random}; }

  // Steps every live shard and the store; `full`: with a full version.
  void step(bool full = false, replica::Verdict verdict = replica::Verdict::kApplied) {
    job.store_message(job.shards[0]->version() + 1, verdict);
    for (ShardId id = 0; id < job.shards.size(); ++id) job.step(id, true, full, verdict);
  }

  std::string message_of(StepNumber step) const {
    if (step == 0) return {};
    const auto bytes = source->step_message(step);
    REQUIRE(bytes);
    const auto record = schema::decode_step(*bytes);
    REQUIRE(record);
    return {record->json.begin(), record->json.end()};
  }

  static std::vector<std::uint8_t> bytes_of(const std::string& text) { return {text.begin(), text.end()}; }

  schema::SideState side_of(StepNumber step) const {
    schema::SideState side;
    side.lineage = job.plan->lineage;
    side.step = step;
    for (std::uint32_t rank = 0; rank < job.plan->world; ++rank)
      side.ranks.push_back({rank,
                            bytes_of(rank == 0 ? message_of(step) : fmt::format("{{\"rank\": {}}}", rank)),
                            {{"data", bytes_of(fmt::format("position {} of rank {}", step, rank))},
                             {"rng.torch", std::vector<std::uint8_t>(100, static_cast<std::uint8_t>(step + rank))}}});
    return side;
  }

  PointFacts facts(StepNumber step, std::uint64_t logs_max = 64) {
    PointFacts facts;
    facts.step = step;
    for (ShardId id = 0; id < job.shards.size(); ++id) {
      facts.shard_digests.push_back(job.digests[id].at(step));
      auto put = put_shard(target(), *source, id, step, last ? &last->shards[id] : nullptr, logs_max);
      if (!put) FAIL(put.error().text());
      facts.shards.push_back(*put);
    }
    auto steps =
        put_steps(target(), *source, facts.shards, step, last ? last->steps : std::vector<schema::StepObject>{});
    if (!steps) FAIL(steps.error().text());
    facts.steps = *steps;
    auto side = put_side(target(), side_of(step));
    if (!side) FAIL(side.error().text());
    facts.side = *side;
    facts.meta = meta;
    facts.step_message = bytes_of(message_of(step));
    facts.publisher = "tap0";
    facts.created_wall_ms = 5000 + step;
    facts.training = facts.verified = facts.durable = step;
    facts.software = "test";
    if (last) {
      facts.previous_step = last->canonical.step;
      facts.previous_record = last_digest;
      facts.published = last->canonical.step;
    }
    return facts;
  }

  schema::PointRecord publish(PointFacts facts) {
    auto record = assemble_point(*job.plan, side_of(facts.step), std::move(facts));
    if (!record) FAIL(record.error().text());
    const auto created = storage::create_point(*objects, *record);
    if (!created) FAIL(created.error().text());
    last = created->point.record;
    last_digest = created->point.digest;
    return *last;
  }
  schema::PointRecord publish(std::uint64_t logs_max = 64) {
    return publish(facts(job.shards[0]->version(), logs_max));
  }

  // Changes one byte of an object in place.
  void flip(const std::string& key, std::uint64_t offset) const {
    const std::string path = points.path + "/" + key;
    std::filesystem::permissions(path, std::filesystem::perms::owner_write, std::filesystem::perm_options::add);
    std::fstream file(path, std::ios::in | std::ios::out | std::ios::binary);
    REQUIRE(file.good());
    file.seekg(static_cast<std::streamoff>(offset));
    const int byte = file.get();
    REQUIRE(byte >= 0);
    file.seekp(static_cast<std::streamoff>(offset));
    file.put(static_cast<char>(byte ^ 1));
    REQUIRE(file.good());
  }
  [[nodiscard]] ObjectStorePtr store() const { return objects; }
};

inline std::string text_of(const StateStream& stream) {
  std::string out;
  REQUIRE(stream([&](const char* data, std::size_t count) {
    out.append(data, count);
    return true;
  }));
  return out;
}

}  // namespace gradtap::recovery::test
