#include "actors/node_memory.h"

#include <algorithm>

#include <unistd.h>

#include "actors/self_benchmark.h"
#include "common/number_file.h"
#include "storage/shard_store.h"

namespace gradtap::actors {

namespace {

constexpr double kMemoryShare = 0.75;
constexpr std::uint64_t kMi = std::uint64_t{1} << 20;
// Code, libraries, the actors' threads with their stacks and heaps, tables and texts.
constexpr std::uint64_t kProgramBytes = 160 * kMi;
constexpr std::uint64_t kConnectionBytes = std::uint64_t{128} << 10;  // a thread, a head, an answer

std::uint64_t memory_of_machine() {
  const auto pages = static_cast<std::uint64_t>(std::max(0L, ::sysconf(_SC_PHYS_PAGES)));
  const std::uint64_t physical = pages * static_cast<std::uint64_t>(::sysconf(_SC_PAGESIZE));
  const std::uint64_t allowed = number_in_file("/sys/fs/cgroup/memory.max");
  return allowed > 0 ? std::min(allowed, physical) : physical;
}

std::uint64_t packet_bytes(const NodeConfig& config) {
  if (config.tap.kind == TapKind::kNone) return 0;
  // The driver maps a ring to receive and one to send.
  const std::uint64_t rings = config.tap.kind == TapKind::kAfPacket
                                  ? 2 * config.tap.queues * config.tap.ring_frames * config.tap.frame_bytes
                                  : 0;
  return config.dpdk.memory_mb * kMi + rings;
}

}  // namespace

std::uint64_t job_memory_bytes(const NodeConfig& config) {
  if (config.limits.memory_bytes > 0) return config.limits.memory_bytes;
  return static_cast<std::uint64_t>(kMemoryShare * static_cast<double>(memory_of_machine()));
}

std::shared_ptr<MemoryLedger> node_memory(const NodeConfig& config) {
  const std::uint64_t program = kProgramBytes + config.side_channel.connections_max * kConnectionBytes;
  const std::uint64_t packets = packet_bytes(config);
  const std::uint64_t measuring = benchmark_memory_bytes();
  auto ledger = std::make_shared<MemoryLedger>(job_memory_bytes(config) + program + packets +
                                               storage::kStoreMemoryBytes + measuring);
  // They fit: the limit was made of them.
  (void)ledger->take(MemoryAccount::kProgram, program);
  (void)ledger->take(MemoryAccount::kPackets, packets);
  (void)ledger->take(MemoryAccount::kStore, storage::kStoreMemoryBytes);
  (void)ledger->take(MemoryAccount::kMeasuring, measuring);
  return ledger;
}

}  // namespace gradtap::actors
