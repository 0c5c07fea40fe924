// Replicator: hands one peer the side entries that this node stored as home.
//
// Purpose: an entry that the client was told is durable is durable on more than one node. Threads: detached, one batch
// at a time, in order; it blocks on the node link with a deadline. Owns nothing. Failure behaviour: a peer that is not
// live fails at once, one that does not answer at the deadline; the peer asks for what it missed when it comes back.
#pragma once

#include <memory>

#include "actors/cluster_state.h"
#include "actors/interfaces.h"
#include "link/node_link.h"

namespace gradtap::actors {

struct ReplicatorOptions {
  std::shared_ptr<link::NodeLink> link;
  std::shared_ptr<const ClusterState> cluster;
  MemberIndex peer = 0;
  JobId job{};
  std::uint64_t call_timeout_ms = 2000;
};

[[nodiscard]] ReplicatorActor spawn_replicator(caf::actor_system& system, ReplicatorOptions options);

}  // namespace gradtap::actors
