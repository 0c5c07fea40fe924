// Supervisor: watches every other actor of the node.
//
// An actor that ends for any reason but an ordered shutdown is logged, noted as an event and reported to on_death,
// which ends the node: the store holds what is durable, and a restart recovers it (docs/operations.md).
#pragma once

#include <functional>
#include <memory>
#include <string>

#include "actors/interfaces.h"
#include "common/event_ring.h"

namespace gradtap::actors {

struct SupervisorOptions {
  std::shared_ptr<EventRing> events;
  std::function<void(const std::string& who, const std::string& why)> on_death;
};

[[nodiscard]] SupervisorActor spawn_supervisor(caf::actor_system& system, SupervisorOptions options);

}  // namespace gradtap::actors
