// LimitTable: every bound of a node in one list: queues, windows, buffers, waits, retries.
//
// Purpose: what it bounds, its value on this node and where that comes from, what is in it now, how often it was hit,
// and what happens then (`gradtap limits`, docs/limits.md). Pure: reads a configuration and a node's own status; any
// thread. Invariants: a row has a key of the configuration or a built-in value; tests/floors/docs_test.py compares the
// rows with docs/limits.md. Failure behaviour: a figure that the status has not is null.
#pragma once

#include <cstdint>
#include <span>
#include <string_view>

#include <nlohmann/json.hpp>

#include "common/cluster_config.h"
#include "common/config.h"

namespace gradtap::actors {

// A figure of a status: "node", "job", "link", "memory", or an actor; of several actors of one kind the sum. `key` may
// be a path ("decoder.window_hits").
struct StatusFigure {
  std::string_view part;
  std::string_view key;
};

struct LimitRow {
  std::string_view name;  // of docs/limits.md
  std::string_view unit;
  std::string_view key;   // of the configuration; empty: built in
  std::uint64_t builtin;  // its value then
  StatusFigure used;      // empty part: nothing is in it at a time
  StatusFigure hits;
  std::string_view then;  // what happens at the bound
};

[[nodiscard]] std::span<const LimitRow> limit_rows();

// [{name, unit, key, limit, used, hits, then}] of the node whose status this is.
[[nodiscard]] nlohmann::json limits_json(const NodeConfig& config, const ClusterConfig& cluster,
                                         const nlohmann::json& status);

}  // namespace gradtap::actors
