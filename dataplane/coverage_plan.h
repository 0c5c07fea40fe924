// Coverage plan: which bytes of an all-reduce the mirrored edges carry in final form, and how often.
//
// Purpose: at attach, before the first byte: COVERAGE_HOLE when a chunk is carried nowhere, a warning when a byte has
// one copy only. In a ring each edge carries in final form every chunk but the target's: that one the target makes
// itself (gloo sends to the rank before, NCCL to the rank behind). Pure; any thread.
#pragma once

#include <cstdint>
#include <span>
#include <vector>

#include "common/error.h"

namespace gradtap::dataplane {

struct MirroredEdge {
  std::uint32_t source = 0;
  std::uint32_t target = 0;
};

enum class RingDirection : std::uint8_t { kToRankBefore, kToRankBehind };

[[nodiscard]] constexpr std::uint32_t ring_target(std::uint32_t source, std::uint32_t world, RingDirection direction) {
  return (source + (direction == RingDirection::kToRankBehind ? 1 : world - 1)) % world;
}

struct CoveragePlan {
  std::vector<std::uint32_t> copies;            // of chunk 0 .. world-1
  std::vector<std::uint32_t> uncovered_chunks;  // COVERAGE_HOLE if not empty
  std::uint32_t min_copies = 0;
  std::uint32_t max_copies = 0;
  std::uint32_t ring_edges = 0;  // of the mirrored ones, those that carry all-reduces
  [[nodiscard]] bool complete() const { return uncovered_chunks.empty() && !copies.empty(); }
};

// An edge that is listed twice counts twice (two ports mirror it). Edges outside the ring carry nothing; ranks outside
// the world are an error.
[[nodiscard]] Result<CoveragePlan> plan_ring_coverage(std::uint32_t world, RingDirection direction,
                                                      std::span<const MirroredEdge> edges);

}  // namespace gradtap::dataplane
