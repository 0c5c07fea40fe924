// RoceFlow: the requests of one direction of one queue pair, from packets to messages.
//
// Purpose: says which bytes of which message each packet carries. It follows headers only: it knows the PSN of the next
// packet with an address (RETH) and the extent of recent messages; packets of a known message are passed on at once
// (zero copy, in any order, retransmissions too), whatever is missing before them. Packets beyond an unseen header wait
// in a bounded store until the header comes or is given up.
//
// A message is what the sending library meant by one: a write that ends with an immediate, or writes to contiguous
// addresses that one without data, but with an immediate, closes. Writes without any immediate are messages of their
// own. The immediate is the message's length, in either byte order.
//
// What a lost packet costs: a MIDDLE or LAST its own bytes; a FIRST too, once the end of the message is seen (its
// immediate says where the message began); a whole message its PSNs, told by lost() in its place. Nothing is guessed:
// bytes whose place in a message is not known are not passed on, and counted.
//
// PSNs are unwrapped to 64 bits; those of a flow seen from its birth (PSN 0) equal the wire's until they wrap.
// Threads: one. Invariants: messages and losses are told in PSN order, each once; memory is bounded by RoceFlowConfig;
// no allocation for a packet that belongs to a known message or begins one. Failure behaviour: packets that contradict
// what is known are dropped and counted.
#pragma once

#include <cstddef>
#include <cstdint>
#include <map>
#include <optional>
#include <vector>

#include "common/bytes.h"
#include "common/interval_set.h"
#include "dataplane/reorder_store.h"
#include "dataplane/roce_frame.h"

