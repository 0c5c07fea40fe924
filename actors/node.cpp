#include "actors/node.h"

#include <algorithm>
#include <condition_variable>
#include <filesystem>
#include <mutex>
#include <utility>
#include <vector>

#include <fmt/format.h>

#include "actors/admin.h"
#include "actors/assembler.h"
#include "actors/coordinator.h"
#include "actors/gateway.h"
#include "actors/ingress.h"
#include "actors/interfaces.h"
#include "actors/keeper.h"
#include "actors/recovery.h"
#include "actors/shard_owner.h"
#include "actors/side_channel.h"
#include "actors/supervisor.h"
#include "common/clock.h"
#include "common/event_ring.h"
#include "common/random.h"
#include "dataplane/coverage_plan.h"
#include "dataplane/dpdk/dpdk_port.h"
#include "dataplane/gloo_ring.h"
#include "recovery/state_reader.h"

namespace gradtap::actors {

struct Node::Impl {
  NodeConfig config;
  JobSection job;
  std::shared_ptr<const Clock> clock = std::make_shared<const SystemClock>();
  std::shared_ptr<Random> random = std::make_shared<SystemRandom>();
  std::shared_ptr<EventRing> events;
  storage::EnvironmentKillPoints kill_points;
  std::shared_ptr<storage::ShardStore> store;
  std::unique_ptr<dataplane::Eal> eal;
  std::shared_ptr<dataplane::Port> port;
  std::shared_ptr<dataplane::FlowDirectory> directory;
  std::vector<std::string> warnings;
  std::string coverage_hole;
  caf::actor_system_config caf_config;
  std::unique_ptr<caf::actor_system> system;
  Gateway gateway;
  AdminActor admin;

  std::mutex wiring_mutex;  // launch() runs on the side channel's thread
  std::shared_ptr<const Wiring> wiring = std::make_shared<const Wiring>();

  std::mutex death_mutex;
  std::condition_variable death_signal;
  std::optional<std::string> death;
  bool stopped = false;

