#include "actors/recovery.h"

#include <algorithm>
#include <utility>

#include <fmt/format.h>

#include "actors/full_version.h"
#include "replica/schema_json.h"

namespace gradtap::actors {

namespace {

constexpr std::size_t kMessagesMax = 4096;  // read back at start

Result<StepMessagePtr> read_message(const JobPlan& plan, ByteSpan bytes) {
  auto record = schema::decode_step(bytes);
  if (!record) return std::unexpected(record.error());
  const std::string text(record->json.begin(), record->json.end());
  GRADTAP_LET(body, replica::parse_json_object(text, "stored step message"));
  GRADTAP_LET(message, replica::parse_step_message(body, plan.schema));
  return std::make_shared<const replica::StepMessage>(std::move(message));
}

Result<StepMessagePtr> message_of(const storage::ShardStore& store, const JobPlan& plan, StepNumber step) {
  auto bytes = store.get_side(storage::side_key(storage::SideKind::kStepMessage, plan.job, plan.lineage, step, 0));
  if (!bytes) return std::unexpected(bytes.error());
  return read_message(plan, *bytes);
}

Status check_digest(const storage::ShardStore& store, const JobPlan& plan, const replica::Shard& shard,
                    StepNumber step) {
  const auto expected = store.state_digest(plan.job, plan.lineage, shard.range().id, step);
  if (!expected) return std::unexpected(expected.error());
  const Sha256 actual = shard.digest().sha;
  if (actual == *expected) return {};
  return fail(ErrorCode::kDigestMismatch, "a rebuilt shard is not what was stored",
              fmt::format("lineage {} shard {} step {}", plan.lineage, shard.range().id, step), to_hex(*expected),
              to_hex(actual), "keep the data directory and look at the disk: stored bytes have changed");
}

}  // namespace

Result<replica::Shard> rebuild_shard(const storage::ShardStore& store, const JobPlan& plan, ShardId shard_id,
                                     StepNumber step) {
  const auto fulls = store.full_steps(plan.job, plan.lineage, shard_id);
  if (!fulls) return std::unexpected(fulls.error());
  std::optional<StepNumber> full;
  for (const StepNumber candidate : *fulls)
    if (candidate <= step && (!full || candidate > *full)) full = candidate;
  if (!full)
    return fail(ErrorCode::kStepUnavailable, "no full version at or before the step is kept",
                fmt::format("shard {} step {}", shard_id, step), {}, {},
                "ask for a newer step, or raise store.keep_fulls");
  GRADTAP_LET(shard, read_full_version(store, plan, shard_id, *full));
  GRADTAP_TRY(check_digest(store, plan, shard, *full));
  const replica::ShardRange& range = plan.shards.shards()[shard_id];
  for (StepNumber next = *full + 1; next <= step; ++next) {
    GRADTAP_LET(message, message_of(store, plan, next));
    GRADTAP_LET(log, store.read_log(plan.job, plan.lineage, shard_id, next));
    const bool skipped = message->scalars.verdict == replica::Verdict::kSkipped;
    if (!skipped && log.size() != range.elements * sizeof(float))
      return fail(ErrorCode::kStoreCorrupt, "a log record has a wrong length",
                  fmt::format("shard {} step {}", shard_id, next), std::to_string(range.elements * sizeof(float)),
                  std::to_string(log.size()));
    std::vector<const float*> pieces(range.pieces.size(), nullptr);
    if (!skipped) pieces = replica::contiguous_pieces(range, reinterpret_cast<const float*>(log.data()));
    GRADTAP_TRY(shard.apply(message->scalars, replica::GradientView{pieces}));
  }
  if (step > *full) GRADTAP_TRY(check_digest(store, plan, shard, step));
  return std::move(shard);
}

Result<std::optional<RecoveredJob>> recover_job(const storage::ShardStore& store, const std::string& job_name) {
  const JobId job = job_id(job_name);
  const auto lineages = store.lineages(job);
  if (!lineages) return std::unexpected(lineages.error());
  for (auto record = lineages->rbegin(); record != lineages->rend(); ++record) {
    if (record->recipe_id.empty()) continue;  // its attach ended before the probe did
    auto plan = plan_from_record(*record);
    if (!plan) return std::unexpected(plan.error());
    const auto marks = store.marks(job, record->lineage);
    if (!marks) return std::unexpected(marks.error());
    if (marks->size() != plan->shards.shards().size() || marks->empty()) continue;  // its baseline never became durable
    StepNumber version = marks->front().version;
    for (const storage::Mark& mark : *marks) version = std::min(version, mark.version);
    RecoveredJob recovered;
    recovered.record = *record;
    recovered.plan = std::make_shared<const JobPlan>(std::move(*plan));
    for (const replica::ShardRange& range : recovered.plan->shards.shards()) {
      auto shard = rebuild_shard(store, *recovered.plan, range.id, version);
      if (!shard) return std::unexpected(shard.error());
      recovered.shards.push_back(std::make_shared<replica::Shard>(std::move(*shard)));
    }
    std::optional<Error> error;
    GRADTAP_TRY(store.scan_side(
        storage::side_prefix(storage::SideKind::kLayout, job, record->lineage), [&](std::string_view, ByteSpan bytes) {
          const std::string text(bytes.begin(), bytes.end());
          auto body = replica::parse_json_object(text, "stored layout");
          if (!body) {
            error = body.error();
            return false;
          }
          auto layout = replica::parse_layout(*body, recovered.plan->schema);
          if (!layout) {
            error = layout.error();
            return false;
          }
          recovered.layouts.push_back(std::make_shared<const replica::Layout>(std::move(*layout)));
          return true;
        }));
    GRADTAP_TRY(store.scan_side(storage::side_prefix(storage::SideKind::kStepMessage, job, record->lineage),
                                [&](std::string_view, ByteSpan bytes) {
                                  auto step = schema::decode_step(bytes);
                                  if (!step) {
                                    error = step.error();
                                    return false;
                                  }
                                  if (step->rank != 0 || step->step <= version) return true;
                                  // A replica that is held keeps its messages; more than can be waited for need not be
                                  // read.
                                  if (recovered.messages.size() >= kMessagesMax) return false;
                                  auto message = read_message(*recovered.plan, bytes);
                                  if (!message) {
                                    error = message.error();
                                    return false;
                                  }
                                  recovered.messages.push_back(std::move(*message));
                                  return true;
                                }));
    for (std::uint32_t rank = 0; rank < record->world; ++rank) {
      auto bytes = store.get_side(session_key(job, record->lineage, rank));
      if (!bytes && bytes.error().code == ErrorCode::kStoreMissingChunk) continue;  // that rank never attached
      if (!bytes) return std::unexpected(bytes.error());
      auto session = decode_session(*bytes);
      if (!session) return std::unexpected(session.error());
      recovered.sessions.push_back(std::move(*session));
    }
    if (error) return std::unexpected(*error);
    return recovered;
  }
  return std::nullopt;
}

}  // namespace gradtap::actors