namespace gradtap::dataplane {

struct RoceFlowConfig {
  std::uint64_t reorder_window_bytes = std::uint64_t{4} << 20;  // of waiting packets, per flow
  std::uint64_t reorder_grace_ms = 50;
  std::uint64_t reorder_grace_packets = 4096;  // on the tap
  std::uint32_t recent_messages = 256;         // late packets of older ones are not placed
  std::uint32_t birth_psns = 4096;             // a first PSN below is of a flow whose beginning was missed
  std::uint32_t max_seen_ranges = 64 * 1024;
  std::uint32_t max_message_bytes = 1U << 30;
};

struct RoceFlowCounters {
  std::uint64_t packets = 0;  // requests
  std::uint64_t duplicates = 0;
  std::uint64_t behind = 0;  // arrived after a packet with a higher PSN
  std::uint64_t messages = 0;
  std::uint64_t pieces = 0;
  std::uint64_t piece_bytes = 0;
  std::uint64_t stored = 0;       // copied, waiting for a header
  std::uint64_t window_hits = 0;  // the store was full: what was waited for was given up
  std::uint64_t holes = 0;        // between messages, given up
  std::uint64_t hole_psns = 0;
  std::uint64_t recovered_firsts = 0;  // messages whose first packet was lost, placed by their end
  std::uint64_t unplaceable = 0;       // packets of messages whose beginning is not known
  std::uint64_t late = 0;              // of messages that are no longer known
  std::uint64_t inconsistent = 0;      // contradict the message they belong to
  std::uint64_t immediate_mismatches = 0;
  std::uint64_t other_requests = 0;  // sends, reads, atomics
  std::uint64_t forgotten_ranges = 0;
};

struct PsnRange {
  std::uint64_t begin = 0;
  std::uint64_t end = 0;
  [[nodiscard]] std::uint64_t count() const { return end - begin; }
  friend bool operator==(const PsnRange&, const PsnRange&) = default;
};

struct RocePiece {
  std::uint64_t message = 0;  // its number on this flow
  std::uint64_t psn = 0;
  std::uint64_t offset_bytes = 0;   // in the message
  std::uint64_t message_bytes = 0;  // 0: not known yet
  std::uint64_t address = 0;        // remote, of these bytes
  std::uint32_t key = 0;
  const std::uint8_t* data = nullptr;
  std::uint32_t bytes = 0;
  std::uint64_t arrival = 0;  // packets that the tap had seen when it came
  bool immediate = false;     // the packet's operation ends with an immediate
  bool provisional = false;  // the message began in a hole: RoceMessage::head_missing_bytes will be added to the offset
};

struct RoceMessage {
  std::uint64_t number = 0;
  PsnRange psns;
  std::uint64_t address = 0;
  std::uint32_t key = 0;
  std::uint64_t bytes = 0;
  std::uint64_t head_missing_bytes = 0;  // lost before the first piece that was seen; included in `bytes`
  std::uint64_t arrival = 0;             // packets that the tap had seen when its first packet came
  std::uint32_t packet_bytes = 0;        // the path MTU, or the size of each write of a run; 0 without data
  std::uint32_t immediate = 0;           // as it stands on the wire, little-endian
  bool immediate_seen = false;
  bool split = false;               // the immediate comes in an operation of its own
  bool awaits_immediate = false;    // it ended without an immediate and none was seen before the next header or hole
  bool run = false;                 // of writes of one packet each
  bool open_ended = false;          // a hole follows that may hold more data of it: `bytes` is a lower bound.
                                    // Pieces behind a gap belong to it only if it is that long
  bool head_uncertain = false;      // a run that began in a hole and was not closed: offsets are lower bounds
  bool immediate_mismatch = false;  // the immediate is not the length: not a message as this reads it
  bool foreign = false;             // not of writes
};

class RoceSink {
 public:
  virtual ~RoceSink() = default;
  virtual void piece(const RocePiece& piece) = 0;
  // The extent of the message is known. Pieces of it may still come.
  virtual void message(const RoceMessage& message) = 0;
  // Between two messages these PSNs were given up: whole messages may have been there.
  virtual void lost(const PsnRange& psns) = 0;
  // The following pieces may point into `bytes` (packets that waited).
  virtual void keep(const OwnedBytes& bytes) = 0;
};

struct RoceFlowContext {
  RoceSink& sink;
  RoceFlowCounters& counters;
  std::uint64_t now_ns = 0;
  std::uint64_t packets = 0;  // seen on the tap so far
};

class RoceFlow {
 public:
  RoceFlow(const RoceFlowConfig& config, StoreBudget& budget);
  RoceFlow(const RoceFlow&) = delete;
  RoceFlow& operator=(const RoceFlow&) = delete;
  ~RoceFlow();

  // False: nothing was done, because the packet can only be of another queue pair that has got the same number.
  [[nodiscard]] bool request(const RoceFrame& frame, RoceFlowContext& context);
  // The other side has everything up to and including this PSN.
  void acknowledged(std::uint32_t psn);

  void tick(RoceFlowContext& context);         // re-examines what waits; call it also when no packet comes
  void flush_holes(RoceFlowContext& context);  // nothing that is missing will come any more
  void finish(RoceFlowContext& context);       // nothing will come any more

  [[nodiscard]] bool started() const { return started_; }
  [[nodiscard]] bool born() const { return started_ && born_; }  // its first packet was seen or is known to be missing
  [[nodiscard]] bool waiting() const { return !store_.empty(); }
  [[nodiscard]] std::uint64_t first_seen_psn() const;
  [[nodiscard]] std::uint64_t last_seen_psn() const;  // the highest
  // PSNs of this flow that are known to exist and were not seen; those below acknowledged_end() will not come.
  [[nodiscard]] std::vector<Interval> missing_psns() const;
  [[nodiscard]] std::uint64_t acknowledged_end() const;  // 0: nothing

