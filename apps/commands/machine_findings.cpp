#include "apps/commands/machine_findings.h"

#include <algorithm>
#include <cerrno>
#include <chrono>
#include <cstring>
#include <filesystem>
#include <fstream>
#include <string>
#include <thread>
#include <vector>

#include <fcntl.h>
#include <fmt/format.h>
#include <sys/resource.h>
#include <sys/timex.h>
#include <unistd.h>

#include "apps/commands/meminfo.h"

namespace gradtap::commands {

namespace {

constexpr double kMiB = 1 << 20;
constexpr std::size_t kWriteBytes = std::size_t{64} << 20;
constexpr double kSlowDiskMiBPerSecond = 100;
constexpr double kRingMsMin = 100;  // of traffic at the port's rate: a node may be descheduled so long

// Whether RLIMIT_MEMLOCK does not hold for this process (CAP_IPC_LOCK).
bool locks_without_limit() {
  constexpr unsigned kCapIpcLock = 14;
  std::ifstream in("/proc/self/status");
  for (std::string word; in >> word;) {
    std::uint64_t mask = 0;
    if (word == "CapEff:" && in >> std::hex >> mask) return (mask >> kCapIpcLock & 1) != 0;
  }
  return false;
}

struct Written {
  double mib_per_second = 0;
  std::string error;
};

// One synced write beside what is there; the file is removed again.
Written timed_write(const std::string& directory) {
  const std::string path = fmt::format("{}/.gradtap-doctor-{}", directory, ::getpid());
  const int fd = ::open(path.c_str(), O_WRONLY | O_CREAT | O_EXCL | O_CLOEXEC, 0600);
  if (fd < 0) return {0, std::strerror(errno)};  // NOLINT(concurrency-mt-unsafe)
  std::vector<char> bytes(std::size_t{1} << 20);
  // Not zeros: some file systems store those as nothing.
  std::uint64_t state = 1;
  for (char& byte : bytes) byte = static_cast<char>((state = state * 6364136223846793005ULL + 1) >> 56);
  Written out;
  const auto begun = std::chrono::steady_clock::now();
  for (std::size_t done = 0; done < kWriteBytes && out.error.empty(); done += bytes.size())
    if (::write(fd, bytes.data(), bytes.size()) != static_cast<ssize_t>(bytes.size()))
      out.error = std::strerror(errno);                                             // NOLINT(concurrency-mt-unsafe)
  if (out.error.empty() && ::fdatasync(fd) != 0) out.error = std::strerror(errno);  // NOLINT(concurrency-mt-unsafe)
  const std::chrono::duration<double> took = std::chrono::steady_clock::now() - begun;
  ::close(fd);
  ::unlink(path.c_str());
  out.mib_per_second = static_cast<double>(kWriteBytes) / kMiB / took.count();
  return out;
}

// Where a directory that the node makes at its first start will lie.
std::string existing_part(std::filesystem::path directory) {
  std::error_code failed;
  while (!std::filesystem::exists(directory, failed) && directory.has_relative_path())
    directory = directory.has_parent_path() ? directory.parent_path() : ".";
  return directory.string();
}

Findings directory_findings(const std::string& what, const std::string& directory, std::uint64_t reserve_bytes) {
  std::error_code failed;
  if (!std::filesystem::is_directory(directory, failed))
    return {{Verdict::kWrong, what, directory + " is no directory",
             "create it, writable for the user of the node, or mount what belongs there"}};
  const Written written = timed_write(directory);
  if (!written.error.empty())
    return {{Verdict::kWrong, what, fmt::format("{} cannot be written: {}", directory, written.error),
             "make it writable for the user of the node; free space"}};
  const auto space = std::filesystem::space(directory, failed);
  const double free_bytes = failed ? 0 : static_cast<double>(space.available);
  Findings found;
  const bool slow = written.mib_per_second < kSlowDiskMiBPerSecond;
  found.push_back({slow ? Verdict::kWarning : Verdict::kOk, what,
                   fmt::format("{}: 64 MiB written and synced at {:.0f} MiB/s", directory, written.mib_per_second),
                   slow ? "each step writes the gradient bytes of the node's shards: compare with `gradtap plan "
                          "capacity`; a faster disk, or nothing else on it"
                        : ""});
  const bool full = free_bytes < 2 * static_cast<double>(reserve_bytes);
  found.push_back({full ? Verdict::kWrong : Verdict::kOk, what,
                   fmt::format("{:.1f} GiB free", free_bytes / kMiB / 1024),
                   full ? "free space: STORAGE_FULL stops the durable steps below store.min_free_bytes" : ""});
  return found;
}

}  // namespace

Findings core_findings(const NodeConfig& config) {
  const unsigned cores = std::thread::hardware_concurrency();
  const std::uint64_t busy = config.tap.kind == TapKind::kNone ? 1 : config.tap.queues + config.assembly.assemblers + 1;
  const bool few = cores < busy;
  return {
      {few ? Verdict::kWarning : Verdict::kOk, "cores",
       fmt::format("{} cores; {} queues, {} assemblers and the optimizer keep {} busy under load", cores,
                   config.tap.kind == TapKind::kNone ? 0 : config.tap.queues, config.assembly.assemblers, busy),
       few ? "fewer tap.queues or assembly.assemblers, or a machine with more cores: OVERLOAD_SHED otherwise" : ""}};
}

Findings memory_findings(const NodeConfig& config) {
  Findings found;
  const double available = static_cast<double>(meminfo("MemAvailable")) * 1024;
  const double wanted =
      static_cast<double>(config.assembly.window_bytes + config.assembly.retain_bytes + config.assembly.limbo_bytes);
  const bool little = available < wanted;
  found.push_back({little ? Verdict::kWrong : Verdict::kOk, "memory",
                   fmt::format("{:.1f} GiB available; windows may take {:.1f} GiB, beside the state of the shards",
                               available / kMiB / 1024, wanted / kMiB / 1024),
                   little ? "lower assembly.window_bytes and assembly.retain_bytes, or add memory" : ""});
  if (config.dpdk.hugepages) {
    const std::uint64_t free_mib = meminfo("HugePages_Free") * meminfo("Hugepagesize") / 1024;
    const bool none = free_mib < config.dpdk.memory_mb;
    found.push_back({none ? Verdict::kWrong : Verdict::kOk, "hugepages",
                     fmt::format("{} MiB free, dpdk.memory_mb is {}", free_mib, config.dpdk.memory_mb),
                     none ? "sysctl vm.nr_hugepages=N, or dpdk.hugepages = false" : ""});
  } else {
    found.push_back({Verdict::kSkipped, "hugepages", "dpdk.hugepages = false", ""});
  }
  return found;
}

Findings ring_findings(const NodeConfig& config) {
  if (config.tap.kind != TapKind::kAfPacket) return {{Verdict::kSkipped, "rings", "tap.kind is not af_packet", ""}};
  Findings found;
  const std::uint64_t locked = 2 * config.tap.frame_bytes * config.tap.ring_frames * config.tap.queues;
  rlimit limit{};
  ::getrlimit(RLIMIT_MEMLOCK, &limit);
  const bool free = limit.rlim_cur == RLIM_INFINITY || locks_without_limit();
  const bool beyond = !free && locked > limit.rlim_cur;
  found.push_back(
      {beyond ? Verdict::kWrong : Verdict::kOk, "rings",
       fmt::format("{:.1f} MiB are locked; the limit of this user is {}", static_cast<double>(locked) / kMiB,
                   free ? std::string("none") : fmt::format("{:.1f} MiB", static_cast<double>(limit.rlim_cur) / kMiB)),
       beyond ? "LimitMEMLOCK=infinity in the unit (ulimit -l), or a smaller tap.ring_frames" : ""});
  double bits = static_cast<double>(config.tap.port_bits_per_second);
  if (bits == 0) {
    double megabits = 0;
    std::ifstream("/sys/class/net/" + config.tap.interface + "/speed") >> megabits;
    bits = std::max(0.0, megabits) * 1e6;
  }
  if (bits == 0) {
    found.push_back({Verdict::kSkipped, "rings", "the interface does not say its rate (tap.port_bits_per_second)", ""});
    return found;
  }
  const double ms =
      static_cast<double>(config.tap.ring_frames * config.tap.queues * config.tap.frame_bytes) * 8e3 / bits;
  const bool brief = ms < kRingMsMin;
  found.push_back({brief ? Verdict::kWarning : Verdict::kOk, "rings",
                   fmt::format("hold {:.0f} ms of full frames at {:.1f} Gbit/s", ms, bits / 1e9),
                   brief ? "raise tap.ring_frames: what does not fit while the node is descheduled is lost" : ""});
  return found;
}

Findings disk_findings(const NodeConfig& config) {
  const std::string there = existing_part(config.node.data_dir);
  Findings found = directory_findings("disk", there, config.store.min_free_bytes);
  if (there != config.node.data_dir)
    found.insert(found.begin(),
                 {Verdict::kOk, "disk", config.node.data_dir + " is not there yet: the node makes it", ""});
  return found;
}

Findings object_findings(const NodeConfig& config) {
  if (config.objects.directory.empty())
    return {{Verdict::kWarning, "objects", "objects.directory is not set: no recovery point is ever published",
             "set it to a directory that every node shares and that outlives them"}};
  return directory_findings("objects", config.objects.directory, 0);
}

Findings clock_findings() {
  timex state{};
  const bool loose = ::adjtimex(&state) == TIME_ERROR || (state.status & STA_UNSYNC) != 0;
  return {
      {loose ? Verdict::kWarning : Verdict::kOk, "clock",
       loose ? "not synchronised"
             : fmt::format("synchronised, error at most {:.1f} ms", static_cast<double>(state.maxerror) / 1e3),
       loose ? "run chrony or systemd-timesyncd: no decision compares clocks, but logs of nodes are read side by side, "
               "and certificates have dates"
             : ""}};
}

}  // namespace gradtap::commands
