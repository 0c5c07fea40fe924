// Node: one process of the cluster, wired: store, recovery, port, actors, gateway.
//
// Purpose: the only place that knows which actor talks to which. Ownership: owns everything of the process; stop() ends
// it in order. Threads: start, wait and stop by the main thread. Failure behaviour: start() yields the first error and
// leaves nothing running; an actor that dies ends wait() with its name.
#pragma once

#include <cstdint>
#include <memory>
#include <optional>
#include <string>

#include "common/cluster_config.h"
#include "common/config.h"
#include "common/error.h"

namespace gradtap::actors {

// What this version asks of a configuration beyond what parsing already checked.
[[nodiscard]] Status check_node_config(const NodeConfig& config);

// Whether this node can show its peers who it is, where the cluster asks for it: reads the certificates.
[[nodiscard]] Status check_node_security(const NodeConfig& config, const ClusterConfig& cluster);

class Node {
 public:
  [[nodiscard]] static Result<std::unique_ptr<Node>> start(const NodeConfig& config, const ClusterConfig& cluster);
  ~Node();
  Node(const Node&) = delete;
  Node& operator=(const Node&) = delete;

  [[nodiscard]] std::uint16_t http_port() const;
  // What killed the node, if something did; returns after at most timeout_ms.
  [[nodiscard]] std::optional<std::string> wait(std::uint64_t timeout_ms);
  // An epoch took this node out of the cluster: wait() has said so, and a restart waits until it is added again.
  [[nodiscard]] bool left() const;
  // Looks for new certificates now. By the main thread.
  void reload_certificates();
  void stop();

 private:
  struct Impl;
  explicit Node(std::unique_ptr<Impl> impl);
  std::unique_ptr<Impl> impl_;
};

}  // namespace gradtap::actors
