#include "actors/node.h"

#include <algorithm>
#include <filesystem>
#include <utility>
#include <vector>

#include <fmt/format.h>
#include <nlohmann/json.hpp>

#include "actors/admin.h"
#include "actors/assembler.h"
#include "actors/bulk_service.h"
#include "actors/epochs.h"
#include "actors/fetcher.h"
#include "actors/ingress.h"
#include "actors/keeper.h"
#include "actors/membership.h"
#include "actors/middleman.h"
#include "actors/node_impl.h"
#include "actors/node_memory.h"
#include "actors/point_answers.h"
#include "actors/publisher.h"
#include "actors/replicator.h"
#include "actors/side_channel.h"
#include "actors/store_catalog.h"
#include "actors/supervisor.h"
#include "common/log.h"
#include "recovery/state_reader.h"

namespace gradtap::actors {

namespace {

std::unique_ptr<caf::actor_system_config> actor_config(const ClusterState& cluster) {
  auto config = std::make_unique<caf::actor_system_config>();
  // Low wake-up latency and few threads: the ranks of a small rig share these cores.
  config->set("scheduler.policy", caf::atom("sharing"));
  config->set("scheduler.max-threads", std::size_t{kWorkerThreads});
  config->set("scheduler.max-throughput", std::size_t{64});
  config->add_message_types<caf::id_block::gradtap>();
  if (cluster.alone()) return config;
  // Both sides watch the connection; what is silent for down_after_ms is gone (PROTOCOLS 1, M11).
  configure_middleman(*config, std::chrono::milliseconds(cluster.config().heartbeat_ms),
                      std::chrono::milliseconds(cluster.config().down_after_ms));
  return config;
}

}  // namespace

Status Node::Impl::start() {
  events = std::make_shared<EventRing>(config.limits.events, *clock);
  GRADTAP_TRY(check_node_config(config));
  job = config.jobs.front();
  memory = node_memory(config);
  GRADTAP_TRY(open_objects());
  GRADTAP_TRY(join());
  GRADTAP_TRY(open_store());
  auto recovered = recover_job(*store, job.name, cluster->alone(), memory);
  if (!recovered) return std::unexpected(recovered.error());
  if (*recovered && (*recovered)->record.endpoints != job.endpoints)
    return fail(ErrorCode::kConfigImpossibleValue, "the store holds this job with other endpoints", "job.endpoints",
                fmt::format("{}", fmt::join((*recovered)->record.endpoints, ",")),
                fmt::format("{}", fmt::join(job.endpoints, ",")), "use another data_dir for another set of ranks");
  directory = std::make_shared<dataplane::FlowDirectory>(static_cast<std::uint32_t>(config.limits.flows_max));
  auto chosen = make_transport(config.tap, job, directory, clock, memory);
  if (!chosen) return std::unexpected(chosen.error());
  transport = std::move(*chosen);
  GRADTAP_TRY(open_port());
  plan_coverage();
  if (!cluster->alone() && cluster->config().security == "none") {
    warnings.emplace_back("security is none: whoever can send from a member's address can read and change everything");
    log_warn(
        "SECURITY IS NONE: nothing between the nodes is encrypted, and whoever can send from a member's address can "
        "read and change everything; set security = \"tls\" in the cluster file",
        {});
  }
  if (job.security == "none") {
    warnings.emplace_back(
        "job.security is none: whoever reaches node.listen can read and change everything of the job");
    log_warn(
        "THE JOB IS OPEN: whoever reaches node.listen can read and change everything of it; make a key with gradtap "
        "secret new, name it in job.secret_file, and remove security = \"none\"",
        {{"job", job.name}});
  } else if (job.secret_file.empty()) {
    warnings.emplace_back("the job has no secret: every user and program of this host can read and change it");
  }
  retention = std::make_shared<TapRetention>(config.assembly.retain_bytes, 2, memory);
  std::vector<dataplane::IpAddress> endpoints;
  for (const std::string& text : job.endpoints) {
    const auto address = dataplane::parse_ip(text);
    if (!address) return std::unexpected(address.error());
    endpoints.push_back(*address);
  }
  GRADTAP_TRY(directory->set_endpoints(endpoints));

  capacity = std::make_shared<NodeCapacity>(config, objects);
  caf_config = actor_config(*cluster);
  system = std::make_unique<caf::actor_system>(*caf_config);
  GRADTAP_TRY(start_actors());
  if (!*recovered) return {};
  RecoveredJob& known = **recovered;
  const StepNumber version = known.shards.empty() ? known.plan->base_step : known.shards.front()->version();
  log_info("recovered from the store", {{"job", job.name}, {"lineage", known.plan->lineage}, {"step", version}});
  events->add(LogLevel::kInfo, "recovered from the store",
              {{"job", job.name}, {"lineage", known.plan->lineage}, {"step", version}});
  const CoordinatorActor coordinator = launch(known.plan, std::move(known.shards), true);
  for (const LayoutPtr& layout : known.feed.layouts) caf::anon_send(coordinator, layout_atom_v, layout);
  for (const StepMessagePtr& message : known.feed.messages) caf::anon_send(coordinator, step_atom_v, message);
  return {};
}

Status Node::Impl::start_tap_actors(Wiring& next) {
  const std::uint64_t assemblers = config.assembly.assemblers;
  for (std::uint64_t i = 0; i < assemblers; ++i) {
    AssemblerOptions options;
    options.index = static_cast<std::uint16_t>(i);
    options.schedule = transport->schedule;
    options.window.window_bytes = config.assembly.window_bytes / assemblers;
    options.window.window_ops = static_cast<std::uint32_t>(config.assembly.window_ops);
    options.window.limbo_bytes = config.assembly.limbo_bytes / assemblers;
    options.window.op.max_intervals = static_cast<std::uint32_t>(config.assembly.fragments_max);
    options.window.memory = memory;
    options.retention = retention;
    // A recorded run has ended before its client is played.
    if (port && port->live()) options.directory = directory;
    next.assemblers.push_back(spawn_assembler(*system, std::move(options)));
    watch_typed(next.assemblers.back(), fmt::format("assembler.{}", i));
  }
  if (!port) return {};
  for (std::uint16_t queue = 0; queue < port->queue_count(); ++queue) {
    IngressOptions options;
    options.queue = queue;
    options.port = port;
    options.clock = clock;
    options.make_decoder = transport->make_decoder;
    options.credits = static_cast<std::uint32_t>(config.assembly.credits);
    options.credit_wait_ms = config.assembly.credit_wait_ms;
    options.idle_sleep_us_max = static_cast<std::uint32_t>(config.tap.idle_sleep_us_max);
    next.ingress.push_back(spawn_ingress(*system, std::move(options)));
    watch_typed(next.ingress.back(), fmt::format("ingress.{}", queue));
  }
  return {};
}

Status Node::Impl::start_actors() {
  const auto listen = parse_host_port(config.node.listen);
  if (!listen) return std::unexpected(listen.error());
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
  KeeperOptions keeping;
  keeping.job = job_id(job.name);
  keeping.store = store;
  keeping.kill_points = &kill_points;
  keeping.keep_fulls = config.store.keep_fulls;
  keeping.retry_ms_max = config.store.retry_ms_max;
  keeping.objects = objects;
  keeping.node_name = config.node.name;
  keeping.clock = clock;
  next->keeper = spawn_keeper(*system, std::move(keeping));
  watch_typed(next->keeper, "keeper");
  GRADTAP_TRY(start_tap_actors(*next));
  AdminOptions administration{config.node.name,
                              job.name,
                              port ? port->describe() : "none",
                              clock,
                              cluster,
                              events,
                              warnings,
                              &metrics,
                              [this] { return capacity->shape(); },
                              [this] { return capacity->measured(); },
                              memory,
                              retention,
                              AnswerDeadlines(config.limits.answer_timeout_ms),
                              config,
                              cluster->config()};
  next->admin = spawn_admin(*system, std::move(administration));
  watch_typed(next->admin, "admin");
  next->catalog = spawn_store_catalog(*system, store);
  watch_typed(next->catalog, "store_catalog");

  FeedOptions feeding;
  feeding.job_name = job.name;
  feeding.store = store;
  feeding.keeper = next->keeper;
  feeding.launch = [this](const schema::LineageRecord& record) { return launch_from_home(record); };
  next->feed = spawn_feed(*system, std::move(feeding));
  watch_typed(next->feed, "feed");

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
  side.store = store;
  side.cluster = cluster;
  side.launch = [this](const JobPlanPtr& plan, std::vector<std::shared_ptr<replica::Shard>> shards) {
    return launch(plan, std::move(shards), false);
  };
  side.admission.terms = admission_terms(config, job);
  side.admission.own = [this] { return capacity->shape(); };
  side.admission.rates_wait_ms = config.limits.rates_wait_ms;
  side.admission.measured = [this] { return capacity->measured(); };
  side.on_base_durable = [this] { baseline->begin(0); };
  side.memory = memory;
  next->side_channel = spawn_side_channel(*system, std::move(side));
  watch_typed(next->side_channel, "side_channel");

  if (objects) {
    PublisherOptions publishing;
    publishing.job_name = job.name;
    publishing.interval_steps = job.publish_interval_steps;
    publishing.points_kept = config.objects.points_kept;
    publishing.lease_timeout_ms = config.objects.lease_timeout_ms;
    publishing.retry_ms_max = config.objects.retry_ms_max;
    publishing.objects = objects;
    publishing.store = store;
    publishing.cluster = cluster;
    publishing.clock = clock;
    publishing.random = random;
    publishing.events = events;
    publishing.kill_points = &kill_points;
    publishing.memory = memory;
    next->publisher = spawn_publisher(*system, std::move(publishing));
    watch_typed(next->publisher, "publisher");
  }

  GatewayOptions gate;
  gate.http.host = listen->host;
  gate.http.port = listen->port;
  gate.http.connections_max = static_cast<unsigned>(config.side_channel.connections_max);
  gate.http.body_bytes_max = config.side_channel.body_bytes_max;
  gate.http.request_timeout_ms = static_cast<unsigned>(config.side_channel.request_timeout_ms);
  gate.http.memory = memory;
  gate.http.head_bytes_max = config.side_channel.head_bytes_max;
  gate.deadline_ms = config.side_channel.answer_timeout_ms;
  gate.job = job.name;
  gate.side_channel = next->side_channel;
  gate.admin = next->admin;
  gate.state = [this](StepNumber step, bool optimizer) -> Result<recovery::StateStream> {
    GRADTAP_LET(lease, memory->lease(MemoryAccount::kPoints, read_bytes(), "a state that is exported"));
    GRADTAP_LET(stream, recovery::prepare_state(store, job.name, step, optimizer));
    return [stream = std::move(stream), lease = std::make_shared<const MemoryLease>(std::move(lease))](
               const recovery::ByteSink& sink) { return stream(sink); };
  };
  gate.wiring = [this] { return current_wiring(); };
  gate.forward = [this](HttpRequest&& request) { return forward(std::move(request)); };
  if (objects) {
    PointAnswersOptions answering;
    answering.job = job.name;
    answering.store = objects;
    answering.memory = memory;
    answering.streams_max = static_cast<unsigned>(config.objects.readers_max);
    answering.turn_wait = std::chrono::milliseconds(config.objects.reader_wait_ms);
    answering.read_bytes = [this] { return read_bytes(); };
    storage::LeaseTableOptions leasing;
    leasing.job = job.name;
    leasing.timeout_ms = config.objects.lease_timeout_ms;
    leasing.leases_max = config.objects.leases_max;
    answering.leases = std::make_shared<storage::LeaseTable>(objects, clock, random, leasing);
    gate.points = std::make_shared<PointAnswers>(std::move(answering));
  }
  auto rules = access_rules(config, job);
  if (!rules) return std::unexpected(rules.error());
  gate.events = events;
  gate.guard = std::make_shared<AccessGuard>(std::move(*rules));
  auto reads = AccessLog::open((std::filesystem::path(config.node.data_dir) / "access.log").string(),
                               config.security.access_log_bytes);
  if (!reads) return std::unexpected(reads.error());
  gate.access_log = std::move(*reads);
  auto opened = spawn_gateway(*system, gate);
  if (!opened) return std::unexpected(opened.error());
  gateway = std::move(*opened);
  next->gateway = gateway.actor;
  watch_typed(gateway.actor, "gateway");
  {
    const std::lock_guard lock(wiring_mutex);
    wiring = next;
  }
  GRADTAP_TRY(open_link());
  if (node_link) {
    start_peers(*next);
    const auto published = publish_on_loopback(*system, peer);
    if (!published) return std::unexpected(published.error());
    node_link->set_control_target(*published);
  } else {
    cluster->set_ready(cluster->self(), true);
  }
  const std::lock_guard lock(wiring_mutex);
  broadcast(next);
  if (!node_link) caf::anon_send(next->side_channel, home_atom_v, true);
  return {};
}

void Node::Impl::add_replicators(Wiring& next) const {
  while (next.replicators.size() < cluster->size()) {
    const MemberIndex member = next.replicators.size();
    next.replicators.emplace_back();
    if (member == cluster->self()) continue;
    next.replicators.back() = spawn_replicator(*system, {node_link, cluster, member, job_id(job.name),
                                                         std::min<std::uint64_t>(3000, config.link.call_timeout_ms)});
    watch_typed(next.replicators.back(), "replicator." + cluster->name(member));
  }
}

void Node::Impl::start_peers(Wiring& next) {
  next.fetcher = spawn_fetcher(*system, {node_link, cluster, job.name, config.link.call_timeout_ms, memory});
  watch_typed(next.fetcher, "fetcher");
  MembershipOptions members;
  for (MemberIndex member = 0; member < cluster->size(); ++member)
    members.control_ports.push_back(node_link->control_port(cluster->name(member)));
  add_replicators(next);
  members.cluster = cluster;
  members.deadlines = AnswerDeadlines(config.limits.answer_timeout_ms);
  members.clock = clock;
  members.events = events;
  members.hello = [this] { return own_hello(); };
  members.cluster_digest = cluster_digest;
  members.stored_step = [this] { return stored_step(); };
  next.membership = spawn_membership(*system, std::move(members));
  watch_typed(next.membership, "membership");
  peer = spawn_peer(*system, {[this] { return current_wiring(); }, [this] { return own_hello(); },
                              AnswerDeadlines(config.limits.answer_timeout_ms)});
  watch_typed(peer, "peer");
  EpochOptions epochs;
  epochs.objects = objects;
  epochs.cluster = cluster;
  epochs.clock = clock;
  epochs.events = events;
  epochs.kill_points = &kill_points;
  epochs.adopt = [this](const EpochPtr& epoch) { adopt(epoch); };
  next.epochs = spawn_epochs(*system, std::move(epochs));
  watch_typed(next.epochs, "epochs");
}

// A request of the side channel that came here while another node is the home.
HttpAnswer Node::Impl::forward(HttpRequest&& request) {
  const auto home = cluster->home();
  if (home == cluster->self()) return gateway.here(std::move(request));
  if (!home || !node_link)
    return http_error({ErrorCode::kNodeBusy, "no node is the home of the job yet", {}, {}, {}, "try again"}, 503);
  link::BulkRequest forwarding = forwarded(std::move(request));
  forwarding.job = job_id(job.name);
  const auto answer = node_link->call(cluster->name(*home), forwarding, config.side_channel.answer_timeout_ms);
  if (!answer) return http_error(answer.error(), 503);
  return forwarded_answer(answer->meta, answer->bytes);
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
  const auto rules = access_rules(config, job);
  if (!rules) return std::unexpected(rules.error());
  return {};
}

Status check_node_security(const NodeConfig& config, const ClusterConfig& cluster) {
  if (cluster.members.size() < 2) return {};
  const auto options = link::link_options(config, cluster);
  if (!options) return std::unexpected(options.error());
  return {};
}

Node::Node(std::unique_ptr<Impl> impl) : impl_(std::move(impl)) {}

Result<std::unique_ptr<Node>> Node::start(const NodeConfig& config, const ClusterConfig& cluster) {
  auto node = std::unique_ptr<Node>(new Node(std::make_unique<Impl>()));
  node->impl_->config = config;
  node->impl_->file = cluster;
  GRADTAP_TRY(node->impl_->start());
  return node;
}

Node::~Node() {
  stop();
}

std::uint16_t Node::http_port() const {
  return impl_->gateway.server ? impl_->gateway.server->port() : 0;
}

void Node::reload_certificates() {
  if (impl_->node_link) impl_->node_link->reload_certificates();
}

std::optional<std::string> Node::wait(std::uint64_t timeout_ms) {
  std::unique_lock lock(impl_->death_mutex);
  impl_->death_signal.wait_for(lock, std::chrono::milliseconds(timeout_ms),
                               [this] { return impl_->death.has_value(); });
  return impl_->death;
}

bool Node::left() const {
  const std::lock_guard lock(impl_->death_mutex);
  return impl_->left;
}

// What was applied here becomes durable, mark and all: after a restart nobody has to bring it again.
void Node::Impl::flush_before_stop(const Wiring& current) const {
  if (!current.keeper || current.owners.empty()) return;
  caf::scoped_actor waiter{*system};
  const std::uint64_t begun = clock->monotonic_ns();
  const auto left = [&] {
    const std::uint64_t spent_ms = (clock->monotonic_ns() - begun) / 1'000'000;
    // A disk that hangs does not keep the node from ending.
    return std::chrono::milliseconds(config.limits.stop_flush_ms - std::min(config.limits.stop_flush_ms, spent_ms));
  };
  Outcome flushed;
  StepNumber lowest = 0;
  bool behind = true;
  while (behind && flushed.ok && left().count() > 0) {
    waiter->request(current.keeper, left(), drain_atom_v)
        .receive([&](const Outcome& outcome) { flushed = outcome; },
                 [&](const caf::error& error) {
                   flushed = {false, {ErrorCode::kTimeout, "the store is slow", {}, {}, system->render(error), {}}};
                 });
    behind = false;
    lowest = ~StepNumber{0};
    for (const OwnerActor& owner : current.owners) {
      nlohmann::json body;
      waiter->request(owner, left(), status_atom_v)
          .receive([&](const ActorStatus& status) { body = nlohmann::json::parse(status.json, nullptr, false); },
                   [](const caf::error&) {});
      if (!body.is_object() || body.value("state", std::string()) == "syncing") continue;
      const StepNumber durable = body.value("durable", StepNumber{0});
      behind = behind || body.value("version", StepNumber{0}) > durable;
      lowest = std::min(lowest, durable);
    }
  }
  const LineageId lineage = current.plan ? current.plan->lineage : 0;
  if (!flushed.ok || behind)
    log_warn("stopping although not all that was applied is durable",
             {{"job", job.name}, {"lineage", lineage}, {"error", flushed.error.text()}});
  else if (lowest != ~StepNumber{0})
    log_info("stopping: what was applied is durable", {{"job", job.name}, {"lineage", lineage}, {"step", lowest}});
}

void Node::stop() {
  Impl& impl = *impl_;
  {
    const std::lock_guard lock(impl.wiring_mutex);
    if (impl.stopped) return;
    impl.stopped = true;
  }
  // Clients and peers go elsewhere at once: closed connections tell them that this node has left.
  if (impl.gateway.server) impl.gateway.server->stop();
  if (impl.node_link) impl.node_link->stop();
  if (!impl.system) return;
  {
    // Let go of before the system ends: a detached actor's thread waits until nobody has a handle to it.
    const WiringPtr current = impl.current_wiring();
    for (const IngressActor& ingress : current->ingress) end(ingress);
    impl.flush_before_stop(*current);
  }
  {
    const std::lock_guard lock(impl.wiring_mutex);
    const Wiring& wiring = *impl.wiring;
    // From the wire to the disk: what is upstream ends first, the keeper last, after what it was given.
    for (const IngressActor& ingress : wiring.ingress) end(ingress);
    for (const AssemblerActor& assembler : wiring.assemblers) end(assembler);
    end(wiring.membership);
    end(wiring.epochs);
    end(impl.peer);
    end(wiring.publisher);
    end(wiring.side_channel);
    end(wiring.feed);
    for (const ReplicatorActor& replicator : wiring.replicators) end(replicator);
    end(wiring.fetcher);
    end(wiring.coordinator);
    for (const OwnerActor& owner : wiring.owners) end(owner);
    end(impl.gateway.actor);
    end(wiring.admin);
    end(wiring.catalog);
    end(wiring.keeper);
    end(wiring.supervisor);
    impl.wiring = std::make_shared<const Wiring>();
  }
  impl.gateway.actor = nullptr;
  impl.peer = nullptr;
  impl.system.reset();  // waits for every actor
  impl.capacity.reset();
  impl.port.reset();
  impl.eal.reset();
  impl.node_link.reset();
  impl.store.reset();
}

}  // namespace gradtap::actors
