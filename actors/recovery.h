// Recovery: from the store back to a job's shards (PROTOCOLS 5.4).
//
// Purpose: newest full version, then the log with the stored step messages, every digest checked on the way. Pure
// reading; any thread; nothing is written. Failure behaviour: a shard that cannot be rebuilt is a named error; the node
// does not start with a shard that is older than its mark.
#pragma once

#include <optional>
#include <string>

#include "actors/side_channel.h"
#include "common/error.h"
#include "recovery/job_plan.h"
#include "replica/shard.h"
#include "storage/shard_store.h"

namespace gradtap::actors {

// The newest lineage of the job whose baseline is durable, with everything its actors need; nothing if there is none.
[[nodiscard]] Result<std::optional<RecoveredJob>> recover_job(const storage::ShardStore& store,
                                                              const std::string& job_name);

}  // namespace gradtap::actors
