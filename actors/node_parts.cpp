// What a node stands on: store, object store, tap, node link.
#include <algorithm>
#include <filesystem>
#include <utility>

#include <fmt/format.h>

#include "actors/bulk_service.h"
#include "actors/node_impl.h"
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
    if (!cluster->alone())
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
  const auto stray = objects->remove_stray();
  if (!stray) return std::unexpected(stray.error());
  auto hello = storage::announce_store(*objects, config.node.name, *random);
  if (!hello) return std::unexpected(hello.error());
  cluster->set_store(cluster->self(), std::move(*hello));
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
  BulkServiceOptions service;
  service.system = system.get();
  service.job_name = job.name;
  service.chunk_bytes = config.link.chunk_bytes;
  service.store = store;
  service.retention = retention;
  service.baseline = baseline;
  service.feed = wiring->feed;
  service.side_channel = gateway.here;
  options->handler = bulk_service(std::move(service));
  options->metrics = &metrics;
  options->events = events.get();
  auto started = link::NodeLink::start(std::move(*options));
  if (!started) return std::unexpected(started.error());
  node_link = std::move(*started);
  return {};
}

}  // namespace gradtap::actors
