#include "dataplane/coverage_plan.h"

#include <algorithm>
#include <string>

namespace gradtap::dataplane {

Result<CoveragePlan> plan_ring_coverage(std::uint32_t world, RingDirection direction,
                                        std::span<const MirroredEdge> edges) {
  if (world < 2 || world > 65536)
    return fail(ErrorCode::kScheduleImpossible, "a ring needs at least two ranks", "world", "2 to 65536",
                std::to_string(world));
  CoveragePlan plan;
  std::vector<std::uint32_t> mirrored(world, 0);  // by source
  for (const MirroredEdge& edge : edges) {
    if (edge.source >= world || edge.target >= world)
      return fail(ErrorCode::kOutOfRange, "a mirrored edge names a rank outside the job",
                  std::to_string(edge.source) + " -> " + std::to_string(edge.target),
                  "ranks below " + std::to_string(world));
    if (edge.target != ring_target(edge.source, world, direction)) continue;
    ++mirrored[edge.source];
    ++plan.ring_edges;
  }
  plan.copies.assign(world, plan.ring_edges);
  for (std::uint32_t source = 0; source < world; ++source)
    plan.copies[ring_target(source, world, direction)] -= mirrored[source];
  for (std::uint32_t chunk = 0; chunk < world; ++chunk)
    if (plan.copies[chunk] == 0) plan.uncovered_chunks.push_back(chunk);
  const auto [low, high] = std::minmax_element(plan.copies.begin(), plan.copies.end());
  plan.min_copies = *low;
  plan.max_copies = *high;
  return plan;
}

}  // namespace gradtap::dataplane
