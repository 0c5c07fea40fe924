// OpBuffer: assembly of one all-reduce from the segments of all its edges.
//
// Purpose: find the op's length, put every final byte in its place exactly once, compare every further copy.
// The length is not on the wire: it is one of the candidates (SizeTable), narrowed by the lengths of the messages seen
// on every edge. A byte is placed as soon as all remaining candidates agree on its place; until then it is in limbo.
// Provisional flows (Segment::provisional) stay in limbo with all their bytes until the number and lengths of their
// messages fit exactly one candidate.
// Ownership: owns coverage, limbo and the buffer (from the pool). Threads: one (the assembler's); a bound buffer is
// immutable and may be read anywhere.
// Invariants: partial sums are never stored. The first copy of a byte wins; a different copy turns the range into a
// hole for ever (CONFLICT), never a vote. After bind() no byte of the buffer changes. Every message ever accepted is
// consistent with every remaining candidate, and so is every byte placed.
// Failure behaviour: impossible segments are rejected and counted; at a bound add() says which and changes no byte.
#pragma once

#include <cstdint>
#include <memory>
#include <optional>
#include <span>
#include <vector>

#include "common/error.h"
#include "common/interval_set.h"
#include "dataplane/assembly_counters.h"
#include "dataplane/limbo.h"
#include "dataplane/op_bytes.h"
#include "dataplane/schedule.h"
#include "dataplane/segment.h"

namespace gradtap::dataplane {

// A message of a ring is at most 1 MiB; the bound only keeps sums of hostile numbers from wrapping.
inline constexpr std::uint64_t kMaxSegmentMessageBytes = 1ULL << 40;

struct OpBufferLimits {
  std::uint32_t max_flows = 256;
  std::uint32_t max_messages_per_flow = 64 * 1024;
  std::uint32_t max_intervals = 64 * 1024;
};

enum class AddOutcome : std::uint8_t {
  kPlaced,
  kPartial,
  kLimbo,
  kNoted,  // the message is known now; the segment had no bytes
  kRejected,
  kLimboFull,   // nothing done: make room and add again
  kNoMemory,    // nothing done: make room and add again
  kStuck,       // done, but limbo could not be parsed for want of memory: make room and settle()
  kFragmented,  // placed, but coverage is in more pieces than allowed: give the op up
};

struct ConflictReport {
  OpKey op;
  Interval range;                          // in bytes of the op
  std::uint32_t flow = 0;                  // whose copy differed
  std::vector<std::uint32_t> other_flows;  // who had brought that range before (at most 4)
};

struct Copies {
  std::uint32_t min = 0;  // 0 incomplete, 1, or 2 for "at least two"
  std::uint32_t max = 0;  // flows that brought final bytes
};

// What a flow's messages looked like: for inference of the length without layouts.
struct EdgeMessages {
  std::uint32_t source_rank = 0;
  bool numbers_proven = false;         // message numbers count from the first message of the op
  std::vector<std::uint64_t> lengths;  // of messages 0..n-1; 0 = no byte of that message was seen
};

class OpBuffer {
 public:
  OpBuffer(OpKey op, const Schedule& schedule, std::shared_ptr<OpBufferPool> pool, LimboBudget& limbo_budget,
           AssemblyCounters& counters, const OpBufferLimits& limits, std::span<const OpSize> candidates);

  [[nodiscard]] AddOutcome add(const Segment& segment);
  // Candidates that appeared later: those that fit everything seen so far are taken; limbo is parsed again.
  [[nodiscard]] AddOutcome widen(std::span<const OpSize> candidates);
  // Parses limbo again after kStuck.
  [[nodiscard]] AddOutcome settle();

