#include "actors/recovery.h"

#include <algorithm>
#include <utility>

#include <fmt/format.h>

#include "recovery/rebuild_shard.h"
#include "replica/schema_json.h"

namespace gradtap::actors {

namespace {

constexpr std::size_t kMessagesMax = 4096;  // read back at start

}  // namespace

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
      auto shard = recovery::rebuild_shard(store, *recovered.plan, range.id, version);
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
