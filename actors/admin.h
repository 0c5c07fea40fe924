// Admin: answers for every actor of the node.
//
// Purpose: fan a question out, to the actors here and to the peers' admin actors, with a 1 s deadline, and merge the
// answers; who does not answer is listed under "absent", never waited for. Owns nothing but handles. Thread: its own.
#pragma once

#include <memory>
#include <string>
#include <vector>

#include "actors/cluster_state.h"
#include "actors/interfaces.h"
#include "common/clock.h"
#include "common/metrics.h"

namespace gradtap::actors {

struct AdminOptions {
  std::string node;
  std::string job;
  std::string tap;  // description of the port
  std::shared_ptr<const Clock> clock;
  std::shared_ptr<const ClusterState> cluster;
  std::vector<std::string> warnings;         // what the operator accepted and should not forget
  const MetricsRegistry* metrics = nullptr;  // of the node link; may be null
};

[[nodiscard]] AdminActor spawn_admin(caf::actor_system& system, AdminOptions options);

}  // namespace gradtap::actors
