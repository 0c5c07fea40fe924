#include "actors/node_capacity.h"

#include <algorithm>
#include <filesystem>

#include <sys/resource.h>
#include <unistd.h>

#include "actors/node_memory.h"
#include "actors/self_benchmark.h"
#include "common/number_file.h"

namespace gradtap::actors {

namespace {

constexpr std::chrono::seconds kLookAgain{2};
constexpr int kBenchmarkNice = 10;

double port_bits(const TapSection& tap) {
  if (tap.port_bits_per_second > 0) return static_cast<double>(tap.port_bits_per_second);
  if (tap.kind != TapKind::kAfPacket || tap.interface.find('/') != std::string::npos) return 0;
  return 1e6 * static_cast<double>(number_in_file("/sys/class/net/" + tap.interface + "/speed"));
}

// What the store may grow to: what is free beyond the reserve, and what it takes already.
double disk_of(const NodeConfig& config) {
  std::error_code failed;
  const auto space = std::filesystem::space(config.node.data_dir, failed);
  if (failed) return 0;
  const auto reserve = static_cast<double>(config.store.min_free_bytes);
  double bytes = std::max(1.0, static_cast<double>(space.available) - reserve);
  const auto stored = std::filesystem::path(config.node.data_dir) / "shards";
  for (std::filesystem::directory_iterator it(stored, failed), end; !failed && it != end; it.increment(failed)) {
    std::error_code gone;  // the store may delete it meanwhile
    const auto size = it->file_size(gone);
    if (!gone) bytes += static_cast<double>(size);
  }
  return bytes;
}

capacity::NodeShape budgets(const NodeConfig& config) {
  capacity::NodeShape node;
  node.name = config.node.name;
  node.source = "its configuration; rates are being measured";
  node.cores = std::thread::hardware_concurrency();
  node.memory_bytes = static_cast<double>(job_memory_bytes(config));
  node.worker_threads = kWorkerThreads;
  node.window_bytes_max = static_cast<double>(config.assembly.window_bytes);
  node.hold_bytes_max = static_cast<double>(config.assembly.retain_bytes);
  if (config.tap.kind == TapKind::kNone) return node;
  node.receive_queues = static_cast<double>(config.tap.queues);
  node.mirror_ports = 1;
  node.mirror_port_bits_per_s = port_bits(config.tap);
  return node;
}

}  // namespace

NodeCapacity::NodeCapacity(const NodeConfig& config, std::shared_ptr<storage::ObjectStore> objects)
    : config_(config), objects_(std::move(objects)), shape_(budgets(config)), benchmark_([this] {
        const auto thread = static_cast<id_t>(::gettid());  // of this thread alone, and never up
        ::setpriority(PRIO_PROCESS, thread, std::max(kBenchmarkNice, ::getpriority(PRIO_PROCESS, thread)));
        capacity::NodeShape node = budgets(config_);
        node.source = "measured at its start";
        measure_rates(config_.node.data_dir, objects_.get(), config_.node.name, node);
        const std::lock_guard lock(mutex_);
        shape_ = std::move(node);
        measured_ = true;
      }) {}

capacity::NodeShape NodeCapacity::shape() const {
  const std::lock_guard lock(mutex_);
  // A store has many files; a status may be asked for often.
  const auto now = std::chrono::steady_clock::now();
  if (!looked_ || now - *looked_ > kLookAgain) {
    looked_ = now;
    disk_bytes_ = disk_of(config_);
  }
  capacity::NodeShape node = shape_;
  node.disk_bytes = disk_bytes_;
  return node;
}

bool NodeCapacity::measured() const {
  const std::lock_guard lock(mutex_);
  return measured_;
}

}  // namespace gradtap::actors
