// AdminState: what the admin actor keeps, and what it says for its own node, for the sources of admin alone.
#pragma once

#include <cstdint>
#include <functional>
#include <string>
#include <vector>

#include <nlohmann/json.hpp>

#include "actors/admin.h"
#include "actors/cluster_answer.h"

namespace gradtap::actors {

struct AdminState {
  static inline const char* name = "admin";
  AdminOptions options;
  WiringPtr wiring;
  std::uint64_t started_ns = 0;
  std::uint64_t questions = 0;
  std::uint64_t absences = 0;
};

using AdminPointer = AdminActor::stateful_pointer<AdminState>;
using AdminAnswer = std::function<void(nlohmann::json)>;

// This node's part of the answer to a question whose numbers have been read; signed with node, epoch, lineage.
void own_part(AdminPointer self, const ClusterQuestion& question, const std::vector<std::uint64_t>& numbers,
              const AdminAnswer& answer);
[[nodiscard]] nlohmann::json own_rates(const AdminState& state);

}  // namespace gradtap::actors
