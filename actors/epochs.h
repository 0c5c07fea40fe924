// The epoch actor: reads epochs from the object store, and proposes them on command (PROTOCOLS 5.2).
//
// Purpose: one place of the node that waits for the object store in matters of membership. Ownership: of nothing but
// its counters. Threads: detached, one. Invariants: a proposal is computed from the newest stored epoch and created
// conditionally; who loses the race reads the winner and thinks again; epochs change by command only (and when a
// lineage has another number of shards, which moves nothing). Failure behaviour: a store that cannot be reached means
// no new epoch; everything else goes on, and the error is shown; commands are answered with it. What
// only a coordinator knows (who holds what) is never taken for nothing when it cannot be asked: no member is let go.
#pragma once

#include <functional>
#include <memory>

#include "actors/cluster_state.h"
#include "actors/interfaces.h"
#include "common/clock.h"
#include "common/event_ring.h"
#include "storage/kill_points.h"
#include "storage/object_store.h"

namespace gradtap::actors {

struct EpochOptions {
  std::shared_ptr<storage::ObjectStore> objects;
  std::shared_ptr<ClusterState> cluster;
  std::shared_ptr<const Clock> clock;
  std::shared_ptr<EventRing> events;
  storage::KillPoints* kill_points = nullptr;  // outlives the actor; may be null
  std::function<void(const EpochPtr&)> adopt;  // a newer epoch than the one in force
  std::uint64_t look_every_ms = 1000;
};

[[nodiscard]] EpochActor spawn_epochs(caf::actor_system& system, EpochOptions options);

// What a node does first: the newest epoch of the cluster, or epoch 1 made of the cluster file. NOT_A_MEMBER when it
// does not name `node`, or names it as out.
[[nodiscard]] Result<EpochPtr> join_epoch(storage::ObjectStore& objects, const ClusterConfig& config,
                                          const std::string& node, const Clock& clock);

}  // namespace gradtap::actors
