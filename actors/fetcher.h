// Fetcher: the actor that waits for peers (PROTOCOLS 5.4).
//
// Purpose: brings an owner what its own tap or store lacks: the gradient of a step, or a whole version, from a co-owner
// first and then from any live peer; and side entries from a member that has them all. Threads: detached, one question
// at a time; it blocks on the node link, with a deadline each. Owns nothing. Invariants: a whole version is given only
// after its digest has been compared. Failure behaviour: a named outcome; the asker asks again when it still needs it.
#pragma once

#include <memory>

#include "actors/cluster_state.h"
#include "actors/interfaces.h"
#include "common/memory_ledger.h"
#include "link/node_link.h"

namespace gradtap::actors {

struct FetcherOptions {
  std::shared_ptr<link::NodeLink> link;
  std::shared_ptr<const ClusterState> cluster;
  std::string job_name;
  std::uint64_t call_timeout_ms = 2000;
  std::shared_ptr<MemoryLedger> memory = std::make_shared<MemoryLedger>();  // shards are taken from it
};

[[nodiscard]] FetcherActor spawn_fetcher(caf::actor_system& system, FetcherOptions options);

}  // namespace gradtap::actors
