// ReorderStore: bytes of one stream that arrived before the header that explains them.
//
// Purpose: bounded, position-addressed copies of payload. Blocks are reference-counted so that segments cut from them
// outlive the store. Invariants: blocks never overlap (the first copy of a byte wins); bytes() <= window and the
// shared budget is never exceeded. Failure behaviour: insert() returns false when a bound is hit; it may have stored a
// leading part, and the same bytes may be given again. One thread.
#pragma once

#include <cstddef>
#include <cstdint>
#include <map>
#include <memory>
#include <optional>

#include "common/bytes.h"
#include "common/memory_ledger.h"
#include "dataplane/segment_sink.h"

namespace gradtap::dataplane {

// Shared by the flows of one decoder.
struct StoreBudget {
  std::uint64_t limit = 0;
  std::uint64_t used = 0;
  std::uint64_t refused = 0;
  std::shared_ptr<MemoryLedger> memory = nullptr;  // null: the limit alone counts

  [[nodiscard]] bool take(std::uint64_t bytes) {
    if (used + bytes > limit || (memory && !memory->take(MemoryAccount::kReorder, bytes))) {
      ++refused;
      return false;
    }
    used += bytes;
    return true;
  }
  void give_back(std::uint64_t bytes) {
    used -= bytes;
    if (memory) memory->give_back(MemoryAccount::kReorder, bytes);
  }
};

// When a byte was first seen: by the clock, and by the frames of the tap.
struct Arrival {
  std::uint64_t ns = 0;
  std::uint64_t packets = 0;
};

class ReorderStore {
 public:
  static constexpr std::uint64_t kNone = ~std::uint64_t{0};
  static constexpr std::uint64_t kBlockOverhead = 160;  // what a block costs besides its bytes

  ReorderStore(std::uint64_t window_bytes, StoreBudget& budget) : window_bytes_(window_bytes), budget_(&budget) {}
  ~ReorderStore() { clear(); }
  ReorderStore(const ReorderStore&) = delete;
  ReorderStore& operator=(const ReorderStore&) = delete;

  [[nodiscard]] bool insert(std::uint64_t position, ByteSpan bytes, Arrival arrival = {});
  // Copies [position, position + count) to `out`; false when a byte is missing.
  [[nodiscard]] bool read(std::uint64_t position, std::uint8_t* out, std::size_t count) const;
  // The bytes from `position` to the end of the block that holds it; empty when it is not stored.
  [[nodiscard]] ByteSpan view(std::uint64_t position) const;
  [[nodiscard]] std::uint64_t next_stored(std::uint64_t position) const;       // kNone when there is none
  [[nodiscard]] std::optional<Arrival> arrival(std::uint64_t position) const;  // of the first byte stored from there on
  [[nodiscard]] std::uint64_t run_end(std::uint64_t position) const;           // first missing byte from position on
  [[nodiscard]] std::uint64_t end() const;  // after the last stored byte; 0 when empty
  void erase_before(std::uint64_t position);
  void clear() { erase_before(kNone); }
  [[nodiscard]] bool empty() const { return blocks_.empty(); }
  [[nodiscard]] std::uint64_t cost() const { return cost_; }

  // visit(position, bytes, owner) for the stored parts of [begin, end), in order.
  template <class F>
  void visit(std::uint64_t begin, std::uint64_t end, F visit_part) const {
    for (auto it = covering_or_after(begin); it != blocks_.end() && it->first < end; ++it) {
      const std::uint64_t from = it->first < begin ? begin : it->first;
      const std::uint64_t stop = it->first + it->second.size < end ? it->first + it->second.size : end;
      visit_part(from, ByteSpan(it->second.data + (from - it->first), stop - from), it->second.owner);
    }
  }

 private:
  struct Block {
    OwnedBytes owner;
    const std::uint8_t* data = nullptr;
    std::size_t size = 0;
    std::uint64_t cost = 0;
    Arrival arrival;
  };
  using Blocks = std::map<std::uint64_t, Block>;
  [[nodiscard]] Blocks::const_iterator covering_or_after(std::uint64_t position) const;

  Blocks blocks_;
  std::uint64_t window_bytes_;
  StoreBudget* budget_;
  std::uint64_t cost_ = 0;
};

}  // namespace gradtap::dataplane
