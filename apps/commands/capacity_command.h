// `gradtap plan capacity`: whether a job fits, what binds, how many nodes it takes (docs/capacity.md).
//
// Exit codes: 0 it fits, 1 it does not, 2 impossible flags or a cluster that does not answer.
#pragma once

#include <map>
#include <string>
#include <vector>

#include <CLI/CLI.hpp>

#include "apps/commands/node_access.h"
#include "capacity/job_shape.h"

namespace gradtap::commands {

struct CapacityOptions {
  // Exactly one of them says how large the job is.
  double parameters = 0;
  double gradient_bytes = 0;
  double moved_bytes = 0;
  std::string dtype = "float32";
  std::string optimizer = "adamw";
  std::vector<std::string> state;  // NAME:BYTES; replaces what the optimizer says
  std::uint32_t edges = 0;         // 0: all
  std::string frame = "roce-1024";
  std::string encapsulation = "none";
  std::string tap = "each";
  std::uint64_t shard_elements = std::uint64_t{1} << 24;
  capacity::JobShape job;
  std::uint32_t nodes = 0;  // 0: as many as are needed; of a cluster: its live nodes
  std::string cluster;
  NodeAccess access;                                 // of that cluster
  std::map<std::string, double, std::less<>> given;  // fields of the node by their JSON names
  bool json = false;
};

// Adds the flags to a command.
void capacity_flags(CLI::App* command, CapacityOptions& options);
int plan_capacity(CapacityOptions& options);

}  // namespace gradtap::commands
