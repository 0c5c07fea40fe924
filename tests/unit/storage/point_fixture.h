// A job's points in an object store: small objects whose bytes follow from their names, records that fit them.
#pragma once

#include <map>
#include <string>
#include <vector>

#include <doctest/doctest.h>

#include "common/sha256.h"
#include "storage/lineage_registry.h"
#include "storage/point_record.h"
#include "storage/value_format.h"
#include "tests/unit/storage/store_fixture.h"

namespace gradtap::storage::test {

template <class T>
T ok(Result<T> result) {
  if (!result) FAIL(result.error().text());
  return std::move(*result);
}

struct PointMaker {
  explicit PointMaker(ObjectStore& objects) : store(objects) {}
  ObjectStore& store;
  std::string job = "gpt-2.small";
  ShardId shards = 2;
  std::uint32_t world = 2;
  std::size_t bytes = 40;
  SeededRandom random{11};
  struct Lineage {
    LineageId parent = 0;
    StepNumber parent_step = 0;
    Sha256 parent_record{};
    schema::ObjectRef meta;
    StepNumber previous_step = 0;
    Sha256 previous_record{};
    std::map<std::pair<ShardId, StepNumber>, schema::ObjectRef> fulls, logs;
    std::map<StepNumber, schema::ObjectRef> steps;
  };
  std::map<LineageId, Lineage> lineages;

  std::string uid() { return new_uid(random); }

  LineageId start(LineageId parent = 0, StepNumber parent_step = 0) {
    LineageRequest request;
    request.job_name = job;
    request.run_nonce = new_uid(random);
    request.parent_lineage = parent;
    request.parent_step = parent_step;
    if (parent != 0)
      if (const auto point = read_point(store, job, parent, parent_step)) request.parent_record = point->digest;
    request.base_step = parent_step;
    request.node = "tap0";
    const LineageGrant grant = ok(claim_lineage(store, request));
    Lineage& lineage = lineages[grant.claim.lineage];
    lineage.parent = parent;
    lineage.parent_step = parent_step;
    lineage.parent_record = request.parent_record;
    schema::LineageRecord meta;
    meta.job = job_id(job);
    meta.job_name = job;
    meta.lineage = grant.claim.lineage;
    meta.world = world;
    lineage.meta = object(meta_key(job, meta.lineage, uid()), schema::encode(meta));
    return grant.claim.lineage;
  }

  schema::ObjectRef object(const std::string& key, const std::vector<std::uint8_t>& payload) {
    return ok(put_object(store, key, {ByteSpan(payload)}));
  }
  schema::ObjectRef full(LineageId id, ShardId shard, StepNumber step) {
    auto& ref = lineages.at(id).fulls[{shard, step}];
    if (!ref.key.empty()) return ref;
    const auto param = bytes_of(shard, step, kKindParam, bytes);
    const auto presence = bytes_of(shard, step, kKindPresence, 9);
    const auto table = encode_part_table({{kKindParam, param.size()}, {kKindPresence, presence.size()}});
    ref = ok(put_object(store, full_key(job, id, shard, step, uid()), {table, param, presence}));
    return ref;
  }
  schema::ObjectRef log(LineageId id, ShardId shard, StepNumber step) {
    auto& ref = lineages.at(id).logs[{shard, step}];
    if (ref.key.empty())
      ref = object(log_key(job, id, shard, step, uid()), bytes_of(shard, step, kKindGradient, bytes));
    return ref;
  }
  std::vector<std::uint8_t> message(LineageId id, StepNumber step, std::uint32_t rank) const {
    const std::string text = fmt_message(id, step, rank);
    return {text.begin(), text.end()};
  }
  schema::ObjectRef step_object(LineageId id, StepNumber step) {
    auto& ref = lineages.at(id).steps[step];
    if (!ref.key.empty()) return ref;
    schema::StepRecord record;
    record.lineage = id;
    record.step = step;
    record.json = message(id, step, 0);
    ref = object(step_key(job, id, step, uid()), schema::encode(record));
    return ref;
  }
  schema::SideState side(LineageId id, StepNumber step) const {
    schema::SideState state{id, step, {}};
    for (std::uint32_t rank = 0; rank < world; ++rank)
      state.ranks.push_back(
          {rank, message(id, step, rank), {{"rng.python", bytes_of(rank, step, 200, 12)}, {"scheduler", {}}}});
    return state;
  }

  // Uploads what is new and gives the record; base(shard) is the step of the shard's full version.
  schema::PointRecord record(LineageId id, StepNumber step, const std::vector<StepNumber>& base) {
    Lineage& lineage = lineages.at(id);
    schema::PointRecord out;
    schema::PointCanonical& canonical = out.canonical;
    canonical.job = job_id(job);
    canonical.job_name = job;
    canonical.lineage = id;
    canonical.parent_lineage = lineage.parent;
    canonical.parent_step = lineage.parent_step;
    canonical.parent_record = lineage.parent_record;
    canonical.step = step;
    canonical.state_root = digest_of(1000 + id, step);
    canonical.layout_id = digest_of(77, 77);
    canonical.layout_json = {'{', '}'};
    canonical.world = world;
    canonical.recipe_id = "torch1-fma";
    canonical.optimizer_class = "AdamW";
    StepNumber lowest = step;
    for (ShardId shard = 0; shard < shards; ++shard) {
      canonical.shards.push_back({shard, digest_of(shard, step)});
      schema::ShardObjects objects{shard, base[shard], full(id, shard, base[shard]), {}};
      for (StepNumber s = base[shard] + 1; s <= step; ++s) objects.logs.push_back({s, log(id, shard, s)});
      lowest = std::min(lowest, base[shard]);
      out.shards.push_back(std::move(objects));
    }
    for (StepNumber s = lowest + 1; s <= step; ++s) out.steps.push_back({s, step_object(id, s)});
    const schema::SideState state = side(id, step);
    for (const schema::SideRank& rank : state.ranks) canonical.ranks.push_back({rank.rank, schema::side_digest(rank)});
    out.side = object(side_state_key(job, id, step, uid()), ok(schema::encode(state)));
    const auto json = message(id, step, 0);
    canonical.step_message = sha256(json);
    out.meta = lineage.meta;
    out.previous_step = lineage.previous_step;
    out.previous_record = lineage.previous_record;
    out.publisher = "tap0";
    out.training = step + 1;
    out.verified = out.durable = step;
    out.software = "test";
    return out;
  }
  StoredPoint publish(LineageId id, StepNumber step, const std::vector<StepNumber>& base) {
    auto created = ok(create_point(store, record(id, step, base)));
    REQUIRE(created.outcome == PointOutcome::kCreated);
    lineages.at(id).previous_step = step;
    lineages.at(id).previous_record = created.point.digest;
    return std::move(created.point);
  }

 private:
  static std::string fmt_message(LineageId id, StepNumber step, std::uint32_t rank) {
    return "{\"lineage\":" + std::to_string(id) + ",\"step\":" + std::to_string(step) +
           ",\"rank\":" + std::to_string(rank) + "}";
  }
};

}  // namespace gradtap::storage::test
