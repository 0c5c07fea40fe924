// CapacityPlan: whether a job fits so many nodes, what binds, and how many nodes it takes.
//
// Pure; any thread. `nodes_needed` is the smallest number, not below the replicas nor what is there and does not do, at
// which every judged row fits; nullopt where no number up to kNodesMax does, and then `stuck` says which resource more
// nodes do not help. Failure behaviour: OUT_OF_RANGE for an impossible job; refusal() is CAPACITY_EXCEEDED.
#pragma once

#include <cstdint>
#include <optional>
#include <string>
#include <vector>

#include <nlohmann/json.hpp>

#include "capacity/model.h"

namespace gradtap::capacity {

inline constexpr std::uint32_t kNodesMax = 4096;

struct CapacityPlan {
  std::uint32_t nodes = 0;
  double share = 0;
  std::vector<Row> rows;
  Lag lag;
  bool fits = true;
  std::optional<std::size_t> binding;  // the row that is nearest to, or furthest beyond, what may be used
  std::optional<std::uint32_t> nodes_needed;
  std::optional<Resource> stuck;
};

// `nodes` 0: as many as are needed (as many as replicas where no number will do).
[[nodiscard]] Result<CapacityPlan> plan_capacity(const JobShape& job, const NodeShape& node, std::uint32_t nodes,
                                                 std::optional<double> share = std::nullopt);

// Why a job that does not fit is refused: resource, needed, available, nodes to add.
[[nodiscard]] Error refusal(const CapacityPlan& plan);
// "fits on 4 nodes; disk write binds (0.61 of 0.70)"
[[nodiscard]] std::string verdict(const CapacityPlan& plan);

[[nodiscard]] nlohmann::json to_json(const CapacityPlan& plan);

}  // namespace gradtap::capacity
