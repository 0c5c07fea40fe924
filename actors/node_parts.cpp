// What a node stands on: store, object store, tap, node link.
#include <algorithm>
#include <filesystem>
#include <utility>

#include <fmt/format.h>

#include "actors/bulk_service.h"
#include "actors/epochs.h"
#include "actors/node_impl.h"
#include "common/sha256.h"
#include "dataplane/coverage_plan.h"
#include "storage/store_identity.h"

namespace gradtap::actors {

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

Status Node::Impl::open_objects() {
  if (config.objects.directory.empty()) {
    if (file.members.size() > 1)
      return fail(ErrorCode::kConfigImpossibleValue, "a cluster needs an object store: it decides lineage numbers",
                  "objects.directory", "a directory that every node shares", "nothing", "set objects.directory");
    return {};
  }
  storage::DirectoryStoreOptions options;
  options.path = config.objects.directory;
  options.writer = config.node.name;
  options.kill_points = &kill_points;
  const auto faults = storage::faults_from_environment();
  if (!faults) return std::unexpected(faults.error());
  options.files = *faults;
  auto opened = storage::DirectoryStore::open(options);
  if (!opened) return std::unexpected(opened.error());
  objects = std::move(*opened);
  return {};
}

// Who belongs to the cluster is what the newest epoch says; a node that is alone needs none.
Status Node::Impl::join() {
  const auto self = file.index_of(config.node.name);
  const bool alone = file.members.size() == 1 && self && (file.members.front().link.empty() || !objects);
  if (alone) {
    cluster = std::make_shared<ClusterState>(file, *self);
  } else {
    if (!objects)
      return fail(ErrorCode::kConfigImpossibleValue, "the cluster file does not name this node", "node.name",
                  "a member's name", config.node.name, "add it to the cluster file, or correct node.name");
    auto epoch = join_epoch(*objects, file, config.node.name, *clock);
    if (!epoch) return std::unexpected(epoch.error());
    const auto& members = (*epoch)->record.members;
    const auto me = std::find_if(members.begin(), members.end(),
                                 [&](const schema::EpochMember& member) { return member.name == config.node.name; });
    const auto index = static_cast<MemberIndex>(me - members.begin());
    if (self && file.members[*self].link != me->link)
      warnings.push_back(fmt::format("the cluster file says {} for this node, the epoch {}: the epoch counts",
                                     file.members[*self].link, me->link));
    cluster = std::make_shared<ClusterState>(file, *epoch, index);
    if ((*epoch)->record.replicas != file.replicas)
      warnings.push_back(fmt::format("the cluster file says {} replicas, the epoch {}: the epoch counts", file.replicas,
                                     (*epoch)->record.replicas));
  }
  if (!objects) return {};
  const auto stray = objects->remove_stray();
  if (!stray) return std::unexpected(stray.error());
  auto hello = storage::announce_store(*objects, config.node.name, *random);
  if (!hello) return std::unexpected(hello.error());
  cluster_digest = to_hex(sha256("gradtap cluster " + hello->store_id));
  cluster->set_store(cluster->self(), std::move(*hello));
  cluster->set_tap(cluster->self(), config.tap.kind != TapKind::kNone);
  return {};
}

Result<std::vector<link::LinkMember>> Node::Impl::link_members() const {
  std::vector<link::LinkMember> members;
  for (const schema::EpochMember& member : cluster->epoch()->record.members) {
    if (member.state == schema::MemberState::kOut) continue;
    const auto place = parse_host_port(member.link);
    if (!place) return std::unexpected(place.error());
    members.push_back({member.name, place->host, place->port});
  }
  return members;
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
    if (mirrored) edges.push_back({rank, dataplane::ring_target(rank, world, transport->direction)});
  }
  const auto plan = dataplane::plan_ring_coverage(world, transport->direction, edges);
  if (!plan)
    warnings.push_back(plan.error().text());
  else if (!plan->complete())
    coverage_hole = fmt::format("the mirrored ports do not carry every final byte: {} of {} chunks are uncovered",
                                plan->uncovered_chunks.size(), world);
  else if (plan->min_copies == 1)
    warnings.emplace_back(
        "every final byte crosses the mirror once: a lost frame stops the replica; mirror more ports");
}

Status Node::Impl::open_link() {
  if (cluster->alone()) return {};
  auto options = link::link_options(config, cluster->config());
  if (!options) return std::unexpected(options.error());
  auto members = link_members();
  if (!members) return std::unexpected(members.error());
  options->members = std::move(*members);
  options->cluster = sha256("gradtap cluster " + cluster->store(cluster->self()).store_id);
  BulkServiceOptions service;
  service.system = system.get();
  service.job_name = job.name;
  service.chunk_bytes = config.link.chunk_bytes;
  service.store = store;
  service.retention = retention;
  service.baseline = baseline;
  service.feed = wiring->feed;
  service.want_full = [this](LineageId lineage, ShardId shard, StepNumber at_least) {
    const WiringPtr now = current_wiring();
    if (now->plan && now->plan->lineage == lineage && shard < now->owner_of.size() && now->owner_of[shard])
      caf::anon_send(now->owner_of[shard], full_atom_v, std::uint64_t{at_least});
  };
  service.side_channel = gateway.here;
  service.memory = memory;
  options->handler = bulk_service(std::move(service));
  options->metrics = &metrics;
  options->memory = memory;
  options->events = events.get();
  auto started = link::NodeLink::start(std::move(*options));
  if (!started) return std::unexpected(started.error());
  node_link = std::move(*started);
  return {};
}

}  // namespace gradtap::actors
