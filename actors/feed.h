// Feed: what the home stored, stored here and told to this node's coordinator.
//
// Purpose: every node binds and applies by itself, so every node needs layouts and step messages; a node that becomes
// home needs sessions and blobs. Threads: the scheduler's, one message at a time; never waits. Owns nothing.
// Invariants: an entry is told only after it is durable here; a session that is already further here is kept.
// Failure behaviour: entries of another job, or that do not parse, are counted and not told; the rest goes on.
#pragma once

#include <functional>
#include <memory>
#include <string>

#include "actors/interfaces.h"
#include "storage/shard_store.h"

namespace gradtap::actors {

struct Launched {
  JobPlanPtr plan;  // empty: the lineage is not newer than the one in force
  CoordinatorActor coordinator;
};

struct FeedOptions {
  std::string job_name;
  std::shared_ptr<const storage::ShardStore> store;
  KeeperActor keeper;
  // A lineage whose baseline its home has: starts its coordinator and owners here unless they run already.
  std::function<Launched(const schema::LineageRecord&)> launch;
};

[[nodiscard]] FeedActor spawn_feed(caf::actor_system& system, FeedOptions options);

}  // namespace gradtap::actors
