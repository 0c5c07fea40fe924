// NodeCapacity: what this node has and how fast it is, for status, for its peers and for the job that attaches.
//
// Purpose: the budgets of the configuration, and the rates of one self-benchmark that runs on a thread of its own, at
// low priority, while the node is already at work. Ownership: shares the object store. Threads: any (a mutex).
// The destructor waits for the benchmark, which is bounded. Failure behaviour: what could not be measured is not known.
#pragma once

#include <chrono>
#include <memory>
#include <mutex>
#include <optional>
#include <string>
#include <thread>

#include "capacity/node_shape.h"
#include "common/config.h"
#include "storage/object_store.h"

namespace gradtap::actors {

inline constexpr unsigned kWorkerThreads = 2;  // of the actors' scheduler

class NodeCapacity {
 public:
  NodeCapacity(const NodeConfig& config, std::shared_ptr<storage::ObjectStore> objects);

  // Budgets at once, rates once they are measured. Disk space is that of now, or of the last seconds.
  [[nodiscard]] capacity::NodeShape shape() const;
  [[nodiscard]] bool measured() const;

 private:
  const NodeConfig config_;
  const std::shared_ptr<storage::ObjectStore> objects_;
  mutable std::mutex mutex_;
  capacity::NodeShape shape_;
  bool measured_ = false;
  mutable std::optional<std::chrono::steady_clock::time_point> looked_;
  mutable double disk_bytes_ = 0;
  std::jthread benchmark_;  // last: it uses what stands above
};

}  // namespace gradtap::actors
