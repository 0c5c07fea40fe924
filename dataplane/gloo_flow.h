// GlooFlow: the state machine of one direction of one gloo connection (PROTOCOLS 2.3, 2.5).
//
// Purpose: says which message of which op each payload byte belongs to. It tracks headers only: it knows the position H
// of the next header and the ranges of recent messages; payload of a known message is passed on at once (zero copy,
// retransmissions too), whatever payload before it is missing. Bytes beyond an unseen header wait in a bounded store.
// When the header is definitively lost the flow looks for the next position that holds a chain of exact headers.
//
// What is proven and what is not: a flow born at its SYN numbers the messages of every tag from the first one. After a
// header hole (or a start in mid-stream) messages may have been missed, so
//   * tags that had data before the hole are unplaceable on this flow from then on (nothing is emitted, counted);
//   * tags first seen later are emitted with Segment::provisional, numbered from the first message seen.
// The flow numbers tags from their start again once `quiescent_tags` tags, all of whose data was seen after the hole,
// were reported exact: collectives are started in tag order by a few workers, so a higher tag cannot have had a message
// inside the hole while that many lower ones had not sent any.
//
// Holes age beside one another, each since the first byte behind it came: after a burst of losses all of them are given
// up within one grace, however many wait in the store.
//
// A hole that is exactly one header long costs nothing: only a notification fits. Not done: explaining longer holes by
// whole messages of open tags, which needs the lengths that the schedule allows (another edge serves those bytes).
//
// Every data message of a placeable tag yields at least one Segment; one without bytes (data == nullptr) announces
// index and length: always for types other than all-reduce, and when no payload stood behind the header.
//
// Threads: one. Invariants: memory is bounded by GlooFlowConfig. Failure behaviour: content that is not gloo makes the
// flow FOREIGN; broken framing makes it SUSPECT until headers are found again; both are counted, nothing throws.
#pragma once

#include <cstdint>
#include <deque>
#include <optional>
#include <string_view>
#include <unordered_map>

#include "common/bytes.h"
#include "dataplane/gloo_wire.h"
#include "dataplane/reorder_store.h"
#include "dataplane/segment.h"
#include "dataplane/segment_sink.h"
#include "dataplane/tcp_stream.h"

namespace gradtap::dataplane {

struct GlooFlowConfig {
  std::uint64_t max_message_bytes = std::uint64_t{1} << 30;
  std::uint64_t reorder_window_bytes = std::uint64_t{4} << 20;  // per flow
  std::uint64_t reorder_grace_ms = 50;
  std::uint64_t reorder_grace_packets = 4096;
  std::uint32_t recent_messages = 256;  // late bytes of older ones are not placed
  std::uint32_t max_tags = 4096;
  std::uint32_t resync_step_bytes = 4;  // 2 for 16-bit element types, 1 to look everywhere
  std::uint32_t quiescent_tags = 4;
  std::uint64_t foreign_after_bytes = std::uint64_t{64} << 20;  // unproven and searched in vain
  bool emit_all_payload = false;                                // payload of other types too (inspection)
};

enum class FlowState : std::uint8_t { kNew, kRole, kAnchored, kSuspect, kForeign, kClosed };
[[nodiscard]] std::string_view flow_state_name(FlowState state);

struct FlowCounters {
  std::uint64_t messages = 0;
  std::uint64_t notifications = 0;     // opcodes 2 and 3
  std::uint64_t foreign_messages = 0;  // framed, but of no collective (send/recv)
  std::uint64_t hellos = 0;
  std::uint64_t segments = 0;
  std::uint64_t segment_bytes = 0;
  std::uint64_t provisional_segments = 0;
  std::uint64_t behind_frames = 0;  // begin before the highest position seen: late or repeated
  std::uint64_t gap_frames = 0;     // begin beyond it: something is missing or late
  std::uint64_t late_bytes = 0;     // of messages that are no longer known
  std::uint64_t keepalives = 0;
  std::uint64_t stored_frames = 0;   // copied, waiting for a header
  std::uint64_t window_hits = 0;     // the reorder store was full
  std::uint64_t dropped_bytes = 0;   // could not even be stored
  std::uint64_t header_holes = 0;    // given up
  std::uint64_t framing_errors = 0;  // no header where one must be
  std::uint64_t position_losses = 0;
  std::uint64_t implausible_frames = 0;
  std::uint64_t resyncs = 0;
  std::uint64_t weak_resyncs = 0;    // accepted with fewer than two chained headers
  std::uint64_t harmless_holes = 0;  // of these: only a notification was missed
  std::uint64_t unplaceable_messages = 0;
  std::uint64_t tag_limit_hits = 0;
  std::uint64_t foreign_frames = 0;
  std::uint64_t foreign_flows = 0;
  std::uint64_t quiescent_points = 0;
};

struct FlowIdentity {
  std::uint32_t flow = 0;
  std::uint16_t source_rank = 0;
  std::uint16_t target_rank = 0;
};

// Gives a connection its comm when its content proves to be gloo.
class CommSource {
 public:
  virtual ~CommSource() = default;
  [[nodiscard]] virtual std::uint32_t comm(std::uint32_t flow) = 0;
};

struct FlowContext {
  SegmentSink& sink;
  CommSource& comms;
  FlowCounters& counters;
  std::uint64_t now_ns = 0;
  std::uint64_t packets = 0;  // seen on the tap so far
};

class GlooFlow {
 public:
  GlooFlow(const GlooFlowConfig& config, FlowIdentity identity, StoreBudget& budget);

