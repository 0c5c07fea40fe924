// The JSON form of an InspectReport. Ranges are half-open, in bytes. Pure; any thread.
#pragma once

#include <nlohmann/json.hpp>

#include "dataplane/inspect.h"

namespace gradtap::dataplane {

[[nodiscard]] nlohmann::json inspect_json(const InspectReport& report);

}  // namespace gradtap::dataplane
