// Segment: payload bytes of one message of one op, as seen once on some flow.
//
// Purpose: what the decoder (ingress) hands to assembly. Coordinates are those of the wire: message index on its
// flow, offset inside the message; where the bytes belong in the op is the schedule's knowledge, not the decoder's.
// Ownership: `data` points into a Frame of the burst or into a block passed to SegmentSink::keep(); valid while both
// are held (segment_sink.h). A segment without bytes (data == nullptr) announces a message: its type, index and length.
// Threads: plain values.
#pragma once

#include <compare>
#include <cstdint>

namespace gradtap::dataplane {

// Collectives by the type byte of a gloo slot (PROTOCOLS 2.3).
enum class CollectiveType : std::uint8_t {
  kUnknown = 0,
  kGather = 1,
  kAllGather = 2,
  kReduce = 3,
  kAllReduce = 4,
  kScatter = 5,
  kBroadcast = 6,
  kBarrier = 7,
  kAllToAll = 8,
};

// One collective: `comm` tells communicators of the job apart (ordinal of the connection within its rank pair, a
// hint that the witness confirms), `tag` is the op number on it.
struct OpKey {
  std::uint32_t comm = 0;
  std::uint32_t tag = 0;
  friend auto operator<=>(const OpKey&, const OpKey&) = default;
};

struct Segment {
  OpKey op;
  CollectiveType type = CollectiveType::kUnknown;
  std::uint16_t source_rank = 0;
  std::uint16_t target_rank = 0;
  std::uint32_t flow = 0;           // index in the FlowDirectory
  std::uint32_t message_index = 0;  // data messages of this op on this flow, from 0
  std::uint64_t message_bytes = 0;
  std::uint64_t offset_bytes = 0;  // of data inside the message
  const std::uint8_t* data = nullptr;
  std::uint32_t bytes = 0;
  // The flow was entered or re-entered near this op: message_index counts from the first message that was *seen*.
  // It is proven only when the flow's count of the op's messages equals the schedule's (PROTOCOLS 2.3).
  bool provisional = false;
};

}  // namespace gradtap::dataplane
