// ShardOwner: the actor that holds one shard.
//
// Purpose: collect contributions, apply step s iff the coordinator's go and every byte are there, hand the step's
// gradient bytes (the log record) and now and then a full version to the keeper. Threads: the scheduler's, one message
// at a time. Owns its shard. Invariants: applied once, in order, completely; never more than flush_queue_steps steps
// applied and not durable, never more than pending_steps_max steps waiting. Failure behaviour: a step that cannot be
// applied is reported with its error and the shard stays at its version; a full version for which no memory is left
// comes with a later step, logs go on.
#pragma once

#include <cstdint>
#include <functional>
#include <memory>

#include "actors/interfaces.h"
#include "actors/tap_retention.h"
#include "common/memory_ledger.h"
#include "recovery/job_plan.h"
#include "replica/shard.h"
#include "storage/kill_points.h"

namespace gradtap::actors {

struct ShardOwnerOptions {
  JobPlanPtr plan;
  std::shared_ptr<replica::Shard> shard;  // at its first version; from here on the owner's alone. Empty: a peer has it
  ShardId id = 0;
  bool durable = false;  // that version is in the store already
  std::uint64_t full_every_steps = 64;
  std::uint64_t flush_queue_steps = 2;
  std::uint64_t hold_steps = 1024;  // contributions of so many steps after the version are kept
  // Takes what comes while the owner cannot: a co-owner without a mirror port may have no other source. May be empty.
  std::shared_ptr<TapRetention> retention;
  storage::KillPoints* kill_points = nullptr;  // outlives the owner; may be null
  std::function<void(ShardId)> on_released;    // the shard is no longer held: the owner is about to end
  std::shared_ptr<MemoryLedger> memory = std::make_shared<MemoryLedger>();  // full versions are taken from it
};

[[nodiscard]] OwnerActor spawn_shard_owner(caf::actor_system& system, ShardOwnerOptions options);

}  // namespace gradtap::actors
