// Assembler: the actor round an OpWindow.
//
// Purpose: copies payload once to its place in the op, proves coverage, and cuts bound ops into contributions for the
// shard owners here; what other nodes own goes to the retention, in case their taps lost it. Which op comes here is
// ingress's guess (tag modulo the number of assemblers) and only spreads the load. Threads: detached, one thread. Owns
// its window. Invariants: a lent burst is returned in the same message that consumed it; only complete ops without
// conflict are ever handed on.
#pragma once

#include <memory>

#include "actors/interfaces.h"
#include "actors/tap_retention.h"
#include "dataplane/flow_directory.h"
#include "dataplane/op_window.h"
#include "dataplane/schedule.h"

namespace gradtap::actors {

struct AssemblerOptions {
  std::uint16_t index = 0;
  std::shared_ptr<const dataplane::Schedule> schedule;
  dataplane::OpWindowConfig window;
  std::shared_ptr<TapRetention> retention;                    // of shards that other nodes own; may be empty
  std::shared_ptr<const dataplane::FlowDirectory> directory;  // says which comms have ended; may be empty
};

[[nodiscard]] AssemblerActor spawn_assembler(caf::actor_system& system, AssemblerOptions options);

}  // namespace gradtap::actors
