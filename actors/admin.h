// Admin: answers for every actor of the node.
//
// Purpose: fan a question out, to the actors here and to the peers' admin actors, with a deadline, and merge the
// answers (cluster_answer.h); who does not answer is listed under "absent", never waited for. Owns nothing but handles.
// Thread: its own.
#pragma once

#include <functional>
#include <memory>
#include <string>
#include <vector>

#include "actors/answer_deadlines.h"
#include "actors/cluster_state.h"
#include "actors/interfaces.h"
#include "actors/tap_retention.h"
#include "capacity/node_shape.h"
#include "common/clock.h"
#include "common/cluster_config.h"
#include "common/config.h"
#include "common/event_ring.h"
#include "common/memory_ledger.h"
#include "common/metrics.h"

namespace gradtap::actors {

struct AdminOptions {
  std::string node;
  std::string job;
  std::string tap;  // description of the port
  std::shared_ptr<const Clock> clock;
  std::shared_ptr<const ClusterState> cluster;
  std::shared_ptr<const EventRing> events;
  std::vector<std::string> warnings;              // what the operator accepted and should not forget
  const MetricsRegistry* metrics = nullptr;       // of the node link; may be null
  std::function<capacity::NodeShape()> capacity;  // what this node has and how fast it is; may be empty
  std::function<bool()> capacity_measured;        // its rates are known
  std::shared_ptr<const MemoryLedger> memory;     // may be null
  std::shared_ptr<const TapRetention> retention;  // may be null
  AnswerDeadlines deadlines{};
  NodeConfig config;  // for the limits
  ClusterConfig cluster_config;
};

[[nodiscard]] AdminActor spawn_admin(caf::actor_system& system, AdminOptions options);

}  // namespace gradtap::actors
