// NcclProgram: which operation each message of one NCCL connection belongs to (PROTOCOLS 2.4).
//
// Purpose: a connection carries messages of many operations, told apart by nothing but their lengths in order. Patterns
// are what is expected: the messages of one operation on this connection. The program takes what a RoceFlow tells, in
// PSN order, and finds whole operations; anything else is foreign. Lost PSNs are filled with the messages that must
// have been there, if their packets account for the hole exactly.
//
// What is proven: an operation is accepted where every message fits its pattern; the last one of a connection may be
// cut by the end, if some of its final bytes are there. The n-th operation of a pattern is numbered n only while no
// lost PSNs could have hidden another one; after such a hole the program is unaligned: it still finds operations, and
// says so, but no longer numbers them. Two patterns that fit the same messages are ambiguous, and neither is taken.
// Nothing is guessed.
//
// Ownership: owns what waits for the rest of an operation, at most max_waiting items. Threads: one. Pure: no payload
// is seen here. Failure behaviour: beyond the bound the oldest item is foreign and the program unaligned, counted.
#pragma once

#include <cstddef>
#include <cstdint>
#include <deque>
#include <optional>
#include <vector>

#include "dataplane/nccl_schedule.h"
#include "dataplane/roce_flow.h"

namespace gradtap::dataplane {

// One thing in PSN order on a connection: a message, or PSNs that were lost between messages.
struct NcclItem {
  bool hole = false;
  PsnRange psns;
  RoceMessage message;      // of a message
  std::uint32_t flag = 0;   // LL: of all lines seen; 0: not LL, or nothing seen
  bool seen_data = false;   // some byte of it was seen
  std::uint64_t frame = 0;  // of the capture, in which it was seen first
};

// The messages of one operation on one connection.
class NcclPattern {
 public:
  // On the connection from ring position `position` on the op's `channel`-th channel.
  [[nodiscard]] static NcclPattern ring(std::uint32_t id, const NcclSchedule& schedule, std::uint32_t position,
                                        std::uint32_t channel);
  // A point-to-point send by Simple.
  [[nodiscard]] static NcclPattern send(std::uint32_t id, std::uint64_t bytes);

  [[nodiscard]] std::uint32_t id() const { return id_; }
  [[nodiscard]] std::uint64_t count() const { return count_; }
  [[nodiscard]] std::uint64_t wire_bytes(std::uint64_t index) const;
  // Whether the message brings final bytes.
  [[nodiscard]] bool brings_final(std::uint64_t index) const;
  [[nodiscard]] bool line_based() const { return schedule_ && schedule_->op().protocol == NcclProtocol::kLl; }
  [[nodiscard]] const std::optional<NcclSchedule>& schedule() const { return schedule_; }
  [[nodiscard]] std::uint32_t position() const { return position_; }
  [[nodiscard]] std::uint32_t channel() const { return channel_; }

 private:
  std::uint32_t id_ = 0;
  std::uint64_t count_ = 0;
  std::uint64_t send_bytes_ = 0;
  std::optional<NcclSchedule> schedule_;
  std::uint32_t position_ = 0;
  std::uint32_t channel_ = 0;
};

inline constexpr std::uint64_t kNcclSplitBytes = 8192;  // longer messages may have their immediate apart

// Where one message of an operation was found, or lost.
struct NcclStep {
  std::uint32_t pattern = 0;     // id
  std::uint64_t occurrence = 0;  // of the pattern on this connection, from 1; 0: the program is not aligned
  std::uint64_t index = 0;       // of the message in the operation
  PsnRange psns;                 // of its packets as far as known
};

class NcclProgramSink {
 public:
  virtual ~NcclProgramSink() = default;
  virtual void found(const NcclStep& step, const NcclItem& item) = 0;
  virtual void lost(const NcclStep& step) = 0;     // the whole message
  virtual void foreign(const NcclItem& item) = 0;  // a message of no pattern, or PSNs that hold none
};

struct NcclProgramConfig {
  std::size_t max_waiting = 1 << 20;
  std::uint64_t max_lost_messages = 256;  // that a hole at the beginning of an operation is tried with
};

class NcclProgram {
 public:
  NcclProgram(std::vector<NcclPattern> patterns, const NcclProgramConfig& config = {});

  void add(const NcclItem& item, NcclProgramSink& sink);
  void finish(NcclProgramSink& sink);  // nothing follows

  [[nodiscard]] bool aligned() const { return aligned_; }
  [[nodiscard]] std::uint64_t operations() const { return operations_; }
  // Messages that fitted more than one pattern.
  [[nodiscard]] std::uint64_t ambiguous() const { return ambiguous_; }
  // Messages of no pattern whose length is one of a pattern's, beside one that repeats itself: where operations begin
  // is then not proven.
  [[nodiscard]] bool doubtful() const { return doubtful_; }

 private:
  enum class Fit : std::uint8_t { kNo, kHole, kMore, kCut, kYes };  // kCut: everything fits up to the end
  struct Match {
    Fit fit = Fit::kNo;
    std::size_t items = 0;        // taken whole
    std::uint64_t used_psns = 0;  // of the hole that follows them
    std::uint64_t messages = 0;
    std::uint64_t bytes = 0;
    bool final_found = false;  // a message with final bytes
  };

  void advance(bool end, NcclProgramSink& sink);
  [[nodiscard]] bool advance_message(bool end, NcclProgramSink& sink);
  [[nodiscard]] bool advance_hole(bool end, NcclProgramSink& sink);
  [[nodiscard]] Match match(const NcclPattern& pattern, std::size_t at, std::uint64_t lost_first, bool end,
                            NcclProgramSink* sink);
  [[nodiscard]] std::uint64_t packets(std::uint64_t bytes) const;
  [[nodiscard]] std::uint64_t least_psns(const NcclPattern& pattern) const;
  void accept(const NcclPattern& pattern, std::uint64_t lost_first, bool end, NcclProgramSink& sink);
  void give_up_front(NcclProgramSink& sink);

  std::vector<NcclPattern> patterns_;
  std::vector<std::uint64_t> occurrences_;
  std::vector<bool> repeating_;  // patterns that fit themselves shifted
  NcclProgramConfig config_;
  std::deque<NcclItem> waiting_;
  std::size_t needed_ = 0;  // items before it makes sense to look again
  std::uint32_t packet_bytes_ = 0;
  bool splits_ = false;  // long messages have their immediate apart
  bool aligned_ = true;
  bool doubtful_ = false;
  std::uint64_t operations_ = 0;
  std::uint64_t ambiguous_ = 0;
};

}  // namespace gradtap::dataplane
