// Contract: how each object of the framework's checkpoint is obtained (the inventory of attach).
//
// Purpose: every leaf has a state class; a leaf of class unknown blocks publication, by name, and never training.
// Plain values; any thread.
#pragma once

#include <cstdint>
#include <string>
#include <string_view>
#include <vector>

#include "replica/json_fields.h"

namespace gradtap::replica {

enum class StateClass : std::uint8_t { kReplayed, kSideChannel, kSnapshot, kUnknown };

[[nodiscard]] std::string_view state_class_name(StateClass state_class);

struct InventoryLeaf {
  std::string name;
  StateClass state_class = StateClass::kUnknown;
  std::string type;
};

inline constexpr std::size_t kMaxInventoryLeaves = 1U << 20;

// "inventory" of an attach body. A class that this version does not know is unknown, not an error.
[[nodiscard]] Result<std::vector<InventoryLeaf>> parse_inventory(const Json& attach);
[[nodiscard]] std::vector<std::string> unknown_leaves(const std::vector<InventoryLeaf>& inventory);

}  // namespace gradtap::replica
