#include "dataplane/gloo_ring.h"

#include <algorithm>

#include "dataplane/divide.h"

namespace gradtap::dataplane {
namespace {

// The filled segments among `length` consecutive ones (mod `cut.segments`) from `first`, as at most two runs.
struct CyclicRun {
  std::uint64_t head_first, head_count, tail_count;  // [head_first, +head_count) and then [0, tail_count)
  [[nodiscard]] std::uint64_t count() const { return head_count + tail_count; }
  [[nodiscard]] std::uint64_t at(std::uint64_t i) const { return i < head_count ? head_first + i : i - head_count; }
};

CyclicRun filled_run(const GlooRingCut& cut, std::uint64_t first, std::uint64_t length) {
  first %= cut.segments;
  const std::uint64_t head_end = std::min(first + length, cut.segments);
  const std::uint64_t tail_end = first + length - head_end;
  const std::uint64_t head_filled = std::min(head_end, cut.filled);
  return {first, head_filled > first ? head_filled - first : 0, std::min(tail_end, cut.filled)};
}

CyclicRun partial_run(const GlooRingCut& cut, std::uint32_t rank) {
  return filled_run(cut, (rank + 1ULL) * cut.segments_per_chunk, cut.segments - cut.segments_per_chunk);
}
CyclicRun final_run(const GlooRingCut& cut, std::uint32_t rank) {
  return filled_run(cut, rank * cut.segments_per_chunk, cut.segments - cut.segments_per_chunk);
}

}  // namespace

GlooRingCut gloo_ring_cut(std::uint32_t world, const OpSize& size) {
  GlooRingCut cut;
  const std::uint64_t element = size.element_bytes;
  if (world < 2 || world > (1U << 16) || element == 0 || element > 16 || size.bytes == 0 || size.bytes > kMaxOpBytes ||
      size.bytes % element != 0)
    return cut;
  const std::uint64_t max_segment = std::max<std::uint64_t>(1, kGlooMaxSegmentBytes / element) * element;
  cut.segments = round_up(std::max<std::uint64_t>(divide_up(size.bytes, max_segment), 2ULL * world), world);
  cut.segments_per_chunk = cut.segments / world;
  cut.segment_bytes = round_up(divide_up(size.bytes, cut.segments), element);
  cut.filled = divide_up(size.bytes, cut.segment_bytes);
  return cut;
}

bool GlooRing::has_edge(std::uint32_t source, std::uint32_t target) const {
  return world_ >= 2 && source < world_ && target == (source + world_ - 1) % world_;
}

std::uint64_t GlooRing::message_count(std::uint32_t source, const OpSize& size) const {
  if (source >= world_) return 0;
  const GlooRingCut cut = gloo_ring_cut(world_, size);
  if (cut.segments == 0) return 0;
  return partial_run(cut, source).count() + final_run(cut, source).count();
}

std::optional<MessagePlace> GlooRing::place(std::uint32_t source, const OpSize& size,
                                            std::uint64_t message_index) const {
  if (source >= world_) return std::nullopt;
  const GlooRingCut cut = gloo_ring_cut(world_, size);
  if (cut.segments == 0) return std::nullopt;
  MessagePlace place;
  std::uint64_t segment = 0;
  const CyclicRun partial = partial_run(cut, source);
  if (message_index < partial.count()) {
    segment = partial.at(message_index);
  } else {
    const CyclicRun last = final_run(cut, source);
    if (message_index - partial.count() >= last.count()) return std::nullopt;
    segment = last.at(message_index - partial.count());
    place.phase = Phase::kFinal;
  }
  place.op_offset = segment * cut.segment_bytes;
  place.bytes = std::min(cut.segment_bytes, size.bytes - place.op_offset);
  return place;
}

}  // namespace gradtap::dataplane
