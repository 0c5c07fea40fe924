// The capacity model: what a job asks of each of so many nodes, resource by resource (docs/capacity.md).
//
// Purpose: rows of {needed, available, how much of it may be used}, each with its formula in words and with its
// numbers. Pure; any thread. Invariants: a row without a known need or a known supply is not judged and says what is
// missing. Failure behaviour: none; the caller has checked the shapes with check().
#pragma once

#include <cstdint>
#include <string>
#include <string_view>
#include <vector>

#include "capacity/job_shape.h"
#include "capacity/node_shape.h"
#include "common/error.h"

namespace gradtap::capacity {

enum class Resource : std::uint8_t {
  kMemory,
  kMemoryAtAttach,
  kWindow,
  kReceiveCores,
  kWorkerCores,
  kCores,
  kMemoryBandwidth,
  kMirrorPort,
  kNodeLink,
  kDiskWrite,
  kDiskSpace,
  kObjectWrite,
};
[[nodiscard]] std::string_view resource_name(Resource resource);

enum class Unit : std::uint8_t { kBytes, kBytesPerSecond, kBitsPerSecond, kCores };
[[nodiscard]] std::string quantity(double value, Unit unit);  // "1.50 GB/s"

struct Part {
  std::string name;
  double value = 0;  // in the row's unit
  std::string formula;
  std::string numbers;
};

struct Row {
  Resource resource{};
  Unit unit{};
  double needed = 0;
  double available = 0;
  double limit = 1;  // share of `available` that may be used
  std::vector<Part> parts;
  std::string unknown;  // what is not known; empty: the row is judged

  [[nodiscard]] bool judged() const { return unknown.empty(); }
  [[nodiscard]] double utilisation() const { return available > 0 ? needed / available : 0; }
  [[nodiscard]] bool fits() const { return !judged() || utilisation() <= limit; }
};

// How long a step takes from its last byte to being durable, and published.
struct Lag {
  double durable_s = 0;
  double published_s = 0;  // of the oldest step that waits for its point
  double durable_steps = 0;
  double published_steps = 0;
  std::string formula;
  std::string unknown;
};

[[nodiscard]] Status check(const JobShape& job);

// Share of the state that one of `nodes` owns: replicas/nodes, in whole shards.
[[nodiscard]] double owned_share(const JobShape& job, std::uint32_t nodes);

// `share`: what the fullest node owns; owned_share() where no map exists yet.
[[nodiscard]] std::vector<Row> rows(const JobShape& job, const NodeShape& node, std::uint32_t nodes, double share);
[[nodiscard]] Lag lag(const JobShape& job, const NodeShape& node, std::uint32_t nodes, double share);

}  // namespace gradtap::capacity
