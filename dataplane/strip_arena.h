// StripArena: room for bytes that are made anew from frames, one block per burst in the usual case.
//
// Ownership: blocks are shared with whoever holds the burst (SegmentSink::keep); the arena starts a new block for the
// next one. A block that nobody holds any more is used again. Threads: one takes; a block may be let go on any thread,
// so the idle ones are behind a lock, taken once a block. No allocation while a block has room.
#pragma once

#include <algorithm>
#include <cstddef>
#include <cstdint>
#include <memory>
#include <mutex>
#include <utility>
#include <vector>

#include "dataplane/segment_sink.h"

namespace gradtap::dataplane {

class StripArena {
 public:
  explicit StripArena(std::size_t block_bytes = std::size_t{128} << 10)
      : block_bytes_(block_bytes), idle_(std::make_shared<Idle>()) {}

  // `bytes` writable bytes, kept alive through `sink`.
  [[nodiscard]] std::uint8_t* take(std::size_t bytes, SegmentSink& sink) {
    if (block_ == nullptr || used_ + bytes > size_) {
      size_ = std::max(block_bytes_, bytes);
      begin_block();
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
  using Block = std::unique_ptr<std::uint8_t[]>;
  // Outlives the arena while blocks are out.
  struct Idle {
    static constexpr std::size_t kKept = 64;
    Idle() { blocks.reserve(kKept); }
    std::mutex mutex;
    std::vector<Block> blocks;

    [[nodiscard]] Block take() {
      const std::lock_guard lock(mutex);
      if (blocks.empty()) return nullptr;
      Block block = std::move(blocks.back());
      blocks.pop_back();
      return block;
    }
    void give_back(Block block) {
      const std::lock_guard lock(mutex);
      if (blocks.size() < kKept) blocks.push_back(std::move(block));
    }
  };

  void begin_block() {
    if (size_ != block_bytes_) {
      block_.reset(new std::uint8_t[size_]);
      return;
    }
    Block block = idle_->take();
    if (block == nullptr) block.reset(new std::uint8_t[size_]);
    block_ = {block.release(), [idle = idle_](std::uint8_t* bytes) { idle->give_back(Block(bytes)); }};
  }

  std::size_t block_bytes_;
  std::shared_ptr<Idle> idle_;
  std::shared_ptr<std::uint8_t[]> block_;
  std::size_t size_ = 0;
  std::size_t used_ = 0;
};

}  // namespace gradtap::dataplane
