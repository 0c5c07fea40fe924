// Gateway: the HTTP face of the node (docs/side-channel.md); a thin shell round HttpServer.
//
// Purpose: turn requests into messages to the side channel and the admin actor, with a deadline each, and answers
// back. Threads: the server's; each request uses a scoped actor of its thread. Owns the server. Failure behaviour: an
// actor that does not answer in time yields 503, never a hanging connection; who may not ask is refused
// before the body is read, counted, and told as an event at most once a second.
#pragma once

#include <functional>
#include <memory>
#include <string>

#include "actors/access_guard.h"
#include "actors/access_log.h"
#include "actors/http_server.h"
#include "actors/interfaces.h"
#include "actors/point_answers.h"
#include "common/event_ring.h"

namespace gradtap::actors {

struct GatewayOptions {
  HttpServerOptions http;
  std::string job;                   // the job this node protects
  std::uint64_t deadline_ms = 4000;  // of an actor's answer
  SideChannelActor side_channel;
  AdminActor admin;
  std::function<WiringPtr()> wiring;  // the actors in force
  // Carries a request of the side channel to the home, wherever that is; empty: it is here.
  std::function<HttpAnswer(HttpRequest&&)> forward;
  // Prepares a stream of the durable state (StateReader); called on a server thread.
  std::function<Result<std::function<bool(const ByteSink&)>>(StepNumber step, bool optimizer)> state;
  // Recovery points; null where none are published (no object store).
  std::shared_ptr<PointAnswers> points;
  std::shared_ptr<EventRing> events;      // where refusals are told; null: nowhere
  std::shared_ptr<AccessGuard> guard;     // null: everybody may do everything
  std::shared_ptr<AccessLog> access_log;  // of reads of state; null: none is kept
};

struct Gateway {
  // Answers a request of the side channel as the home; for requests that another node forwards.
  std::function<HttpAnswer(HttpRequest&&)> here;
  GatewayActor actor;
  std::shared_ptr<HttpServer> server;  // started
};

[[nodiscard]] Result<Gateway> spawn_gateway(caf::actor_system& system, const GatewayOptions& options);

}  // namespace gradtap::actors