  [[nodiscard]] const std::vector<OpSize>& candidates() const { return candidates_; }
  // The op's length, if all candidates agree.
  [[nodiscard]] std::optional<std::uint64_t> op_bytes() const;
  [[nodiscard]] bool complete() const;
  [[nodiscard]] bool conflicted() const { return !conflicts_.empty(); }
  [[nodiscard]] bool bound() const { return sealed_ != nullptr; }
  [[nodiscard]] bool has_limbo() const { return !limbo_.empty(); }
  [[nodiscard]] bool holds_memory() const { return static_cast<bool>(buffer_) || sealed_ != nullptr; }
  [[nodiscard]] std::vector<Interval> missing(std::uint64_t op_bytes) const;
  [[nodiscard]] Copies copies() const;
  [[nodiscard]] std::vector<EdgeMessages> edges() const;

  // The value of `count` (<= 8) bytes at `offset` if the op had `op_bytes` bytes and all of them are covered.
  [[nodiscard]] bool read(std::uint64_t op_bytes, std::uint64_t offset, std::span<std::uint8_t> to) const;
  // Decides for `op_bytes` (one of the candidates) and gives the complete bytes away, immutable from now on. Giving
  // them again for the same length is allowed.
  [[nodiscard]] Result<std::shared_ptr<const OpBytes>> bind(std::uint64_t op_bytes);
  // Copies what is covered into `to` (op_bytes long, holes untouched).
  void copy_covered(std::span<std::uint8_t> to) const;

  // True once after something of summary interest changed.
  [[nodiscard]] bool take_changed();
  [[nodiscard]] std::vector<std::uint32_t> take_proven_flows();
  [[nodiscard]] std::vector<ConflictReport> take_conflicts();

 private:
  enum class Fate : std::uint8_t { kOpen, kPartial, kFinal };
  struct Message {
    std::uint32_t index = 0;
    Fate fate = Fate::kOpen;
    std::uint64_t bytes = 0;
    std::uint64_t op_offset = 0;
  };
  struct Track {
    std::uint32_t flow = 0;
    std::uint16_t source = 0;
    std::uint16_t target = 0;
    bool provisional = false;  // and not proven yet
    bool proven = false;       // was provisional
    bool brought_final = false;
    std::size_t last = 0;  // position of the message used last
    std::vector<Message> messages;
  };

  [[nodiscard]] Track* track_of(const Segment& segment);
  [[nodiscard]] Message* message_of(Track& track, std::uint32_t index, std::uint64_t bytes);
  [[nodiscard]] static Message* find_message(Track& track, std::uint32_t index);
  void narrow(const Track& track, Message& message);
  [[nodiscard]] bool fits(const OpSize& size, const Track& track) const;
  void decide(const Track& track, Message& message) const;
  [[nodiscard]] static bool same_fate(const MessagePlace& one, const MessagePlace& other);
  static void set_fate(Message& message, const MessagePlace& place);
  bool try_prove(Track& track);
  [[nodiscard]] bool lengths_fit_inside(const OpSize& size, const Track& track) const;
  [[nodiscard]] AddOutcome store(Track& track, const Message& message, std::uint64_t offset, const std::uint8_t* data,
                                 std::uint64_t bytes);
  [[nodiscard]] bool ensure_capacity(std::uint64_t end);
  void record_conflict(const Track& track, Interval range);
  [[nodiscard]] const std::uint8_t* bytes() const { return sealed_ ? sealed_->data() : buffer_.data(); }
  void note_completion();

  OpKey op_;
  const Schedule& schedule_;
  std::shared_ptr<OpBufferPool> pool_;
  AssemblyCounters& counters_;
  OpBufferLimits limits_;
  std::vector<OpSize> candidates_;
  std::vector<Track> tracks_;
  std::size_t last_track_ = 0;
  Limbo limbo_;
  PooledBuffer buffer_;
  std::shared_ptr<const OpBytes> sealed_;
  IntervalSet covered_;
  IntervalSet twice_;                // brought at least twice (a retransmission counts too)
  IntervalSet conflicts_;            // holes for ever
  std::vector<Interval> differing_;  // scratch of store()
  std::vector<ConflictReport> conflict_reports_;
  std::vector<std::uint32_t> proven_flows_;
  bool candidates_changed_ = false;
  bool changed_ = true;
  bool was_complete_ = false;
};

}  // namespace gradtap::dataplane
