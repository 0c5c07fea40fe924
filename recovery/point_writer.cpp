#include "recovery/point_writer.h"

#include <algorithm>
#include <optional>
#include <utility>

#include <fmt/format.h>

#include "common/sha256.h"
#include "replica/digest.h"

namespace gradtap::recovery {

using schema::ObjectRef;
using schema::ShardObjects;
using schema::StepObject;

Result<ObjectRef> put_full(const PointTarget& target, ShardId shard, StepNumber step,
                           const std::vector<FullKind>& kinds) {
  std::vector<storage::PartSize> sizes;
  for (const FullKind& kind : kinds) sizes.push_back({kind.kind, kind.content.bytes.size()});
  const std::vector<std::uint8_t> table = storage::encode_part_table(sizes);
  std::vector<ByteSpan> payload{ByteSpan(table)};
  for (const FullKind& kind : kinds) payload.push_back(kind.content.bytes);
  return storage::put_object(
      target.store,
      storage::full_key(target.plan.job_name, target.plan.lineage, shard, step, storage::new_uid(target.random)),
      std::move(payload));
}

Result<ObjectRef> put_log(const PointTarget& target, ShardId shard, StepNumber step, ByteSpan gradient) {
  return storage::put_object(
      target.store,
      storage::log_key(target.plan.job_name, target.plan.lineage, shard, step, storage::new_uid(target.random)),
      {gradient});
}

Result<ObjectRef> put_step(const PointTarget& target, StepNumber step, ByteSpan stored) {
  return storage::put_object(
      target.store, storage::step_key(target.plan.job_name, target.plan.lineage, step, storage::new_uid(target.random)),
      {stored});
}

Result<ObjectRef> put_side(const PointTarget& target, const schema::SideState& side) {
  const auto bytes = schema::encode(side);
  if (!bytes) return std::unexpected(bytes.error());
  return storage::put_object(
      target.store,
      storage::side_state_key(target.plan.job_name, target.plan.lineage, side.step, storage::new_uid(target.random)),
      {ByteSpan(*bytes)});
}

Result<ObjectRef> put_meta(const PointTarget& target, const schema::LineageRecord& lineage) {
  const std::vector<std::uint8_t> bytes = schema::encode(lineage);
  return storage::put_object(
      target.store, storage::meta_key(target.plan.job_name, target.plan.lineage, storage::new_uid(target.random)),
      {ByteSpan(bytes)});
}

namespace {

Status put_logs(const PointTarget& target, const ShardSource& source, ShardId shard, StepNumber step,
                ShardObjects& objects) {
  for (StepNumber next = objects.base_step + objects.logs.size() + 1; next <= step; ++next) {
    const auto gradient = source.log(shard, next);
    if (!gradient) return std::unexpected(gradient.error());
    auto ref = put_log(target, shard, next, gradient->bytes);
    if (!ref) return std::unexpected(ref.error());
    objects.logs.push_back({next, std::move(*ref)});
  }
  return {};
}

}  // namespace

Result<ShardObjects> put_shard(const PointTarget& target, const ShardSource& source, ShardId shard, StepNumber step,
                               const ShardObjects* previous, std::uint64_t logs_max) {
  const auto fulls = source.full_steps(shard);
  if (!fulls) return std::unexpected(fulls.error());
  std::optional<StepNumber> base;
  for (const StepNumber full : *fulls)
    if (full <= step && (!base || full > *base)) base = full;
  const bool follows = previous != nullptr && previous->shard == shard && previous->base_step <= step &&
                       previous->base_step + previous->logs.size() <= step;
  // The base follows the owner's newest full version: what lies before it need not be kept.
  if (follows && step - previous->base_step <= logs_max && (!base || *base <= previous->base_step)) {
    ShardObjects objects = *previous;
    const Status done = put_logs(target, source, shard, step, objects);
    if (done) return objects;
    // A log that retention took, or that a jump never had, is not an error: a newer full version stands for it.
    if (done.error().code != ErrorCode::kStoreMissingChunk && done.error().code != ErrorCode::kStepUnavailable)
      return std::unexpected(done.error());
  }
  if (!base)
    return fail(ErrorCode::kStepUnavailable, "no full version at or before the step is kept",
                fmt::format("shard {} step {}", shard, step));
  const auto kinds = source.full_version(shard, *base);
  if (!kinds) return std::unexpected(kinds.error());
  auto ref = put_full(target, shard, *base, *kinds);
  if (!ref) return std::unexpected(ref.error());
  ShardObjects objects{shard, *base, std::move(*ref), {}};
  // Logs that the previous point has are there already.
  if (follows && *base >= previous->base_step)
    for (const StepObject& log : previous->logs)
      if (log.step > *base) objects.logs.push_back(log);
  GRADTAP_TRY(put_logs(target, source, shard, step, objects));
  return objects;
}

Result<std::vector<StepObject>> put_steps(const PointTarget& target, const ShardSource& source,
                                          const std::vector<ShardObjects>& shards, StepNumber step,
                                          const std::vector<StepObject>& previous) {
  StepNumber first = step;
  for (const ShardObjects& shard : shards) first = std::min(first, shard.base_step);
  std::vector<StepObject> steps;
  for (StepNumber next = first + 1; next <= step; ++next) {
    const auto known = std::find_if(previous.begin(), previous.end(),
                                    [next](const StepObject& object) { return object.step == next; });
    if (known != previous.end()) {
      steps.push_back(*known);
      continue;
    }
    const auto message = source.step_message(next);
    if (!message) return std::unexpected(message.error());
    auto ref = put_step(target, next, *message);
    if (!ref) return std::unexpected(ref.error());
    steps.push_back({next, std::move(*ref)});
  }
  return steps;
}

Result<schema::PointRecord> assemble_point(const JobPlan& plan, const schema::SideState& side, PointFacts facts) {
  const std::size_t shards = plan.shards.shards().size();
  const std::string where = fmt::format("lineage {} step {}", plan.lineage, facts.step);
  if (facts.shard_digests.size() != shards || facts.shards.size() != shards)
    return fail(ErrorCode::kStateIncomplete, "a point needs every shard", where, std::to_string(shards),
                fmt::format("{} digests, {} with objects", facts.shard_digests.size(), facts.shards.size()));
  if (side.ranks.size() != plan.world || side.step != facts.step || side.lineage != plan.lineage)
    return fail(ErrorCode::kStateIncomplete, "a point needs the side state of every rank at its step", where,
                fmt::format("{} ranks", plan.world),
                fmt::format("{} ranks of lineage {} step {}", side.ranks.size(), side.lineage, side.step));
  schema::PointRecord record;
  schema::PointCanonical& canonical = record.canonical;
  canonical.job = plan.job;
  canonical.job_name = plan.job_name;
  canonical.lineage = plan.lineage;
  canonical.parent_lineage = facts.parent_lineage;
  canonical.parent_step = facts.parent_step;
  canonical.parent_record = facts.parent_record;
  canonical.step = facts.step;
  canonical.state_root = replica::state_root(facts.shard_digests);
  for (ShardId id = 0; id < shards; ++id) canonical.shards.push_back({id, facts.shard_digests[id]});
  for (const schema::SideRank& rank : side.ranks) canonical.ranks.push_back({rank.rank, schema::side_digest(rank)});
  canonical.schema_id = plan.schema_id;
  canonical.layout_id = facts.layout_id;
  canonical.layout_json = std::move(facts.layout_json);
  if (!facts.step_message.empty()) canonical.step_message = sha256(ByteSpan(facts.step_message));
  canonical.verdict = facts.verdict;
  canonical.world = plan.world;
  canonical.recipe_id = replica::recipe_name(plan.recipe);
  canonical.optimizer_class = std::string(replica::optimizer_class_name(plan.schema.optimizer.type));
  canonical.qualified_by = std::move(facts.qualified_by);
  record.shards = std::move(facts.shards);
  record.steps = std::move(facts.steps);
  record.side = std::move(facts.side);
  record.meta = std::move(facts.meta);
  record.previous_step = facts.previous_step;
  record.previous_record = facts.previous_record;
  record.publisher = std::move(facts.publisher);
  record.created_wall_ms = facts.created_wall_ms;
  record.training = facts.training;
  record.verified = facts.verified;
  record.durable = facts.durable;
  record.published = facts.published;
  record.software = std::move(facts.software);
  return record;
}

}  // namespace gradtap::recovery
