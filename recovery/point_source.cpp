#include "recovery/point_source.h"

#include <algorithm>
#include <utility>

#include <fmt/format.h>

#include "common/sha256.h"
#include "replica/digest.h"

namespace gradtap::recovery {

namespace {

constexpr std::uint64_t kSmallObjectMax = std::uint64_t{64} << 20;  // a step message, a lineage record
constexpr std::uint64_t kSideObjectMax = std::uint64_t{512} << 20;
constexpr std::uint64_t kObjectSlack = std::uint64_t{16} << 20;  // header, part table, chunk digests

// What no object of a shard of this plan exceeds.
std::uint64_t object_bytes_max(const JobPlan& plan) {
  std::uint64_t most = 0;
  for (const replica::ShardRange& range : plan.shards.shards())
    most = std::max<std::uint64_t>(
        most, range.elements * sizeof(float) * (1 + plan.schema.optimizer.kinds.size()) + range.pieces.size() * 16);
  return most + most / 64 + kObjectSlack;
}

std::unexpected<Error> misfit(const schema::PointRecord& record, std::string what, std::string expected,
                              std::string actual) {
  return fail(ErrorCode::kObjectForeign, std::move(what), record.meta.key, std::move(expected), std::move(actual),
              "the lineage record is not the one of this point: take another point");
}

Status check_plan(const schema::PointRecord& record, const JobPlan& plan) {
  const schema::PointCanonical& canonical = record.canonical;
  if (plan.job != canonical.job || plan.lineage != canonical.lineage)
    return misfit(record, "the lineage record is of another lineage",
                  fmt::format("{} lineage {}", canonical.job_name, canonical.lineage),
                  fmt::format("{} lineage {}", plan.job_name, plan.lineage));
  if (plan.schema_id != canonical.schema_id)
    return misfit(record, "the lineage record holds another attach message", to_hex(canonical.schema_id),
                  to_hex(plan.schema_id));
  if (plan.world != canonical.world)
    return misfit(record, "the lineage record has another number of ranks", std::to_string(canonical.world),
                  std::to_string(plan.world));
  if (replica::recipe_name(plan.recipe) != canonical.recipe_id)
    return misfit(record, "the lineage record names another recipe", canonical.recipe_id,
                  replica::recipe_name(plan.recipe));
  if (plan.shards.shards().size() != canonical.shards.size())
    return misfit(record, "the state has another number of shards", std::to_string(canonical.shards.size()),
                  std::to_string(plan.shards.shards().size()));
  std::vector<Sha256> digests;
  for (const schema::ShardDigest& shard : canonical.shards) digests.push_back(shard.digest);
  if (const Sha256 root = replica::state_root(digests); root != canonical.state_root)
    return fail(ErrorCode::kDigestMismatch, "the record's state root is not that of its shard digests",
                storage::point_key(canonical.job_name, canonical.lineage, canonical.step), to_hex(root),
                to_hex(canonical.state_root), "take another point");
  return {};
}

}  // namespace

Result<const schema::ShardObjects*> PointSource::objects_of(ShardId shard) const {
  for (const schema::ShardObjects& objects : record_->shards)
    if (objects.shard == shard) return &objects;
  return fail(ErrorCode::kOutOfRange, "the point has no such shard", fmt::format("shard {}", shard));
}

Result<SourceBytes> PointSource::read(const schema::ObjectRef& ref) const {
  auto object = storage::read_object(*store_, ref, object_bytes_max_);
  if (!object) return std::unexpected(object.error());
  auto owned = std::make_shared<const storage::LoadedObject>(std::move(*object));
  return SourceBytes{owned->payload(), owned};
}

Result<std::vector<StepNumber>> PointSource::full_steps(ShardId shard) const {
  const auto objects = objects_of(shard);
  if (!objects) return std::unexpected(objects.error());
  return std::vector<StepNumber>{(*objects)->base_step};
}

Result<std::vector<FullKind>> PointSource::full_version(ShardId shard, StepNumber step) const {
  const auto objects = objects_of(shard);
  if (!objects) return std::unexpected(objects.error());
  if ((*objects)->base_step != step)
    return fail(ErrorCode::kStepUnavailable, "the point holds no full version of this step",
                fmt::format("shard {} step {}", shard, step), std::to_string((*objects)->base_step),
                std::to_string(step));
  const auto bytes = read((*objects)->base);
  if (!bytes) return std::unexpected(bytes.error());
  const auto parts = storage::parse_parts(bytes->bytes);
  if (!parts) {
    Error error = parts.error();
    error.where = (*objects)->base.key;
    return std::unexpected(std::move(error));
  }
  std::vector<FullKind> kinds;
  for (const storage::Part& part : *parts) kinds.push_back({part.kind, {part.bytes, bytes->owner}});
  return kinds;
}

Result<SourceBytes> PointSource::log(ShardId shard, StepNumber step) const {
  const auto objects = objects_of(shard);
  if (!objects) return std::unexpected(objects.error());
  for (const schema::StepObject& log : (*objects)->logs)
    if (log.step == step) return read(log.object);
  return fail(ErrorCode::kStepUnavailable, "the point holds no log of this step",
              fmt::format("shard {} step {}", shard, step));
}

Result<std::vector<std::uint8_t>> PointSource::step_message(StepNumber step) const {
  {
    const std::lock_guard lock(mutex_);
    if (const auto known = messages_.find(step); known != messages_.end()) return known->second;
  }
  const auto& steps = record_->steps;
  const auto found = std::find_if(steps.begin(), steps.end(),
                                  [step](const schema::StepObject& object) { return object.step == step; });
  if (found == steps.end())
    return fail(ErrorCode::kStepUnavailable, "the point holds no message of this step", fmt::format("step {}", step));
  const auto object = storage::read_object(*store_, found->object, kSmallObjectMax);
  if (!object) return std::unexpected(object.error());
  const ByteSpan payload = object->payload();
  std::vector<std::uint8_t> bytes(payload.begin(), payload.end());
  if (step == record_->canonical.step) {
    const auto message = schema::decode_step(bytes);
    if (!message) return std::unexpected(message.error());
    if (const Sha256 digest = sha256(ByteSpan(message->json)); digest != record_->canonical.step_message)
      return fail(ErrorCode::kDigestMismatch, "the step message is not the one of the point", found->object.key,
                  to_hex(record_->canonical.step_message), to_hex(digest), "take another point");
  }
  const std::lock_guard lock(mutex_);
  return messages_.emplace(step, std::move(bytes)).first->second;
}

Result<std::optional<Sha256>> PointSource::state_digest(ShardId shard, StepNumber step) const {
  if (step != record_->canonical.step) return std::optional<Sha256>{};
  for (const schema::ShardDigest& entry : record_->canonical.shards)
    if (entry.shard == shard) return std::optional<Sha256>(entry.digest);
  return std::optional<Sha256>{};
}

Result<OpenPoint> open_point(ObjectStorePtr store, const storage::StoredPoint& point) {
  OpenPoint open;
  open.store = std::move(store);
  open.record = std::make_shared<const schema::PointRecord>(point.record);
  open.record_digest = point.digest;
  const auto meta = storage::read_object(*open.store, open.record->meta, kSmallObjectMax);
  if (!meta) return std::unexpected(meta.error());
  auto lineage = schema::decode_lineage(meta->payload());
  if (!lineage) return std::unexpected(lineage.error());
  open.lineage = std::move(*lineage);
  auto plan = plan_from_record(open.lineage);
  if (!plan) return std::unexpected(plan.error());
  GRADTAP_TRY(check_plan(*open.record, *plan));
  open.source = std::make_shared<const PointSource>(open.store, open.record, object_bytes_max(*plan));
  open.plan = std::make_shared<const JobPlan>(std::move(*plan));
  return open;
}

Result<OpenPoint> open_point(ObjectStorePtr store, std::string_view job, LineageId lineage, StepNumber step) {
  const auto point = storage::read_point(*store, job, lineage, step);
  if (!point) return std::unexpected(point.error());
  return open_point(std::move(store), *point);
}

Result<schema::SideState> read_side_state(const OpenPoint& point) {
  const schema::PointCanonical& canonical = point.record->canonical;
  const auto object = storage::read_object(*point.store, point.record->side, kSideObjectMax);
  if (!object) return std::unexpected(object.error());
  auto side = schema::decode_side_state(object->payload());
  if (!side) return std::unexpected(side.error());
  const std::string& key = point.record->side.key;
  if (side->lineage != canonical.lineage || side->step != canonical.step ||
      side->ranks.size() != canonical.ranks.size())
    return fail(ErrorCode::kObjectForeign, "the side state is of another point", key,
                fmt::format("lineage {} step {}, {} ranks", canonical.lineage, canonical.step, canonical.ranks.size()),
                fmt::format("lineage {} step {}, {} ranks", side->lineage, side->step, side->ranks.size()),
                "take another point");
  for (std::size_t i = 0; i < side->ranks.size(); ++i) {
    const Sha256 digest = schema::side_digest(side->ranks[i]);
    if (side->ranks[i].rank != canonical.ranks[i].rank || digest != canonical.ranks[i].digest)
      return fail(ErrorCode::kDigestMismatch, "a rank's side state is not what the point names",
                  fmt::format("{} rank {}", key, canonical.ranks[i].rank), to_hex(canonical.ranks[i].digest),
                  to_hex(digest), "take another point");
  }
  return side;
}

}  // namespace gradtap::recovery
