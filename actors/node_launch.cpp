// The actors of a lineage, and who knows whom.
#include <algorithm>
#include <utility>

#include <fmt/format.h>

#include "actors/coordinator.h"
#include "actors/node_impl.h"
#include "actors/peer_codec.h"
#include "actors/shard_owner.h"
#include "common/charged.h"
#include "common/log.h"
#include "common/log_context.h"
#include "storage/object_key.h"

namespace gradtap::actors {

void Node::Impl::watch(const caf::strong_actor_ptr& actor, const std::string& name) const {
  caf::anon_send(wiring->supervisor, watch_atom_v, actor, name);
}

WiringPtr Node::Impl::current_wiring() const {
  const std::lock_guard lock(wiring_mutex);
  return wiring;
}

void Node::Impl::broadcast(std::shared_ptr<const Wiring> next) {
  wiring = std::move(next);
  const auto tell = [this](const auto& handle) {
    if (handle) caf::anon_send(handle, wire_atom_v, wiring);
  };
  // The keeper first: it must know lineage and coordinator before the owners' first record can be durable.
  tell(wiring->keeper);
  tell(wiring->fetcher);
  // Owners and assemblers learn of the coordinator before it can send them anything.
  for (const OwnerActor& owner : wiring->owners) tell(owner);
  for (const AssemblerActor& assembler : wiring->assemblers) tell(assembler);
  for (const IngressActor& ingress : wiring->ingress) tell(ingress);
  tell(wiring->admin);
  tell(wiring->catalog);
  tell(wiring->side_channel);
  tell(wiring->feed);
  tell(wiring->coordinator);
  tell(wiring->membership);
  tell(wiring->epochs);
  tell(wiring->publisher);
}

// What has been published stays published, whoever starts again.
StepNumber Node::Impl::newest_point(const JobPlan& plan) const {
  if (!objects) return 0;
  const auto keys = objects->list(storage::points_prefix(job.name, plan.lineage));
  if (!keys) {
    log_warn("the points of the lineage cannot be listed", {{"error", keys.error().text()}});
    return 0;
  }
  // Until the new run publishes, a restore takes the parent's point that it came from.
  StepNumber newest = plan.resumed ? plan.base_step : 0;
  for (const std::string& key : *keys)
    if (const auto parsed = storage::parse_key(key); parsed && parsed->kind == storage::KeyKind::kPoint)
      newest = std::max(newest, parsed->step);
  return newest;
}

ClusterShape Node::Impl::shape(std::size_t shards) const {
  ClusterShape shape{cluster->self(), cluster->names(), cluster->owners(shards), cluster->epoch_number(), {}};
  for (MemberIndex member = 0; member < shape.names.size(); ++member) shape.out.push_back(cluster->is_out(member));
  return shape;
}

void Node::Impl::mark_leaving(Wiring& next, const ClusterShape& shape) {
  next.leaving.assign(next.owner_of.size(), false);
  for (ShardId id = 0; id < next.owner_of.size(); ++id) {
    const auto& owners = shape.owners[id];
    next.leaving[id] = next.owner_of[id] && std::find(owners.begin(), owners.end(), shape.self) == owners.end();
  }
}

void Node::Impl::own_shard(Wiring& next, ShardId id, std::shared_ptr<replica::Shard> shard, bool durable) {
  ShardOwnerOptions owner;
  owner.plan = next.plan;
  owner.id = id;
  owner.shard = std::move(shard);
  owner.durable = durable;
  owner.full_every_steps = config.store.full_every_steps;
  owner.flush_queue_steps = config.store.flush_queue_steps;
  owner.hold_steps = config.replica.apply_queue + 1;
  owner.retention = retention;
  owner.kill_points = &kill_points;
  owner.memory = memory;
  owner.on_released = [this, lineage = next.plan->lineage](ShardId released) { forget_owner(released, lineage); };
  next.owners.push_back(spawn_shard_owner(*system, std::move(owner)));
  next.owner_of[id] = next.owners.back();
  watch_typed(next.owners.back(), fmt::format("owner.{}", id));
}

void Node::Impl::forget_owner(ShardId id, LineageId lineage) {
  const std::lock_guard lock(wiring_mutex);
  if (stopped || !wiring->plan || wiring->plan->lineage != lineage || id >= wiring->owner_of.size()) return;
  auto next = std::make_shared<Wiring>(*wiring);
  const OwnerActor owner = std::exchange(next->owner_of[id], OwnerActor());
  std::erase(next->owners, owner);
  end(owner);
  // Assigned again while it was being given up: it begins anew.
  const auto owners = cluster->owners(next->owner_of.size());
  if (std::find(owners[id].begin(), owners[id].end(), cluster->self()) != owners[id].end())
    own_shard(*next, id, nullptr, true);
  broadcast(std::move(next));
}

void Node::Impl::adopt(const EpochPtr& epoch) {
  const std::lock_guard lock(wiring_mutex);
  if (stopped || !cluster->set_epoch(epoch)) return;
  if (cluster->is_out(cluster->self())) {
    log_warn("this node was taken out of the cluster: it ends", {{"epoch", epoch->record.number}});
    const std::lock_guard dying(death_mutex);
    left = true;
    death = "this node is not a member any more";
    death_signal.notify_all();
    return;
  }
  const auto members = link_members();
  if (!members) {
    log_error("an epoch's addresses cannot be used", {{"error", members.error().text()}});
  } else if (const Status set = node_link->set_members(*members); !set) {
    log_error("the node link cannot take the members of an epoch", {{"error", set.error().text()}});
  }
  auto ports = std::make_shared<std::vector<std::uint16_t>>();
  for (const std::string& name : cluster->names()) ports->push_back(node_link->control_port(name));
  auto next = std::make_shared<Wiring>(*wiring);
  add_replicators(*next);
  std::optional<ClusterShape> now;
  if (next->plan) {
    now = shape(next->owner_of.size());
    for (ShardId id = 0; id < next->owner_of.size(); ++id) {
      const auto& owners = now->owners[id];
      if (std::find(owners.begin(), owners.end(), cluster->self()) != owners.end() && !next->owner_of[id])
        own_shard(*next, id, nullptr, true);
    }
    mark_leaving(*next, *now);
  }
  const Wiring& current = *next;
  const MembershipActor membership = current.membership;
  const CoordinatorActor coordinator = current.coordinator;
  broadcast(std::move(next));
  caf::anon_send(membership, epoch_atom_v, ControlPortsPtr(std::move(ports)));
  if (now && coordinator)
    caf::anon_send(coordinator, epoch_atom_v, ClusterShapePtr(std::make_shared<const ClusterShape>(std::move(*now))));
}

CoordinatorActor Node::Impl::launch(const JobPlanPtr& plan, std::vector<std::shared_ptr<replica::Shard>> shards,
                                    bool durable) {
  const std::lock_guard lock(wiring_mutex);
  if (stopped) return {};  // nobody would end what is spawned now
  auto next = std::make_shared<Wiring>(*wiring);
  end(next->coordinator);
  for (const OwnerActor& owner : next->owners) end(owner);
  next->owners.clear();
  next->plan = plan;
  const std::size_t count = plan->shards.shards().size();
  next->owner_of.assign(count, OwnerActor());
  retention->begin(plan);
  baseline->begin(plan->lineage);

  CoordinatorOptions options;
  options.refusal = [directory = directory] { return directory->refusal(); };
  options.plan = plan;
  options.config.grace_ms = job.grace_ms;
  options.config.tags_absolute = job.transport == WireTransport::kGloo;
  options.config.coverage_hole = coverage_hole;
  options.config.bind_ahead_steps = config.replica.apply_queue;
  options.config.pending_steps_max = config.limits.pending_steps_max;
  options.config.layouts_max = config.limits.layouts_max;
  options.config.trainer_silent_ms = job.trainer_silent_ms;
  options.config.degraded_durable = cluster->config().degraded_durable;
  options.config.points_configured = objects != nullptr;
  options.config.publish_interval_steps = job.publish_interval_steps;
  options.clock = clock;
  options.events = events;
  options.cluster = cluster;
  options.retention = retention;
  published->store(0);
  options.published_seen = published;
  if (plan->recorded_probe)
    options.warnings.emplace_back(
        "the recipe was found on a recorded probe: the trainer's own arithmetic was not tried");
  options.shape = shape(count);
  options.config.has_tap = port != nullptr || cluster->alone();

  options.published = newest_point(*plan);

  std::vector<std::shared_ptr<replica::Shard>> by_id(count);
  for (auto& shard : shards) by_id[shard->range().id] = std::move(shard);
  options.version = ~StepNumber{0};
  for (ShardId id = 0; id < count; ++id) {
    const auto& owners = options.shape.owners[id];
    const bool here = std::find(owners.begin(), owners.end(), cluster->self()) != owners.end();
    const bool elsewhere = owners.size() > (here ? 1U : 0U);
    if (by_id[id] && !durable && elsewhere) {
      HeldVersion version{by_id[id]->version(), by_id[id]->digest().sha, nullptr, nullptr};
      if (!here) {
        version.shard = by_id[id];
      } else if (auto lease = memory->lease(MemoryAccount::kVersions, recovery::state_bytes(*plan, id),
                                            "a copy of the baseline for another node")) {
        version.full = charged(recovery::FullVersion(*by_id[id]), std::move(*lease));
      }
      // Without a copy its other owners take what this one has made durable.
      if (version.full || version.shard) baseline->put(id, std::move(version));
    }
    // What the store has of a shard that is another's now stays until that one has it too (PROTOCOLS 5.3).
    if (!by_id[id] || (!here && !durable)) continue;
    HeldShard held{by_id[id]->version(), 0};
    if (durable)
      if (const auto fulls = store->full_steps(plan->job, plan->lineage, id); fulls && !fulls->empty())
        held.from = fulls->front();
    options.held[id] = held;
    options.version = std::min(options.version, held.version);
  }
  if (options.held.empty()) options.version = plan->base_step;
  const ClusterShape placed = options.shape;
  const auto held = options.held;
  next->coordinator = spawn_coordinator(*system, std::move(options));
  watch_typed(next->coordinator, "coordinator");
  for (ShardId id = 0; id < count; ++id) {
    const auto& owners = placed.owners[id];
    const bool here = std::find(owners.begin(), owners.end(), cluster->self()) != owners.end();
    if (here || held.contains(id)) own_shard(*next, id, std::move(by_id[id]), durable);
  }
  mark_leaving(*next, placed);
  CoordinatorActor coordinator = next->coordinator;
  broadcast(std::move(next));
  set_log_context({{"job", job.name}, {"lineage", std::to_string(plan->lineage)}});
  log_info("lineage in force", {{"job", job.name}, {"lineage", plan->lineage}, {"base_step", plan->base_step}});
  return coordinator;
}

Launched Node::Impl::launch_from_home(const schema::LineageRecord& record) {
  if (const WiringPtr now = current_wiring(); now->plan && now->plan->lineage >= record.lineage) return {};
  auto parsed = plan_from_record(record);
  if (!parsed) {
    log_error("a lineage from the home cannot be followed", {{"error", parsed.error().text()}});
    return {};
  }
  const auto plan = std::make_shared<const JobPlan>(std::move(*parsed));
  return {plan, launch(plan, {}, true)};
}

// Lower bound of what the shards here need messages after.
StepNumber Node::Impl::stored_step() const {
  const WiringPtr now = current_wiring();
  if (!now->plan) return 0;
  const auto marks = store->marks(now->plan->job, now->plan->lineage);
  if (!marks || marks->empty()) return now->plan->base_step;
  StepNumber lowest = ~StepNumber{0};
  for (const storage::Mark& mark : *marks) lowest = std::min(lowest, mark.version);
  // The home also needs what the next recovery point is made of.
  return std::min(lowest, published->load());
}

std::uint64_t Node::Impl::read_bytes() const {
  const WiringPtr now = current_wiring();
  std::uint64_t largest = 0;
  if (now->plan)
    for (ShardId shard = 0; shard < now->plan->shards.shards().size(); ++shard)
      largest = std::max(largest, recovery::state_bytes(*now->plan, shard));
  return 2 * largest;
}

std::string Node::Impl::own_hello() const {
  PeerHello hello;
  hello.node = cluster->name(cluster->self());
  hello.cluster = cluster_digest;
  hello.epoch = cluster->epoch_number();
  hello.tap = cluster->tap(cluster->self());
  hello.ready = cluster->ready(cluster->self());
  const WiringPtr now = current_wiring();
  hello.lineage = now->plan ? now->plan->lineage : 0;
  const storage::StoreHello seen = cluster->store(cluster->self());
  hello.store_id = seen.store_id;
  hello.presence_key = seen.presence_key;
  return encode_hello(hello);
}

}  // namespace gradtap::actors
