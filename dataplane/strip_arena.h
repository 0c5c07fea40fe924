// StripArena: room for bytes that are made anew from frames, one block per burst in the usual case.
//
// Ownership: blocks are shared with whoever holds the burst (SegmentSink::keep); the arena starts a new block for the
// next one. Threads: one. No allocation while a block has room.
#pragma once

#include <algorithm>
#include <cstddef>
#include <cstdint>
#include <memory>

#include "dataplane/segment_sink.h"

namespace gradtap::dataplane {

class StripArena {
 public:
  explicit StripArena(std::size_t block_bytes = std::size_t{128} << 10) : block_bytes_(block_bytes) {}

  // `bytes` writable bytes, kept alive through `sink`.
  [[nodiscard]] std::uint8_t* take(std::size_t bytes, SegmentSink& sink) {
    if (block_ == nullptr || used_ + bytes > size_) {
      size_ = std::max(block_bytes_, bytes);
      block_.reset(new std::uint8_t[size_]);
      used_ = 0;
      sink.keep(block_);
    }
    std::uint8_t* const at = block_.get() + used_;
    used_ += bytes;
    return at;
  }
  // What was taken belongs to the burst that ends here.
  void end_burst() {
    block_.reset();
    used_ = size_ = 0;
  }

 private:
  std::size_t block_bytes_;
  std::shared_ptr<std::uint8_t[]> block_;
  std::size_t size_ = 0;
  std::size_t used_ = 0;
};

}  // namespace gradtap::dataplane
