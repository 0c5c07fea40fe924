// NodeShape: what a node has and how fast it is.
//
// Plain values, any thread. Zero means not known: what needs it is not judged.
#pragma once

#include <span>
#include <string>

namespace gradtap::capacity {

struct NodeShape {
  std::string name = "node";
  std::string source = "flags";  // who says so: flags, docs/performance.md, or the node's own measurement
  // What jobs may take.
  double memory_bytes = 0;
  double disk_bytes = 0;
  double cores = 0;
  double receive_queues = 0;
  double worker_threads = 0;  // that place, apply and digest
  double window_bytes_max = 0;
  double hold_bytes_max = 0;
  // Links.
  double mirror_ports = 0;
  double mirror_port_bits_per_s = 0;
  double link_bits_per_s = 0;
  // Rates of the node.
  double memory_bytes_per_s = 0;
  double disk_write_bytes_per_s = 0;    // synced
  double object_write_bytes_per_s = 0;  // durable in the object store
  // Rates of a core.
  double receive_s_per_frame = 0;
  double receive_s_per_byte = 0;
  double place_bytes_per_s = 0;  // final bytes copied to their place, or compared
  double apply_parameters_per_s = 0;
  double digest_bytes_per_s = 0;
};

// Of each number the smallest that any of them says; not known only where none says it.
[[nodiscard]] NodeShape weakest(std::span<const NodeShape> nodes);

}  // namespace gradtap::capacity
