#include "dataplane/dpdk/eal.h"

#include <atomic>
#include <cstdlib>
#include <vector>

#include <fmt/format.h>
#include <pthread.h>
#include <rte_eal.h>
#include <rte_errno.h>
#include <rte_lcore.h>
#include <sched.h>

namespace gradtap::dataplane {
namespace {

std::atomic<bool> started{false};

}  // namespace

Result<std::unique_ptr<Eal>> Eal::start(const EalConfig& config) {
  if (started.exchange(true)) {
    return fail(ErrorCode::kPortOpen, "DPDK was started already", "EAL", "one start per process", {},
                "share one Eal between all ports");
  }
  cpu_set_t before;
  CPU_ZERO(&before);
  pthread_getaffinity_np(pthread_self(), sizeof before, &before);
  int cpu = 0;
  while (cpu < CPU_SETSIZE - 1 && !CPU_ISSET(cpu, &before)) ++cpu;

  std::vector<std::string> arguments{"gradtap", "--no-pci", "--no-telemetry", fmt::format("--lcores=0@{}", cpu),
                                     fmt::format("--log-level={}", config.verbose ? 7 : 4)};
  if (config.hugepages) {
    arguments.emplace_back("--in-memory");
  } else {
    // --in-memory does not go together with --no-huge in this version.
    arguments.insert(arguments.end(), {"--no-huge", "--no-shconf", "-m", std::to_string(config.memory_mb)});
  }
  if (!config.runtime_directory.empty()) setenv("RUNTIME_DIRECTORY", config.runtime_directory.c_str(), 1);
  std::vector<char*> raw;
  raw.reserve(arguments.size());
  for (std::string& argument : arguments) raw.push_back(argument.data());
  const int result = rte_eal_init(static_cast<int>(raw.size()), raw.data());
  // DPDK pins the calling thread, and threads that are created later would inherit it.
  pthread_setaffinity_np(pthread_self(), sizeof before, &before);
  if (result < 0) {
    // A failed start leaves DPDK unusable for the rest of the process.
    return fail(ErrorCode::kPortOpen, "DPDK does not start", "EAL", {}, rte_strerror(rte_errno),
                config.hugepages ? "reserve hugepages (sysctl vm.nr_hugepages), or configure hugepages = false"
                                 : "check that memory_mb is free and the runtime directory is writable");
  }
  return std::unique_ptr<Eal>(new Eal());
}

Eal::~Eal() {
  rte_eal_cleanup();
}

Status Eal::register_thread() {
  if (rte_lcore_id() != LCORE_ID_ANY) return {};
  if (rte_thread_register() == 0) return {};
  return fail(ErrorCode::kPortOpen, "DPDK has no id for another thread", "EAL", {}, rte_strerror(rte_errno),
              "use fewer receive queues");
}

void Eal::unregister_thread() {
  rte_thread_unregister();
}

}  // namespace gradtap::dataplane
