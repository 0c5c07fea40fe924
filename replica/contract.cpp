#include "replica/contract.h"

#include <fmt/format.h>

namespace gradtap::replica {
namespace {

StateClass state_class_of(std::string_view name) {
  for (const StateClass state_class : {StateClass::kReplayed, StateClass::kSideChannel, StateClass::kSnapshot})
    if (name == state_class_name(state_class)) return state_class;
  return StateClass::kUnknown;
}

}  // namespace

std::string_view state_class_name(StateClass state_class) {
  switch (state_class) {
    case StateClass::kReplayed:
      return "replayed";
    case StateClass::kSideChannel:
      return "side-channel";
    case StateClass::kSnapshot:
      return "snapshot";
    case StateClass::kUnknown:
      return "unknown";
  }
  return "unknown";
}

Result<std::vector<InventoryLeaf>> parse_inventory(const Json& attach) {
  GRADTAP_LET(leaves, json_array(attach, "inventory", "", kMaxInventoryLeaves));
  std::vector<InventoryLeaf> inventory;
  for (const Json& object : *leaves) {
    const std::string where = fmt::format("inventory[{}]", inventory.size());
    InventoryLeaf leaf;
    GRADTAP_LET(name, json_text(object, "name", where));
    leaf.name = std::move(name);
    GRADTAP_LET(state_class, json_text(object, "class", where));
    leaf.state_class = state_class_of(state_class);
    if (object.contains("type")) {
      GRADTAP_LET(type, json_text(object, "type", where));
      leaf.type = std::move(type);
    }
    inventory.push_back(std::move(leaf));
  }
  return inventory;
}

std::vector<std::string> unknown_leaves(const std::vector<InventoryLeaf>& inventory) {
  std::vector<std::string> names;
  for (const InventoryLeaf& leaf : inventory)
    if (leaf.state_class == StateClass::kUnknown) names.push_back(leaf.name);
  return names;
}

}  // namespace gradtap::replica
