// MetricsText: a node's own status as Prometheus text (GET /metrics; docs/operations.md, Metrics).
//
// Purpose: one table says which number of a status is which metric; the counters of MetricsRegistry come by their own
// names. What the metrics say is what `gradtap status` says, because it is read from the same answer. Pure; any thread.
// Invariants: names follow the conventions (counters end in _total, units are bytes and seconds); every gap reason has
// a series, 1 while it is given. Failure behaviour: a number that is not in the status has no series.
#pragma once

#include <string>

#include <nlohmann/json_fwd.hpp>

namespace gradtap::actors {

// `status`: this node's part of the answer to "status".
[[nodiscard]] std::string metrics_text(const nlohmann::json& status);

inline constexpr const char* kMetricsType = "text/plain; version=0.0.4; charset=utf-8";

}  // namespace gradtap::actors
