#include "actors/node_capacity.h"

#include <algorithm>
#include <filesystem>
#include <fstream>

#include <sys/resource.h>
#include <unistd.h>

#include "actors/self_benchmark.h"
#include "common/number_text.h"

namespace gradtap::actors {

namespace {

constexpr std::chrono::seconds kLookAgain{2};
constexpr double kMemoryShare = 0.75;
constexpr int kBenchmarkNice = 10;

// A file of the kernel with one number; 0 when there is none.
double number_in(const std::string& path) {
  std::ifstream in(path);
  std::string text;
  in >> text;
  return static_cast<double>(parse_integer<std::uint64_t>(text).value_or(0));
}

double memory_of_machine() {
  const auto pages = static_cast<double>(::sysconf(_SC_PHYS_PAGES));
  const double physical = std::max(0.0, pages) * static_cast<double>(::sysconf(_SC_PAGESIZE));
  const double allowed = number_in("/sys/fs/cgroup/memory.max");
  return allowed > 0 ? std::min(allowed, physical) : physical;
}

double port_bits(const TapSection& tap) {
  if (tap.port_bits_per_second > 0) return static_cast<double>(tap.port_bits_per_second);
  if (tap.kind != TapKind::kAfPacket || tap.interface.find('/') != std::string::npos) return 0;
  return 1e6 * number_in("/sys/class/net/" + tap.interface + "/speed");
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
  node.memory_bytes = config.limits.memory_bytes > 0 ? static_cast<double>(config.limits.memory_bytes)
                                                     : kMemoryShare * memory_of_machine();
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
