// Recovery: from the store back to a job's shards, layouts, messages and sessions (PROTOCOLS 5.4).
//
// Purpose: what a node knows of its job when it starts: the newest lineage, each shard it owns at its durable version
// (newest full version, then the log with the stored step messages, every digest checked on the way), and what the
// coordinator and the side channel go on from. Pure reading; any thread; nothing is written. Failure behaviour: a shard
// that is marked and cannot be rebuilt is a named error; the node does not start with a shard that is older than its
// mark, nor with shards that its memory cannot hold. A shard without a mark has nothing here: its owner asks a peer.
#pragma once

#include <memory>
#include <optional>
#include <string>
#include <vector>

#include "actors/messages.h"
#include "actors/session_table.h"
#include "common/error.h"
#include "common/memory_ledger.h"
#include "replica/shard.h"
#include "storage/shard_store.h"

namespace gradtap::actors {

// What a coordinator starts from besides its shards.
struct KeptFeed {
  std::vector<LayoutPtr> layouts;
  std::vector<StepMessagePtr> messages;  // of rank 0, of steps after the one asked for
};

struct RecoveredJob {
  JobPlanPtr plan;
  schema::LineageRecord record;
  std::vector<Session> sessions;
  std::vector<std::shared_ptr<replica::Shard>> shards;  // those with a mark, each at its durable version
  KeptFeed feed;
};

// The newest lineage of the job with a recipe; where `whole`, the newest one of which every shard is durable here.
[[nodiscard]] Result<std::optional<RecoveredJob>> recover_job(
    const storage::ShardStore& store, const std::string& job_name, bool whole,
    const std::shared_ptr<MemoryLedger>& memory = std::make_shared<MemoryLedger>());

[[nodiscard]] Result<KeptFeed> read_feed(const storage::ShardStore& store, const JobPlan& plan, StepNumber after);
[[nodiscard]] Result<LayoutPtr> read_layout(const JobPlan& plan, ByteSpan bytes);
[[nodiscard]] Result<std::vector<Session>> read_sessions(const storage::ShardStore& store, const JobId& job,
                                                         LineageId lineage, std::uint32_t world);

}  // namespace gradtap::actors
