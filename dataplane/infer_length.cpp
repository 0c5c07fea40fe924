#include "dataplane/infer_length.h"

#include <algorithm>

namespace gradtap::dataplane {
namespace {

bool reproduces(const Schedule& schedule, const OpSize& size, const EdgeMessages& edge) {
  if (schedule.message_count(edge.source_rank, size) != edge.lengths.size()) return false;
  for (std::size_t i = 0; i < edge.lengths.size(); ++i) {
    const auto place = schedule.place(edge.source_rank, size, i);
    if (!place || place->bytes != edge.lengths[i]) return false;
  }
  return true;
}

}  // namespace

std::vector<OpSize> infer_op_size(const Schedule& schedule, std::span<const EdgeMessages> edges) {
  std::vector<const EdgeMessages*> usable;
  for (const EdgeMessages& edge : edges) {
    const bool whole = std::none_of(edge.lengths.begin(), edge.lengths.end(), [](std::uint64_t l) { return l == 0; });
    if (edge.numbers_proven && whole && !edge.lengths.empty()) usable.push_back(&edge);
  }
  std::vector<OpSize> fitting;
  if (usable.empty()) return fitting;
  // Every filled segment crosses every edge once or twice (chunk r only in the second phase, chunk r-1 only in the
  // first). So the longest message is the segment length, the shortest is the last segment's, and K filled segments
  // make n messages with n/2 <= K <= n.
  const auto& lengths = usable.front()->lengths;
  const auto [shortest, longest] = std::minmax_element(lengths.begin(), lengths.end());
  const std::uint64_t segment = *longest, tail = *shortest, n = lengths.size();
  for (std::uint64_t filled = (n + 1) / 2; filled <= n; ++filled) {
    const std::uint64_t bytes = (filled - 1) * segment + tail;
    for (const std::uint32_t element : {8U, 4U, 2U, 1U}) {
      if (bytes % element != 0) continue;
      const OpSize size{bytes, element};
      const bool fits = std::all_of(usable.begin(), usable.end(),
                                    [&](const EdgeMessages* edge) { return reproduces(schedule, size, *edge); });
      if (!fits) continue;
      if (!fitting.empty() && fitting.front().bytes != bytes) return {};
      fitting.push_back(size);
    }
  }
  return fitting;
}

}  // namespace gradtap::dataplane
