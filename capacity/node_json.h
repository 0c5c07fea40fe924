// A NodeShape as JSON: what a node says of itself in `status` under "rates", and to the home at attach.
//
// Pure; any thread. What is read is hostile: numbers must be finite and at most kNumberMax, the name short; fields that
// are absent are not known, unknown fields are ignored. Failure behaviour: REQUEST_MALFORMED with the field.
#pragma once

#include <nlohmann/json.hpp>

#include "capacity/node_shape.h"
#include "common/error.h"

namespace gradtap::capacity {

inline constexpr double kNumberMax = 1e18;

[[nodiscard]] nlohmann::json to_json(const NodeShape& node);
[[nodiscard]] Result<NodeShape> node_from_json(const nlohmann::json& body);

}  // namespace gradtap::capacity
