// The middleman as every node runs it: on loopback only, with heartbeats, reached through the node link's tunnels.
//
// Purpose: one place for its settings, so that both ends of a tunnel have the same. Plain functions. Failure behaviour:
// publishing yields an Error; dialling answers with a caf::error in the actor that asked.
#pragma once

#include <chrono>
#include <cstdint>
#include <string>
#include <vector>

#include <caf/all.hpp>
#include <caf/io/all.hpp>

#include "common/error.h"

namespace gradtap::actors {

// A peer that is silent for `silence` counts as down; heartbeats keep an idle one from it.
inline void configure_middleman(caf::actor_system_config& config, std::chrono::milliseconds heartbeat,
                                std::chrono::milliseconds silence) {
  config.load<caf::io::middleman>();
  config.set("middleman.heartbeat-interval", caf::timespan(heartbeat));
  config.set("middleman.connection-timeout", caf::timespan(silence));
  config.set("middleman.app-identifiers", std::vector<std::string>{"gradtap-1"});
}

// The loopback port on which `actor` can be reached: the target of the node link's control connections.
template <class Handle>
[[nodiscard]] Result<std::uint16_t> publish_on_loopback(caf::actor_system& system, const Handle& actor) {
  const auto port = system.middleman().publish(actor, 0, "127.0.0.1", true);
  if (port) return *port;
  return fail(ErrorCode::kPortOpen, "the middleman cannot listen on loopback", "127.0.0.1", "a free port",
              system.render(port.error()), "check that 127.0.0.1 is up");
}

// Asks for the peer behind a control port; `.then` gets (node_id, strong_actor_ptr, set of interfaces). Never
// remote_actor() in an actor: it blocks a worker, for ever when the port is silent. Dialling may fail with
// connection_timeout although the peer is there, because CAF 0.17 takes a connection that has not received anything yet
// for one that was always silent when a heartbeat falls due: try again.
template <class Self>
[[nodiscard]] auto dial_peer(Self* self, std::uint16_t control_port, std::chrono::milliseconds deadline) {
  return self->request(self->system().middleman().actor_handle(), deadline, caf::connect_atom_v,
                       std::string("127.0.0.1"), control_port);
}

}  // namespace gradtap::actors
