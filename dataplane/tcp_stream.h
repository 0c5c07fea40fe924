// StreamPosition: 32-bit TCP sequence numbers as 64-bit positions of one direction.
//
// Position 0 is the first payload byte after the SYN, or the first byte that was seen. Distances are taken from the
// highest position seen; a jump of more than kMaxJump in either direction cannot be one of a live connection (its
// window is at most 2^30 bytes), so the position is lost and the caller must find itself again by content.
// Plain value, one thread.
#pragma once

#include <cstdint>

namespace gradtap::dataplane {

class StreamPosition {
 public:
  static constexpr std::int64_t kMaxJump = std::int64_t{1} << 30;

  [[nodiscard]] bool anchored() const { return anchored_; }
  void anchor(std::uint32_t sequence, std::uint64_t position) {
    sequence_ = sequence;
    highest_ = position;
    anchored_ = true;
  }
  // Signed distance of `sequence` from the highest position.
  [[nodiscard]] std::int64_t distance(std::uint32_t sequence) const {
    return static_cast<std::int32_t>(sequence - sequence_);
  }
  [[nodiscard]] static bool plausible(std::int64_t distance) { return distance <= kMaxJump && distance >= -kMaxJump; }
  // May be negative: bytes before the first one that counts.
  [[nodiscard]] std::int64_t position(std::uint32_t sequence) const {
    return static_cast<std::int64_t>(highest_) + distance(sequence);
  }
  void advance(std::uint64_t position) {
    if (position <= highest_) return;
    sequence_ += static_cast<std::uint32_t>(position - highest_);
    highest_ = position;
  }
  [[nodiscard]] std::uint64_t highest() const { return highest_; }

 private:
  std::uint64_t highest_ = 0;
  std::uint32_t sequence_ = 0;  // of highest_
  bool anchored_ = false;
};

}  // namespace gradtap::dataplane
