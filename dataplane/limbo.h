// Limbo: copies of bytes whose place is not known yet (op size unknown, or the flow's message numbers are not proven).
//
// Purpose: the burst that carried them can be released (PROTOCOLS M20) and they are parsed again when more is known.
// Ownership: a Limbo belongs to one op and owns its copies; the budget is shared by the ops of one window.
// One thread. Invariants: memory is charged to the budget before it is allocated. At the bound add() returns false; it
// may have kept a leading part of the piece, and adding the same bytes again is harmless.
#pragma once

#include <algorithm>
#include <cstddef>
#include <cstdint>
#include <cstring>
#include <memory>
#include <utility>
#include <vector>

#include "common/memory_ledger.h"

namespace gradtap::dataplane {

class LimboBudget {
 public:
  // `memory` may be null: the limit alone counts.
  explicit LimboBudget(std::size_t limit_bytes, std::shared_ptr<MemoryLedger> memory = nullptr)
      : limit_(limit_bytes), memory_(std::move(memory)) {}
  [[nodiscard]] bool reserve(std::size_t bytes) {
    if (bytes > limit_ - used_ || (memory_ && !memory_->take(MemoryAccount::kLimbo, bytes))) {
      ++refused_;
      return false;
    }
    used_ += bytes;
    peak_ = std::max(peak_, used_);
    return true;
  }
  void release(std::size_t bytes) {
    used_ -= bytes;
    if (memory_) memory_->give_back(MemoryAccount::kLimbo, bytes);
  }
  [[nodiscard]] std::size_t used() const { return used_; }
  [[nodiscard]] std::size_t peak() const { return peak_; }
  [[nodiscard]] std::size_t limit() const { return limit_; }
  [[nodiscard]] std::uint64_t refused() const { return refused_; }

 private:
  std::size_t limit_;
  std::shared_ptr<MemoryLedger> memory_;
  std::size_t used_ = 0;
  std::size_t peak_ = 0;
  std::uint64_t refused_ = 0;
};

struct LimboPiece {
  std::uint32_t track = 0;  // index of the flow within the op
  std::uint32_t message_index = 0;
  std::uint64_t offset_bytes = 0;  // inside the message
  const std::uint8_t* data = nullptr;
  std::uint32_t bytes = 0;
};

class Limbo {
 public:
  explicit Limbo(LimboBudget& budget) : budget_(&budget) {}
  ~Limbo() { clear(); }
  Limbo(const Limbo&) = delete;
  Limbo& operator=(const Limbo&) = delete;

  [[nodiscard]] bool add(std::uint32_t track, std::uint32_t message_index, std::uint64_t offset,
                         const std::uint8_t* data, std::uint32_t bytes) {
    while (bytes > 0) {
      if (blocks_.empty() || blocks_.back().used == blocks_.back().size) {
        // The first block is small: most ops that stay here are scalars of somebody's metric.
        const std::size_t size = blocks_.empty() ? kFirstBlock : kBlock;
        if (!budget_->reserve(size)) return false;
        blocks_.push_back({std::make_unique_for_overwrite<std::uint8_t[]>(size), size, 0});
      }
      Block& block = blocks_.back();
      const auto part = static_cast<std::uint32_t>(std::min<std::size_t>(bytes, block.size - block.used));
      std::uint8_t* to = block.data.get() + block.used;
      const bool joins = !pieces_.empty() && pieces_.back().track == track &&
                         pieces_.back().message_index == message_index &&
                         pieces_.back().offset_bytes + pieces_.back().bytes == offset &&
                         pieces_.back().data + pieces_.back().bytes == to;
      if (!joins) {
        if (!budget_->reserve(sizeof(LimboPiece))) return false;
        pieces_.push_back({track, message_index, offset, to, 0});
        piece_bytes_ += sizeof(LimboPiece);
      }
      std::memcpy(to, data, part);
      pieces_.back().bytes += part;
      block.used += part;
      data += part;
      offset += part;
      bytes -= part;
    }
    return true;
  }

  // Calls keep(piece) for every piece in order of arrival; pieces for which it returns false are forgotten.
  template <class F>
  void filter(F keep) {
    std::erase_if(pieces_, [&](const LimboPiece& piece) { return !keep(piece); });
    if (pieces_.empty()) {
      clear();
      return;
    }
    budget_->release(piece_bytes_ - pieces_.size() * sizeof(LimboPiece));
    piece_bytes_ = pieces_.size() * sizeof(LimboPiece);
  }
  [[nodiscard]] const std::vector<LimboPiece>& pieces() const { return pieces_; }
  [[nodiscard]] bool empty() const { return pieces_.empty(); }
  void clear() {
    for (const Block& block : blocks_) budget_->release(block.size);
    budget_->release(piece_bytes_);
    piece_bytes_ = 0;
    blocks_.clear();
    pieces_.clear();
  }

 private:
  static constexpr std::size_t kFirstBlock = 1024;
  static constexpr std::size_t kBlock = 64 * 1024;
  struct Block {
    std::unique_ptr<std::uint8_t[]> data;
    std::size_t size;
    std::size_t used;
  };
  LimboBudget* budget_;
  std::vector<Block> blocks_;
  std::vector<LimboPiece> pieces_;
  std::size_t piece_bytes_ = 0;
};

}  // namespace gradtap::dataplane
