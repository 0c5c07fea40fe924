// GlooRing: the schedule of gloo's ring all-reduce (PROTOCOLS 2.3).
//
// Rank r sends to r-1. An op of B bytes is cut into S segments (S a multiple of the world, at least two a rank, at
// most 1 MiB each); chunk c is segments [c*P, (c+1)*P) with P = S / world. Reduce-scatter sends chunks r+1, r+2, ...
// (all but r), all-gather sends chunks r, r+1, ... (all but r-1). Segments behind the end of the op are empty and are
// not sent, so the two phases of an edge may have different numbers of messages.
// Pure; any thread. All answers are O(1).
#pragma once

#include "dataplane/schedule.h"

namespace gradtap::dataplane {

inline constexpr std::uint64_t kGlooMaxSegmentBytes = 1ULL << 20;
inline constexpr std::uint64_t kMaxOpBytes = 1ULL << 40;  // sizes beyond are refused: no arithmetic here overflows

struct GlooRingCut {
  std::uint64_t segments = 0;            // S
  std::uint64_t segments_per_chunk = 0;  // P
  std::uint64_t segment_bytes = 0;
  std::uint64_t filled = 0;  // segments that are not empty
};

// Zeroes for sizes that cannot be (0, not a multiple of the element size, beyond kMaxOpBytes).
[[nodiscard]] GlooRingCut gloo_ring_cut(std::uint32_t world, const OpSize& size);

class GlooRing final : public Schedule {
 public:
  explicit GlooRing(std::uint32_t world) : world_(world) {}
  [[nodiscard]] std::uint32_t world() const override { return world_; }
  [[nodiscard]] bool has_edge(std::uint32_t source, std::uint32_t target) const override;
  [[nodiscard]] std::uint64_t message_count(std::uint32_t source, const OpSize& size) const override;
  [[nodiscard]] std::optional<MessagePlace> place(std::uint32_t source, const OpSize& size,
                                                  std::uint64_t message_index) const override;

 private:
  std::uint32_t world_;
};

}  // namespace gradtap::dataplane
