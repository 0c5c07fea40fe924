// Decoder: bursts of frames in, segments out, for one receive queue, whatever the transport.
//
// Purpose: all that an ingress actor knows of a wire format. GlooDecoder follows gloo over TCP, NcclDecoder NCCL over
// RoCEv2. Ownership: frames stay the caller's (see segment_sink.h for how long their bytes are needed). Threads: one.
// Invariants: no allocation per packet of a known flow; memory is bounded by the decoder's configuration.
// Failure behaviour: every frame that yields nothing is counted by reason.
//
// A flow has one owner: frames of it that arrive on another queue are reported by SegmentSink::hand_over, and the owner
// decodes them with the same decode().
#pragma once

#include <cstdint>
#include <span>

#include <nlohmann/json_fwd.hpp>

#include "dataplane/port.h"
#include "dataplane/segment_sink.h"
#include "dataplane/size_table.h"

namespace gradtap::dataplane {

class Decoder {
 public:
  virtual ~Decoder() = default;

  virtual void decode(std::span<const Frame> frames, SegmentSink& sink) = 0;
  // Only the frames with these indices: what another queue handed over from its burst.
  virtual void decode(std::span<const Frame> frames, std::span<const std::uint32_t> indices, SegmentSink& sink) = 0;

  virtual void tick(SegmentSink& sink) = 0;  // call some tens of times a second, also when nothing arrives
  // No missing frame will come any more (the queue was found empty).
  virtual void flush_holes(SegmentSink& sink) = 0;
  // The op is complete or abandoned; exact: the flow showed as many messages of it as the schedule has.
  virtual void op_closed(std::uint32_t flow, std::uint32_t tag, bool exact) = 0;
  virtual void forget_tags_below(std::uint32_t comm, std::uint32_t tag) = 0;
  // The sizes that all-reduces may have, as far as layouts are known: what a wire without lengths is parsed with.
  virtual void set_sizes(const SizeTable& sizes, SegmentSink& sink) = 0;

  // Another run of the job has attached: what follows counts for it alone.
  virtual void begin_lineage(SegmentSink& sink) = 0;

  // Counters, flows and what waits, for operators.
  [[nodiscard]] virtual nlohmann::json status() const = 0;
};

}  // namespace gradtap::dataplane
