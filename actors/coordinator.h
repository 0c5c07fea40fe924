// Coordinator: the actor round a Coordination: carries its commands out and brings the answers back.
//
// Threads: the scheduler's, one message at a time; a tick every 50 ms drives deadlines. Owns its Coordination. Every
// question to another actor has a deadline; no answer counts as "ask again".
#pragma once

#include <atomic>
#include <functional>
#include <map>
#include <memory>
#include <string>

#include "actors/cluster_state.h"
#include "actors/coordination.h"
#include "actors/interfaces.h"
#include "actors/tap_retention.h"
#include "common/event_ring.h"

namespace gradtap::actors {

struct CoordinatorOptions {
  JobPlanPtr plan;
  CoordinationConfig config;
  std::shared_ptr<const Clock> clock;
  std::shared_ptr<EventRing> events;
  StepNumber version = 0;                       // the lowest of the shards owned here
  std::map<ShardId, HeldShard> held;            // what the owners here have
  StepNumber published = 0;                     // the newest recovery point of the lineage that is there already
  ClusterShape shape;                           // no owners: this node alone owns everything
  std::shared_ptr<const ClusterState> cluster;  // who is live at the start; may be empty
  std::shared_ptr<std::atomic<StepNumber>> published_seen;  // told the newest published step; may be empty
  std::shared_ptr<TapRetention> retention;                  // told what every owner has durably; may be empty
  std::function<std::string()> refusal;  // what decoders saw and cannot decode (FlowDirectory); may be empty
  std::vector<std::string> warnings;     // shown with the status: what the operator should know and accepted
};

[[nodiscard]] CoordinatorActor spawn_coordinator(caf::actor_system& system, CoordinatorOptions options);

}  // namespace gradtap::actors