  // The stream starts at this sequence number (ISN + 1). True when that contradicts what the flow already knows: a new
  // connection reuses the 4-tuple.
  [[nodiscard]] bool start(std::uint32_t first_sequence);
  void data(std::uint32_t sequence, ByteSpan payload, FlowContext& context);
  void ack(std::uint32_t acknowledgement);   // by the other side, of this direction's bytes
  void close() { closed_ = true; }           // FIN or RST; late frames are still placed
  void reset() { closed_ = reset_ = true; }  // RST: nobody acknowledges anything any more

  void tick(FlowContext& context);         // re-examines what waits; call it also when no frame comes
  void flush_holes(FlowContext& context);  // nothing that is missing will come any more
  void op_closed(std::uint32_t tag, bool exact, FlowCounters& counters);  // exact: count equals the schedule's
  void forget_tags_below(std::uint32_t tag);

  [[nodiscard]] FlowState state() const;
  [[nodiscard]] bool provisional() const { return missed_ && !clean_valid_; }
  [[nodiscard]] bool proven() const { return proven_; }
  [[nodiscard]] bool closed() const { return closed_; }
  [[nodiscard]] bool waiting() const { return !store_.empty(); }
  [[nodiscard]] const FlowIdentity& identity() const { return identity_; }
  [[nodiscard]] std::uint32_t comm() const { return comm_; }
  [[nodiscard]] std::uint64_t stream_bytes() const { return position_.highest(); }

 private:
  enum class Mode : std::uint8_t { kNew, kStart, kFramed, kSearch, kForeign };
  enum class Force : std::uint8_t { kNo, kOnce, kAll };  // how many missing headers are given up at once
  enum class Chain : std::uint8_t { kHolds, kBroken, kOpen };
  struct Message {
    std::uint64_t begin = 0;  // of the payload
    std::uint64_t end = 0;
    std::uint32_t tag = 0;
    std::uint32_t index = 0;
    CollectiveType type = CollectiveType::kUnknown;
    bool emit = false;
    bool provisional = false;
  };
  struct Tag {
    std::uint32_t messages = 0;  // data messages seen
    bool provisional = false;
    bool blocked = false;  // a hole lies inside it, or it began before one
    bool counted = false;  // reported exact already
  };

  void place(std::uint64_t position, ByteSpan bytes, FlowContext& context);
  void place_framed(std::uint64_t position, ByteSpan bytes, FlowContext& context);
  void store(std::uint64_t position, ByteSpan bytes, FlowContext& context);
  void settle(FlowContext& context, Force force);
  bool settle_start(FlowContext& context, Force force);
  bool settle_framed(FlowContext& context, Force force);
  bool settle_search(FlowContext& context, Force force);
  void adopt(std::uint64_t header_position, FlowContext& context);
  bool header(const std::uint8_t* p, bool payload_follows, FlowContext& context);
  void emit(std::uint64_t position, ByteSpan bytes, FlowContext& context);
  void announce(const Message& message, FlowContext& context);
  [[nodiscard]] Segment segment_of(const Message& message) const;
  void enter_search(std::uint64_t from);
  void miss();
  void lose_position(std::uint32_t sequence, FlowContext& context);
  void become_foreign(FlowContext& context);
  [[nodiscard]] bool hole() const;
  [[nodiscard]] bool hole_is_definitive(const FlowContext& context) const;
  [[nodiscard]] std::optional<GlooHeader> candidate(const std::uint8_t* p) const;
  [[nodiscard]] Chain chain(std::uint64_t position) const;
  [[nodiscard]] bool tag_plausible(std::uint32_t tag) const;
  Tag& tag_state(CollectiveType type, std::uint32_t tag, FlowContext& context);
  [[nodiscard]] std::uint64_t align_up(std::uint64_t position) const;

  GlooFlowConfig config_;
  FlowIdentity identity_;
  Mode mode_ = Mode::kNew;
  bool proven_ = false;
  bool closed_ = false;
  bool reset_ = false;
  bool born_ = false;  // its SYN is known
  std::uint32_t comm_ = 0;

  StreamPosition position_;
  std::uint32_t first_sequence_ = 0;
  std::uint64_t acked_ = 0;
  bool acked_known_ = false;
  std::uint32_t far_next_ = 0;  // a frame far away is believed when a second one continues it
  bool far_valid_ = false;

  std::uint64_t next_header_ = 0;  // H
  std::deque<Message> recent_;
  ReorderStore store_;

  std::uint64_t search_from_ = 0;
  bool hole_known_ = false;  // the search began at a missing header, at next_header_
  std::uint64_t align_ = 0;
  std::uint64_t searched_bytes_ = 0;

  std::unordered_map<std::uint64_t, Tag> tags_;  // by type and tag
  Tag overflow_{.blocked = true};                // where no state can be kept
  std::uint32_t last_tag_ = 0;
  bool last_tag_known_ = false;
  std::uint32_t forgotten_below_ = 0;
  bool forgotten_ = false;
  bool missed_ = false;  // bytes of this stream may have been missed
  std::uint32_t exact_tags_ = 0;
  std::uint32_t exact_max_ = 0;
  std::uint32_t clean_above_ = 0;
  bool clean_valid_ = false;
};

}  // namespace gradtap::dataplane
