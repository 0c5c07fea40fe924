// Eal: DPDK's environment, started once per process, without naming a DPDK type.
//
// Purpose: the arguments that work with and without hugepages, on machines without DPDK-bound cards. Ownership: the
// Eal must outlive every port. Threads: start from the main thread; register_thread() by each thread that polls.
// Invariants: at most one start per process (DPDK cannot be started twice); the caller's CPU affinity is left as it
// was. Failure behaviour: an Error with DPDK's own reason.
#pragma once

#include <cstdint>
#include <memory>
#include <string>

#include "common/error.h"

namespace gradtap::dataplane {

struct EalConfig {
  bool hugepages = false;
  std::uint32_t memory_mb = 512;  // for packet buffers; only without hugepages (they grow by themselves)
  std::string runtime_directory;  // empty: DPDK's default (/var/run/dpdk)
  bool verbose = false;           // DPDK's own log
};

class Eal {
 public:
  [[nodiscard]] static Result<std::unique_ptr<Eal>> start(const EalConfig& config);
  ~Eal();
  Eal(const Eal&) = delete;
  Eal& operator=(const Eal&) = delete;

  // Gives the calling thread an id, so that its buffer allocations are cached. Call unregister before it ends.
  [[nodiscard]] static Status register_thread();
  static void unregister_thread();

 private:
  Eal() = default;
};

}  // namespace gradtap::dataplane
