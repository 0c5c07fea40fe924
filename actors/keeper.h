// Keeper: the actor that owns the shard store.
//
// Purpose: the only actor that waits for a disk. Records of the same step are committed in one group: whatever has
// gathered in the queue while the previous commit ran. Threads: detached, one thread. Invariants: a `durable` message
// is sent only after the store's synced commit returned; side values are synced before they are answered, and a step
// message is stored before the step's mark because both pass this one queue. Failure behaviour: a commit that fails
// stays in the queue and is tried again after a growing pause; the coordinator is told each time.
#pragma once

#include <memory>

#include "actors/interfaces.h"
#include "common/clock.h"
#include "storage/object_store.h"
#include "storage/shard_store.h"

namespace gradtap::actors {

struct KeeperOptions {
  storage::KillPoints* kill_points = nullptr;  // outlives the keeper; may be null
  JobId job{};
  std::shared_ptr<storage::ShardStore> store;
  std::uint64_t keep_fulls = 2;
  std::uint64_t retry_ms_max = 5000;
  // Logs are kept for co-owners that are away and for the next recovery point, but for so many steps at most.
  std::uint64_t catch_up_steps_max = 4096;
  std::shared_ptr<storage::ObjectStore> objects;  // decides lineage numbers; empty: the store of this node does
  std::string node_name;
  std::shared_ptr<const Clock> clock;
};

[[nodiscard]] KeeperActor spawn_keeper(caf::actor_system& system, KeeperOptions options);

}  // namespace gradtap::actors
