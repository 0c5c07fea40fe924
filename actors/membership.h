// Membership: who of the cluster file is there (PROTOCOLS 5, static membership).
//
// Purpose: keeps a connection to every member's peer actor through the node link's control connections, watches it, and
// writes ClusterState; when the home moves, it says so to the side channel. A node is *ready* (may be home) once it has
// the side entries that its peers have: it asks a ready peer, or, when nobody is ready (a cold start), every live one
// as soon as enough are there that at least one of them has each entry that was called durable. Threads: the
// scheduler's, one message at a time; never waits. Failure behaviour: a member that cannot be reached is down, is tried
// again with a growing pause for ever, and costs nothing else.
#pragma once

#include <functional>
#include <memory>
#include <string>
#include <vector>

#include "actors/answer_deadlines.h"
#include "actors/cluster_state.h"
#include "actors/interfaces.h"
#include "actors/peer_codec.h"
#include "common/clock.h"
#include "common/event_ring.h"

namespace gradtap::actors {

struct MembershipOptions {
  std::shared_ptr<ClusterState> cluster;
  std::shared_ptr<const Clock> clock;
  std::shared_ptr<EventRing> events;
  std::vector<std::uint16_t> control_ports;  // by member: loopback port that leads to its middleman
  std::function<std::string()> hello;        // who this node is
  std::string cluster_digest;                // hex; who says another one belongs to another cluster
  std::function<StepNumber()> stored_step;   // every owner here has its shard durable at it
  AnswerDeadlines deadlines{};
};

[[nodiscard]] MembershipActor spawn_membership(caf::actor_system& system, MembershipOptions options);

// The actor that peers address. `wiring` yields the actors in force; `hello` says who this node is.
struct PeerOptions {
  std::function<WiringPtr()> wiring;
  std::function<std::string()> hello;
  AnswerDeadlines deadlines{};
};
[[nodiscard]] PeerActor spawn_peer(caf::actor_system& system, PeerOptions options);

}  // namespace gradtap::actors
