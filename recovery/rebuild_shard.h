// RebuildShard: from stored bytes back to a shard at a step (PROTOCOLS 5.4).
//
// Purpose: newest full version at or before the step, then the log with the stored step messages; the digest of the
// full version is checked where the source keeps one, that of the step always. Pure reading; any thread; nothing is
// written. Failure behaviour: a shard that cannot be rebuilt is a named error, never an older or another state.
#pragma once

#include <memory>

#include "common/bytes.h"
#include "common/error.h"
#include "recovery/job_plan.h"
#include "recovery/shard_source.h"
#include "replica/shard.h"
#include "replica/step_message.h"
#include "storage/shard_store.h"

namespace gradtap::recovery {

using StepMessagePtr = std::shared_ptr<const replica::StepMessage>;

// A stored step message (StepRecord), parsed and checked against the plan's schema.
[[nodiscard]] Result<StepMessagePtr> read_message(const JobPlan& plan, ByteSpan bytes);

[[nodiscard]] Result<replica::Shard> rebuild_shard(const ShardSource& source, const JobPlan& plan, ShardId shard,
                                                   StepNumber step);
struct RebuiltShard {
  replica::Shard shard;
  Sha256 digest{};  // of the shard; the one that the source keeps
};
[[nodiscard]] Result<RebuiltShard> rebuild_with_digest(const ShardSource& source, const JobPlan& plan, ShardId shard,
                                                       StepNumber step);
// The same from the plan's lineage in a store.
[[nodiscard]] Result<replica::Shard> rebuild_shard(const storage::ShardStore& store, const JobPlan& plan, ShardId shard,
                                                   StepNumber step);

}  // namespace gradtap::recovery
