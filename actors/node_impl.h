// NodeImpl: everything of one node's process, for the sources of the node alone.
//
// Threads: start and stop by the main thread; launch() also on the side channel's and the feed's, under wiring_mutex.
#pragma once

#include <atomic>
#include <condition_variable>
#include <memory>
#include <mutex>
#include <optional>
#include <string>
#include <vector>

#include "actors/baseline_hold.h"
#include "actors/cluster_state.h"
#include "actors/feed.h"
#include "actors/gateway.h"
#include "actors/interfaces.h"
#include "actors/node.h"
#include "actors/node_capacity.h"
#include "actors/recovery.h"
#include "actors/tap_retention.h"
#include "actors/transport.h"
#include "common/clock.h"
#include "common/event_ring.h"
#include "common/memory_ledger.h"
#include "common/metrics.h"
#include "common/random.h"
#include "dataplane/decoder.h"
#include "dataplane/dpdk/dpdk_port.h"
#include "dataplane/flow_directory.h"
#include "link/node_link.h"
#include "storage/directory_store.h"
#include "storage/shard_store.h"

namespace gradtap::actors {

// Tells an actor, if there is one, to end as at a stop of the node.
template <class Handle>
void end(const Handle& handle) {
  if (handle) caf::anon_send_exit(handle, caf::exit_reason::user_shutdown);
}

struct Node::Impl {
  NodeConfig config;
  JobSection job;
  std::shared_ptr<ClusterState> cluster;
  std::shared_ptr<const Clock> clock = std::make_shared<const SystemClock>();
  std::shared_ptr<Random> random = std::make_shared<SystemRandom>();
  std::shared_ptr<EventRing> events;
  MetricsRegistry metrics;
  std::shared_ptr<MemoryLedger> memory;  // set before anything uses it
  storage::EnvironmentKillPoints kill_points;
  std::shared_ptr<storage::ShardStore> store;
  std::shared_ptr<storage::ObjectStore> objects;  // empty: nothing is published
  std::unique_ptr<dataplane::Eal> eal;
  std::shared_ptr<dataplane::Port> port;
  std::shared_ptr<dataplane::FlowDirectory> directory;
  std::optional<Transport> transport;  // set before anything uses it
  std::shared_ptr<TapRetention> retention;
  std::shared_ptr<BaselineHold> baseline = std::make_shared<BaselineHold>();
  std::shared_ptr<NodeCapacity> capacity;
  std::vector<std::string> warnings;
  std::string coverage_hole;
  std::unique_ptr<caf::actor_system_config> caf_config;
  std::unique_ptr<caf::actor_system> system;
  std::shared_ptr<link::NodeLink> node_link;  // empty: this node is alone
  PeerActor peer;
  Gateway gateway;

  mutable std::mutex wiring_mutex;
  std::shared_ptr<const Wiring> wiring = std::make_shared<const Wiring>();

  std::mutex death_mutex;
  std::condition_variable death_signal;
  std::optional<std::string> death;
  bool stopped = false;
  std::shared_ptr<std::atomic<StepNumber>> published = std::make_shared<std::atomic<StepNumber>>(0);
  bool left = false;           // under death_mutex: an epoch took this node out
  std::string cluster_digest;  // hex; the same on every node of the cluster
  ClusterConfig file;          // the cluster file

  // node_parts.cpp: what the node stands on.
  Status open_store();
  Status open_objects();
  Status open_port();
  void plan_coverage();
  Status open_link();
  Status join();
  [[nodiscard]] Result<std::vector<link::LinkMember>> link_members() const;

  // node_launch.cpp: actors of a lineage, and who knows whom.
  void broadcast(std::shared_ptr<const Wiring> next);
  void watch(const caf::strong_actor_ptr& actor, const std::string& name) const;
  template <class Handle>
  void watch_typed(const Handle& handle, const std::string& name) const {
    watch(caf::actor_cast<caf::strong_actor_ptr>(handle), name);
  }
  // `shards`: those that are in hand, of a baseline or of this node's store (`durable`).
  CoordinatorActor launch(const JobPlanPtr& plan, std::vector<std::shared_ptr<replica::Shard>> shards, bool durable);
  Launched launch_from_home(const schema::LineageRecord& record);
  // The owner of a shard here, added to `next`; `shard` may be empty.
  void own_shard(Wiring& next, ShardId id, std::shared_ptr<replica::Shard> shard, bool durable);
  // Another epoch: members, links, and the owners of newly assigned shards. By the epoch actor.
  void adopt(const EpochPtr& epoch);
  void forget_owner(ShardId id, LineageId lineage);
  static void mark_leaving(Wiring& next, const ClusterShape& shape);
  [[nodiscard]] ClusterShape shape(std::size_t shards) const;
  [[nodiscard]] StepNumber newest_point(const JobPlan& plan) const;
  [[nodiscard]] WiringPtr current_wiring() const;
  [[nodiscard]] std::string own_hello() const;
  [[nodiscard]] StepNumber stored_step() const;
  // What a reader of a state takes: the largest shard and its stored version.
  [[nodiscard]] std::uint64_t read_bytes() const;

  // node.cpp
  Status start();
  Status start_actors();
  Status start_tap_actors(Wiring& next);
  void start_peers(Wiring& next);
  void flush_before_stop(const Wiring& current) const;
  void add_replicators(Wiring& next) const;
  [[nodiscard]] HttpAnswer forward(HttpRequest&& request);
};

}  // namespace gradtap::actors
