// Publisher: the actor that turns durable steps into recovery points (PROTOCOLS 6.5).
//
// Purpose: on the home: takes the next step that is due, gathers the side state of every rank, has each shard's objects
// uploaded by a node that owns it, and creates the record, last. On every node: uploads this node's part when the home
// asks. Threads: detached; it waits for disks and peers, with a deadline each. Owns the retention of the job's points.
// Invariants: nothing is published before every shard is durable with equal digests, every rank's side state is here
// and every leaf is known; nothing published is edited. Failure behaviour: the reason becomes a gap, the last point
// stays, and it is tried again after a growing pause; a record that says something else about the same step ends
// publishing of this lineage (PUBLISH_CONFLICT).
#pragma once

#include <memory>
#include <string>

#include "actors/cluster_state.h"
#include "actors/interfaces.h"
#include "common/clock.h"
#include "common/event_ring.h"
#include "common/random.h"
#include "storage/kill_points.h"
#include "storage/object_store.h"
#include "storage/shard_store.h"

namespace gradtap::actors {

struct PublisherOptions {
  std::string job_name;
  std::uint64_t interval_steps = 1;
  std::uint64_t points_kept = 8;
  std::uint64_t lease_timeout_ms = 600'000;
  std::uint64_t logs_max = 64;  // between a shard's full version and the point
  std::uint64_t retain_every_ms = 3000;
  std::uint64_t retry_ms_max = 5000;
  std::shared_ptr<storage::ObjectStore> objects;
  std::shared_ptr<storage::ShardStore> store;
  std::shared_ptr<const ClusterState> cluster;
  std::shared_ptr<const Clock> clock;
  std::shared_ptr<Random> random;
  std::shared_ptr<EventRing> events;
  storage::KillPoints* kill_points = nullptr;
  std::shared_ptr<MemoryLedger> memory = std::make_shared<MemoryLedger>();  // what is being uploaded is taken from it
};

[[nodiscard]] PublisherActor spawn_publisher(caf::actor_system& system, PublisherOptions options);

}  // namespace gradtap::actors
