// The actors of a lineage, and who knows whom.
#include <algorithm>
#include <utility>

#include <fmt/format.h>

#include "actors/coordinator.h"
#include "actors/node_impl.h"
#include "actors/peer_codec.h"
#include "actors/shard_owner.h"
#include "common/log.h"
#include "storage/object_key.h"

namespace gradtap::actors {

namespace {

template <class Handle>
void end(const Handle& handle) {
  if (handle) caf::anon_send_exit(handle, caf::exit_reason::user_shutdown);
}

}  // namespace

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
  tell(wiring->side_channel);
  tell(wiring->feed);
  tell(wiring->coordinator);
  tell(wiring->membership);
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
  if (plan->recorded_probe)
    options.warnings.emplace_back(
        "the recipe was found on a recorded probe: the trainer's own arithmetic was not tried");
  options.shape.self = cluster->self();
  for (const MemberSection& member : cluster->config().members) options.shape.names.push_back(member.name);
  options.shape.owners = cluster->owners(count);

  options.published = newest_point(*plan);

  std::vector<std::shared_ptr<replica::Shard>> by_id(count);
  for (auto& shard : shards) by_id[shard->range().id] = std::move(shard);
  options.version = ~StepNumber{0};
  for (ShardId id = 0; id < count; ++id) {
    const auto& owners = options.shape.owners[id];
    const bool here = std::find(owners.begin(), owners.end(), cluster->self()) != owners.end();
    const bool elsewhere = owners.size() > (here ? 1U : 0U);
    if (by_id[id] && !durable && elsewhere)
      baseline->put(id, {by_id[id]->version(), by_id[id]->digest().sha,
                         std::make_shared<const recovery::FullVersion>(*by_id[id])});
    if (!here) continue;
    const StepNumber version = by_id[id] ? by_id[id]->version() : plan->base_step;
    options.versions[id] = version;
    options.version = std::min(options.version, version);
  }
  if (options.versions.empty()) options.version = plan->base_step;
  const auto placed = options.versions;
  next->coordinator = spawn_coordinator(*system, std::move(options));
  watch_typed(next->coordinator, "coordinator");
  for (const auto& [id, version] : placed) {
    ShardOwnerOptions owner;
    owner.plan = plan;
    owner.id = id;
    owner.shard = std::move(by_id[id]);
    owner.durable = durable;
    owner.full_every_steps = config.store.full_every_steps;
    owner.flush_queue_steps = config.store.flush_queue_steps;
    next->owners.push_back(spawn_shard_owner(*system, std::move(owner)));
    next->owner_of[id] = next->owners.back();
    watch_typed(next->owners.back(), fmt::format("owner.{}", id));
  }
  CoordinatorActor coordinator = next->coordinator;
  broadcast(std::move(next));
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
  if (!marks || marks->size() != now->owners.size() || marks->empty()) return now->plan->base_step;
  StepNumber lowest = ~StepNumber{0};
  for (const storage::Mark& mark : *marks) lowest = std::min(lowest, mark.version);
  return lowest;
}

std::string Node::Impl::own_hello() const {
  PeerHello hello;
  hello.node = cluster->name(cluster->self());
  hello.cluster = to_hex(cluster->config().digest());
  hello.ready = cluster->ready(cluster->self());
  const WiringPtr now = current_wiring();
  hello.lineage = now->plan ? now->plan->lineage : 0;
  const storage::StoreHello seen = cluster->store(cluster->self());
  hello.store_id = seen.store_id;
  hello.presence_key = seen.presence_key;
  return encode_hello(hello);
}

}  // namespace gradtap::actors