 private:
  struct Waiting {
    RoceFrame frame;  // its payload points into owner
    OwnedBytes owner;
    std::uint64_t cost = 0;
    std::uint64_t arrival = 0;
  };
  struct Extent {  // of a recent message
    RoceMessage message;
    std::uint64_t data_end = 0;  // PSN behind its last data packet
    PsnRange hole_before;        // to be told before it
    bool told = false;
    bool address_known = true;
    bool last_seen = false;  // how the last data packet ends is known
    bool end_known = true;
    bool single_writes = false;  // a run of writes of one packet each, none with an immediate
  };
  using Store = std::map<std::uint64_t, Waiting>;
  struct Ending {  // of a message whose first packet is missing, found among the waiting packets
    std::uint64_t last = 0;
    std::uint32_t last_bytes = 0;
    std::uint32_t middle_bytes = 0;  // 0: no middle packet waits
    std::uint32_t immediate = 0;
    bool found = false;
    bool ended = false;
    bool last_unseen = false;    // found by an immediate apart, directly behind which its data ends
    std::uint64_t boundary = 0;  // otherwise: where something else begins; 0: nowhere yet
  };

  [[nodiscard]] std::uint64_t unwrap(std::uint32_t psn) const;
  [[nodiscard]] bool contradicts(std::uint64_t psn, const RoceFrame& frame);
  void note_seen(std::uint64_t psn, RoceFlowContext& context);
  [[nodiscard]] Extent* find(std::uint64_t psn);
  [[nodiscard]] Extent* newest() { return numbers_ == 0 ? nullptr : &recent_[(numbers_ - 1) & (recent_.size() - 1)]; }
  [[nodiscard]] Extent* unfinished();
  Extent& open(std::uint64_t begin, RoceFlowContext& context);

  void header(std::uint64_t psn, const RoceFrame& frame, RoceFlowContext& context);
  void write_header(std::uint64_t psn, const RoceFrame& frame, RoceFlowContext& context);
  void closing_immediate(std::uint64_t psn, const RoceFrame& frame, RoceFlowContext& context);
  [[nodiscard]] bool close_with(Extent& extent, std::uint64_t psn, std::uint32_t bytes, RoceFlowContext& context);
  [[nodiscard]] bool extend_run(std::uint64_t psn, const RoceFrame& frame, RoceFlowContext& context);
  void place(Extent& extent, std::uint64_t psn, const RoceFrame& frame, RoceFlowContext& context);
  void tell_hole_before(Extent& extent, RoceFlowContext& context);
  void tell(Extent& extent, RoceFlowContext& context);
  void tell_unfinished(bool hole_follows, RoceFlowContext& context);

  void store(std::uint64_t psn, const RoceFrame& frame, RoceFlowContext& context);
  void drop(Store::iterator at);
  void settle(RoceFlowContext& context, bool force);
  [[nodiscard]] bool hole_is_definitive(RoceFlowContext& context);
  [[nodiscard]] bool resolve_headless(RoceFlowContext& context, bool force);
  [[nodiscard]] Ending find_ending() const;
  [[nodiscard]] bool place_by_beginning(const Ending& ending, std::uint64_t stop, RoceFlowContext& context);
  [[nodiscard]] bool place_by_ending(const Ending& ending, std::uint32_t bytes, RoceFlowContext& context);
  void skip_to(std::uint64_t psn, RoceFlowContext& context);

  RoceFlowConfig config_;
  StoreBudget* budget_;
  bool started_ = false;
  bool born_ = false;
  std::uint64_t base_ = 0;     // PSN at which the flow begins
  std::uint64_t highest_ = 0;  // seen
  std::uint64_t next_ = 0;     // where the next header stands
  std::uint64_t acked_end_ = 0;
  IntervalSet seen_;
  std::uint32_t mtu_bytes_ = 0;  // learnt from full packets
  PsnRange pending_hole_;        // ends at next_, not told yet
  std::uint64_t numbers_ = 0;    // messages so far
  std::vector<Extent> recent_;   // a ring: message n stands at n modulo its size, a power of two
  std::uint64_t arrival_ = 0;    // of the packet that is being taken
  Store store_;
  std::uint64_t store_cost_ = 0;
  bool hole_noted_ = false;
  std::uint64_t hole_since_ns_ = 0;
  std::uint64_t hole_since_packets_ = 0;
};

}  // namespace gradtap::dataplane
