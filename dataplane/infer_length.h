// Length inference: the byte length of an all-reduce from nothing but its message lengths, for inspection of captures
// whose layouts nobody knows.
//
// Pure; any thread. The answer is a set of sizes that reproduce every edge exactly, message by message; it counts only
// if all of them have the same length. Work is bounded by the number of messages.
#pragma once

#include <cstdint>
#include <span>
#include <vector>

#include "dataplane/op_buffer.h"
#include "dataplane/schedule.h"

namespace gradtap::dataplane {

// Sizes (one per fitting element size of 8, 4, 2, 1 bytes) if exactly one byte length fits; empty otherwise. Edges with
// an unknown length (0) or unproven numbers are not used; at least one edge must remain.
[[nodiscard]] std::vector<OpSize> infer_op_size(const Schedule& schedule, std::span<const EdgeMessages> edges);

}  // namespace gradtap::dataplane
