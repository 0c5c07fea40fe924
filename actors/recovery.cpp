#include "actors/recovery.h"

#include <algorithm>
#include <utility>

#include "actors/side_channel.h"
#include "common/charged.h"
#include "recovery/rebuild_shard.h"
#include "replica/schema_json.h"

namespace gradtap::actors {

namespace {

constexpr std::size_t kMessagesMax = 65'536;  // a replica that is held keeps its messages; more are not read back

}  // namespace

Result<LayoutPtr> read_layout(const JobPlan& plan, ByteSpan bytes) {
  const std::string text(bytes.begin(), bytes.end());
  GRADTAP_LET(body, replica::parse_json_object(text, "stored layout"));
  GRADTAP_LET(layout, replica::parse_layout(body, plan.schema));
  return std::make_shared<const replica::Layout>(std::move(layout));
}

Result<KeptFeed> read_feed(const storage::ShardStore& store, const JobPlan& plan, StepNumber after) {
  KeptFeed feed;
  Status wrong;
  GRADTAP_TRY(store.scan_side(storage::side_prefix(storage::SideKind::kLayout, plan.job, plan.lineage),
                              [&](std::string_view, ByteSpan bytes) {
                                auto layout = read_layout(plan, bytes);
                                if (!layout) {
                                  wrong = std::unexpected(layout.error());
                                  return false;
                                }
                                feed.layouts.push_back(std::move(*layout));
                                return true;
                              }));
  GRADTAP_TRY(wrong);
  GRADTAP_TRY(store.scan_side(storage::side_prefix(storage::SideKind::kStepMessage, plan.job, plan.lineage),
                              [&](std::string_view key, ByteSpan bytes) {
                                const auto parsed = storage::parse_side_key(key);
                                if (!parsed || parsed->rank != 0 || parsed->step <= after) return true;
                                if (feed.messages.size() >= kMessagesMax) return false;
                                auto message = read_message(plan, bytes);
                                if (!message) {
                                  wrong = std::unexpected(message.error());
                                  return false;
                                }
                                feed.messages.push_back(std::move(*message));
                                return true;
                              }));
  GRADTAP_TRY(wrong);
  return feed;
}

Result<std::vector<Session>> read_sessions(const storage::ShardStore& store, const JobId& job, LineageId lineage,
                                           std::uint32_t world) {
  std::vector<Session> sessions;
  for (std::uint32_t rank = 0; rank < world; ++rank) {
    auto bytes = store.get_side(session_key(job, lineage, rank));
    if (!bytes && bytes.error().code == ErrorCode::kStoreMissingChunk) continue;  // that rank never attached
    if (!bytes) return std::unexpected(bytes.error());
    GRADTAP_LET(session, decode_session(*bytes));
    sessions.push_back(std::move(session));
  }
  return sessions;
}

Result<std::optional<RecoveredJob>> recover_job(const storage::ShardStore& store, const std::string& job_name,
                                                bool whole, const std::shared_ptr<MemoryLedger>& memory) {
  const JobId job = job_id(job_name);
  const auto lineages = store.lineages(job);
  if (!lineages) return std::unexpected(lineages.error());
  for (auto record = lineages->rbegin(); record != lineages->rend(); ++record) {
    if (record->recipe_id.empty()) continue;  // its attach ended before the probe did
    auto plan = plan_from_record(*record);
    if (!plan) return std::unexpected(plan.error());
    const auto marks = store.marks(job, record->lineage);
    if (!marks) return std::unexpected(marks.error());
    if (whole && (marks->size() != plan->shards.shards().size() || marks->empty()))
      continue;  // its baseline never became durable
    RecoveredJob recovered;
    recovered.record = *record;
    recovered.plan = std::make_shared<const JobPlan>(std::move(*plan));
    StepNumber lowest = ~StepNumber{0};
    for (const storage::Mark& mark : *marks) {
      if (mark.shard >= recovered.plan->shards.shards().size())
        return fail(ErrorCode::kStoreCorrupt, "the store has a shard that the job has not", job_name, {},
                    "shard " + std::to_string(mark.shard));
      const std::uint64_t bytes = recovery::state_bytes(*recovered.plan, mark.shard);
      GRADTAP_LET(lease, memory->lease(MemoryAccount::kShards, bytes, "a shard of the store"));
      // The stored version, then one log after the other, stand beside the shard.
      const auto reading = memory->lease(MemoryAccount::kVersions, bytes, "a shard's stored version");
      if (!reading) return std::unexpected(reading.error());
      auto shard = recovery::rebuild_shard(store, *recovered.plan, mark.shard, mark.version);
      if (!shard) return std::unexpected(shard.error());
      lowest = std::min(lowest, mark.version);
      recovered.shards.push_back(charged(std::move(*shard), std::move(lease)));
    }
    if (recovered.shards.empty()) lowest = recovered.plan->base_step;
    GRADTAP_LET(feed, read_feed(store, *recovered.plan, lowest));
    GRADTAP_LET(sessions, read_sessions(store, job, record->lineage, record->world));
    recovered.feed = std::move(feed);
    recovered.sessions = std::move(sessions);
    return recovered;
  }
  return std::nullopt;
}

}  // namespace gradtap::actors