  void broadcast(std::shared_ptr<const Wiring> next);
  void watch(const caf::strong_actor_ptr& actor, const std::string& name) const;
  template <class Handle>
  void watch_typed(const Handle& handle, const std::string& name) const {
    watch(caf::actor_cast<caf::strong_actor_ptr>(handle), name);
  }
  CoordinatorActor launch(const SideChannelActor& side_channel, const JobPlanPtr& plan,
                          std::vector<std::shared_ptr<replica::Shard>> shards, bool durable);
  Status open_store();
  Status open_port();
  void plan_coverage();
  Status start();
};

namespace {

template <class Handle>
void end(const Handle& handle) {
  if (handle) caf::anon_send_exit(handle, caf::exit_reason::user_shutdown);
}

}  // namespace

void Node::Impl::watch(const caf::strong_actor_ptr& actor, const std::string& name) const {
  caf::anon_send(wiring->supervisor, watch_atom_v, actor, name);
}

void Node::Impl::broadcast(std::shared_ptr<const Wiring> next) {
  wiring = std::move(next);
  // The keeper first: it must know the coordinator before the owners' first record can be durable.
  if (wiring->keeper) caf::anon_send(wiring->keeper, wire_atom_v, wiring);
  // Owners and assemblers learn of the coordinator before it can send them anything.
  for (const OwnerActor& owner : wiring->owners) caf::anon_send(owner, wire_atom_v, wiring);
  for (const AssemblerActor& assembler : wiring->assemblers) caf::anon_send(assembler, wire_atom_v, wiring);
  for (const IngressActor& ingress : wiring->ingress) caf::anon_send(ingress, wire_atom_v, wiring);
  if (admin) caf::anon_send(admin, wire_atom_v, wiring);
  if (wiring->coordinator) caf::anon_send(wiring->coordinator, wire_atom_v, wiring);
}

CoordinatorActor Node::Impl::launch(const SideChannelActor& side_channel, const JobPlanPtr& plan,
                                    std::vector<std::shared_ptr<replica::Shard>> shards, bool durable) {
  const std::lock_guard lock(wiring_mutex);
  if (stopped) return {};  // nobody would end what is spawned now
  auto next = std::make_shared<Wiring>(*wiring);
  end(next->coordinator);
  for (const OwnerActor& owner : next->owners) end(owner);
  next->owners.clear();
  next->side_channel = side_channel;

  CoordinatorOptions options;
  options.plan = plan;
  options.config.grace_ms = job.grace_ms;
  options.config.coverage_hole = coverage_hole;
  options.config.bind_ahead_steps = config.replica.apply_queue;
  options.config.pending_steps_max = config.limits.pending_steps_max;
  options.config.layouts_max = config.limits.layouts_max;
  options.config.trainer_silent_ms = job.trainer_silent_ms;
  options.clock = clock;
  options.events = events;
  options.version = shards.empty() ? plan->base_step : shards.front()->version();
  options.warnings = warnings;
  if (plan->recorded_probe)
    options.warnings.emplace_back(
        "the recipe was found on a recorded probe: the trainer's own arithmetic was not tried");
  next->coordinator = spawn_coordinator(*system, std::move(options));
  watch_typed(next->coordinator, "coordinator");
  for (auto& shard : shards) {
    ShardOwnerOptions owner;
    owner.plan = plan;
    owner.shard = std::move(shard);
    owner.durable = durable;
    owner.full_every_steps = config.store.full_every_steps;
    owner.flush_queue_steps = config.store.flush_queue_steps;
    const std::string name = fmt::format("owner.{}", owner.shard->range().id);
    next->owners.push_back(spawn_shard_owner(*system, std::move(owner)));
    watch_typed(next->owners.back(), name);
  }
  CoordinatorActor coordinator = next->coordinator;
  broadcast(std::move(next));
  return coordinator;
}

Status Node::Impl::open_store() {
  std::error_code code;
  std::filesystem::create_directories(config.node.data_dir, code);
  if (code)
    return fail(ErrorCode::kStoreOpen, "the data directory cannot be created", config.node.data_dir, {}, code.message(),
                "check node.data_dir and its permissions");
  storage::StoreOptions options;
  options.path = (std::filesystem::path(config.node.data_dir) / "shards").string();
  options.chunk_bytes = config.store.chunk_bytes;
  options.min_free_bytes = config.store.min_free_bytes;
  options.kill_points = &kill_points;
  auto opened = storage::ShardStore::open(options);
  if (!opened) return std::unexpected(opened.error());
  store = std::move(*opened);
  return {};
}

Status Node::Impl::open_port() {
  if (config.tap.kind == TapKind::kNone) {
    warnings.emplace_back("tap.kind is none: this node receives nothing");
    return {};
  }
  dataplane::EalConfig eal_config;
  eal_config.hugepages = config.dpdk.hugepages;
  eal_config.memory_mb = static_cast<std::uint32_t>(config.dpdk.memory_mb);
  const auto runtime = std::filesystem::path(config.node.data_dir) / "dpdk";
  std::error_code ignored;
  std::filesystem::create_directories(runtime, ignored);
  eal_config.runtime_directory = runtime.string();
  auto started = dataplane::Eal::start(eal_config);
  if (!started) return std::unexpected(started.error());
  eal = std::move(*started);
  if (config.tap.kind == TapKind::kAfPacket) {
    dataplane::AfPacketConfig options;
    options.interface = config.tap.interface;
    options.queues = static_cast<std::uint16_t>(config.tap.queues);
    options.frame_bytes = static_cast<std::uint32_t>(config.tap.frame_bytes);
    options.ring_frames = static_cast<std::uint32_t>(config.tap.ring_frames);
    options.pool_frames = static_cast<std::uint32_t>(config.dpdk.mbufs);
    auto opened = dataplane::open_af_packet_port(*eal, options);
    if (!opened) return std::unexpected(opened.error());
    port = std::move(*opened);
  } else {
    dataplane::PcapConfig options;
    options.file = config.tap.file;
    options.pool_frames = static_cast<std::uint32_t>(config.dpdk.mbufs);
    auto opened = dataplane::open_pcap_port(*eal, options);
    if (!opened) return std::unexpected(opened.error());
    port = std::move(*opened);
  }
  if (config.tap.l4_checksum == L4Checksum::kOffload)
    warnings.emplace_back(
        "tap.l4_checksum is offload: TCP checksums are not verified, a frame corrupted on the mirror is only found by "
        "comparison and witness");
  return {};
}

void Node::Impl::plan_coverage() {
  const auto world = static_cast<std::uint32_t>(job.endpoints.size());
  std::vector<dataplane::MirroredEdge> edges;
  for (std::uint32_t rank = 0; rank < world; ++rank) {
    const bool mirrored =
        job.mirrored.empty() || std::find(job.mirrored.begin(), job.mirrored.end(), rank) != job.mirrored.end();
    if (mirrored) edges.push_back({rank, (rank + world - 1) % world});
  }
  const auto plan = dataplane::plan_gloo_ring_coverage(world, edges);
  if (!plan)
    warnings.push_back(plan.error().text());
  else if (!plan->complete())
    coverage_hole = fmt::format("the mirrored ports do not carry every final byte: {} of {} chunks are uncovered",
                                plan->uncovered_chunks.size(), world);
  else if (plan->min_copies == 1)
    warnings.emplace_back(
        "every final byte crosses the mirror once: a lost frame stops the replica; mirror more ports");
}

Status Node::Impl::start() {
  events = std::make_shared<EventRing>(config.limits.events, *clock);
  GRADTAP_TRY(check_node_config(config));
  job = config.jobs.front();
  const auto listen = parse_host_port(config.node.listen);
  if (!listen) return std::unexpected(listen.error());
  GRADTAP_TRY(open_store());
  auto recovered = recover_job(*store, job.name);
  if (!recovered) return std::unexpected(recovered.error());
  if (*recovered && (*recovered)->record.endpoints != job.endpoints)
    return fail(ErrorCode::kConfigImpossibleValue, "the store holds this job with other endpoints", "job.endpoints",
                fmt::format("{}", fmt::join((*recovered)->record.endpoints, ",")),
                fmt::format("{}", fmt::join(job.endpoints, ",")), "use another data_dir for another set of ranks");
  GRADTAP_TRY(open_port());
  plan_coverage();

  directory = std::make_shared<dataplane::FlowDirectory>(static_cast<std::uint32_t>(config.limits.flows_max));
  std::vector<dataplane::IpAddress> endpoints;
  for (const std::string& text : job.endpoints) {
    const auto address = dataplane::parse_ip(text);
    if (!address) return std::unexpected(address.error());
    endpoints.push_back(*address);
  }
  GRADTAP_TRY(directory->set_endpoints(endpoints));

  // Low wake-up latency and few threads: the ranks of a small rig share these cores.
  caf_config.set("scheduler.policy", caf::atom("sharing"));
  caf_config.set("scheduler.max-threads", std::size_t{2});
  caf_config.set("scheduler.max-throughput", std::size_t{64});
  system = std::make_unique<caf::actor_system>(caf_config);

  auto next = std::make_shared<Wiring>();
  SupervisorOptions supervision;
  supervision.events = events;
  supervision.on_death = [this](const std::string& who, const std::string& why) {
    log_error("an actor died; the node ends and a restart recovers it", {{"actor", who}, {"reason", why}});
    const std::lock_guard lock(death_mutex);
    death = who + ": " + why;
    death_signal.notify_all();
  };
  next->supervisor = spawn_supervisor(*system, std::move(supervision));
  wiring = next;
  next->keeper = spawn_keeper(*system, {job_id(job.name), store, config.store.keep_fulls, 5000});
  watch_typed(next->keeper, "keeper");
  if (*recovered) {
    // The keeper learns the lineage it writes for.
    caf::scoped_actor self{*system};
    Outcome outcome;
    self->request(next->keeper, std::chrono::seconds(10), record_atom_v,
                  LineageRecordPtr(std::make_shared<const schema::LineageRecord>((*recovered)->record)))
        .receive([&](const Outcome& got) { outcome = got; },
                 [&](const caf::error& error) {
                   outcome = {false,
                              {ErrorCode::kTimeout, "the keeper did not answer", {}, {}, system->render(error), {}}};
                 });
    if (!outcome.ok) return std::unexpected(outcome.error);
  }
  const auto world = static_cast<std::uint32_t>(job.endpoints.size());
  const auto schedule = std::make_shared<const dataplane::GlooRing>(world);
  const std::uint64_t assemblers = config.assembly.assemblers;
  for (std::uint64_t i = 0; i < assemblers; ++i) {
    AssemblerOptions options;
    options.index = static_cast<std::uint16_t>(i);
    options.schedule = schedule;
    options.window.window_bytes = config.assembly.window_bytes / assemblers;
    options.window.window_ops = static_cast<std::uint32_t>(config.assembly.window_ops);
    options.window.limbo_bytes = config.assembly.limbo_bytes / assemblers;
    next->assemblers.push_back(spawn_assembler(*system, std::move(options)));
    watch_typed(next->assemblers.back(), fmt::format("assembler.{}", i));
  }
  if (port)
    for (std::uint16_t queue = 0; queue < port->queue_count(); ++queue) {
      IngressOptions options;
      options.queue = queue;
      options.port = port;
      options.directory = directory;
      options.clock = clock;
      options.decoder.checksum = config.tap.l4_checksum == L4Checksum::kRequired ? dataplane::ChecksumPolicy::kRequired
                                                                                 : dataplane::ChecksumPolicy::kOffload;
      options.decoder.flow.reorder_window_bytes = config.tap.reorder_window_bytes;
      options.decoder.flow.reorder_grace_ms = config.tap.reorder_grace_ms;
      options.decoder.flow.reorder_grace_packets = config.tap.reorder_grace_packets;
      options.credits = static_cast<std::uint32_t>(config.assembly.credits);
      options.credit_wait_ms = config.assembly.credit_wait_ms;
      options.idle_sleep_us_max = static_cast<std::uint32_t>(config.tap.idle_sleep_us_max);
      next->ingress.push_back(spawn_ingress(*system, std::move(options)));
      watch_typed(next->ingress.back(), fmt::format("ingress.{}", queue));
    }
  admin = spawn_admin(*system, {config.node.name, job.name, port ? port->describe() : "none", clock});
  watch_typed(admin, "admin");
  {
    const std::lock_guard lock(wiring_mutex);
    broadcast(next);
  }
  SideChannelOptions side;
  side.job_name = job.name;
  side.endpoints = job.endpoints;
  side.shard_elements = config.replica.shard_elements;
  side.publish_interval_steps = job.publish_interval_steps;
  side.limits.batch_lines_max = config.side_channel.messages_lines_max;
  side.keeper = next->keeper;
  side.clock = clock;
  side.random = random;
  side.events = events;
  if (*recovered) {
    const StepNumber version = (*recovered)->shards.empty() ? 0 : (*recovered)->shards.front()->version();
    log_info("recovered from the store",
             {{"job", job.name}, {"lineage", (*recovered)->plan->lineage}, {"step", version}});
    events->add(LogLevel::kInfo, "recovered from the store",
                {{"job", job.name}, {"lineage", (*recovered)->plan->lineage}, {"step", version}});
    side.recovered = std::move(**recovered);
  }
  side.launch = [this](const SideChannelActor& side_channel, const JobPlanPtr& plan,
                       std::vector<std::shared_ptr<replica::Shard>> shards,
                       bool durable) { return launch(side_channel, plan, std::move(shards), durable); };
  const SideChannelActor side_channel = spawn_side_channel(*system, std::move(side));
  watch_typed(side_channel, "side_channel");

  GatewayOptions gate;
  gate.http.host = listen->host;
  gate.http.port = listen->port;
  gate.http.connections_max = static_cast<unsigned>(config.side_channel.connections_max);
  gate.http.body_bytes_max = config.side_channel.body_bytes_max;
  gate.http.request_timeout_ms = static_cast<unsigned>(config.side_channel.request_timeout_ms);
  gate.job = job.name;
  gate.side_channel = side_channel;
  gate.admin = admin;
  gate.events = events;
  gate.state = [this](StepNumber step, bool optimizer) {
    return recovery::prepare_state(store, job.name, step, optimizer);
  };
  auto opened = spawn_gateway(*system, std::move(gate));
  if (!opened) return std::unexpected(opened.error());
  gateway = std::move(*opened);
  watch_typed(gateway.actor, "gateway");
  {
    const std::lock_guard lock(wiring_mutex);
    auto whole = std::make_shared<Wiring>(*wiring);
    whole->side_channel = side_channel;
    whole->gateway = gateway.actor;
    broadcast(std::move(whole));
  }
  return {};
}

Status check_node_config(const NodeConfig& config) {
  if (config.jobs.size() != 1)
    return fail(ErrorCode::kUnsupported, "this version protects exactly one job per node", "[[job]]", "1",
                std::to_string(config.jobs.size()), "run one node per job");
  const JobSection& job = config.jobs.front();
  if (job.dtype != "float32")
    return fail(ErrorCode::kUnsupported, "only float32 gradients are replicated", "job.dtype", "float32", job.dtype,
                "use gradtap inspect for other types");
  if (job.endpoints.size() < 2)
    return fail(ErrorCode::kConfigImpossibleValue, "a job has at least two ranks", "job.endpoints", ">= 2",
                std::to_string(job.endpoints.size()), "list every rank's address, in rank order");
  return {};
}

Node::Node(std::unique_ptr<Impl> impl) : impl_(std::move(impl)) {}

Result<std::unique_ptr<Node>> Node::start(const NodeConfig& config) {
  auto node = std::unique_ptr<Node>(new Node(std::make_unique<Impl>()));
  node->impl_->config = config;
  GRADTAP_TRY(node->impl_->start());
  return node;
}

Node::~Node() {
  stop();
}

std::uint16_t Node::http_port() const {
  return impl_->gateway.server ? impl_->gateway.server->port() : 0;
}

std::optional<std::string> Node::wait(std::uint64_t timeout_ms) {
  std::unique_lock lock(impl_->death_mutex);
  impl_->death_signal.wait_for(lock, std::chrono::milliseconds(timeout_ms),
                               [this] { return impl_->death.has_value(); });
  return impl_->death;
}

void Node::stop() {
  Impl& impl = *impl_;
  {
    const std::lock_guard lock(impl.wiring_mutex);
    if (impl.stopped) return;
    impl.stopped = true;
  }
  if (impl.gateway.server) impl.gateway.server->stop();
  if (!impl.system) return;
  {
    const std::lock_guard lock(impl.wiring_mutex);
    const Wiring& wiring = *impl.wiring;
    // From the wire to the disk: what is upstream ends first, the keeper last, after what it was given.
    for (const IngressActor& ingress : wiring.ingress) end(ingress);
    for (const AssemblerActor& assembler : wiring.assemblers) end(assembler);
    end(wiring.side_channel);
    end(wiring.coordinator);
    for (const OwnerActor& owner : wiring.owners) end(owner);
    end(impl.gateway.actor);
    end(impl.admin);
    end(wiring.keeper);
    end(wiring.supervisor);
    impl.wiring = std::make_shared<const Wiring>();
  }
  impl.gateway.actor = nullptr;
  impl.admin = nullptr;
  impl.system.reset();  // waits for every actor
  impl.port.reset();
  impl.eal.reset();
  impl.store.reset();
}

}  // namespace gradtap::actors
