#include "capacity/node_json.h"

#include <algorithm>
#include <cmath>

#include "capacity/node_fields.h"

namespace gradtap::capacity {

nlohmann::json to_json(const NodeShape& node) {
  nlohmann::json body = {{"name", node.name}, {"source", node.source}};
  for (const NodeField& field : kNodeFields)
    if (node.*field.at > 0) body[std::string(field.name)] = node.*field.at;
  return body;
}

Result<NodeShape> node_from_json(const nlohmann::json& body) {
  const auto malformed = [](std::string_view field) {
    return fail(ErrorCode::kRequestMalformed, "a node's rates are not well formed", "rates." + std::string(field),
                "short texts, and numbers from 0 to 1e18");
  };
  if (!body.is_object()) return malformed("");
  NodeShape node;
  for (const auto& [name, text] : {std::pair{"name", &node.name}, std::pair{"source", &node.source}}) {
    const auto found = body.find(name);
    if (found == body.end()) continue;
    if (!found->is_string() || found->get_ref<const std::string&>().size() > 256) return malformed(name);
    *text = found->get<std::string>();
  }
  for (const NodeField& field : kNodeFields) {
    const auto found = body.find(field.name);
    if (found == body.end()) continue;
    if (!found->is_number()) return malformed(field.name);
    const double value = found->get<double>();
    if (!std::isfinite(value) || value < 0 || value > kNumberMax) return malformed(field.name);
    node.*field.at = value;
  }
  return node;
}

NodeShape weakest(std::span<const NodeShape> nodes) {
  NodeShape out;
  if (nodes.empty()) return out;
  out.name = nodes.size() == 1 ? nodes.front().name : "the weakest of " + std::to_string(nodes.size());
  out.source = nodes.front().source;
  for (const NodeField& field : kNodeFields) {
    double& value = out.*field.at;
    value = 0;
    for (const NodeShape& node : nodes) {
      const double said = node.*field.at;
      if (said <= 0) continue;
      value = value <= 0 ? said : field.cost ? std::max(value, said) : std::min(value, said);
    }
  }
  return out;
}

}  // namespace gradtap::capacity
