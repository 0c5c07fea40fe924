// GlooDecoder: the Decoder of gloo over TCP: parse, admit, follow flows, emit.
//
// Ownership: owns the flows of the connections that this queue saw first. Threads: one; only the FlowDirectory is
// shared. Memory is bounded by GlooDecoderConfig. Everything else: decoder.h.
#pragma once

#include <array>
#include <cstdint>
#include <memory>
#include <span>
#include <unordered_map>
#include <vector>

#include "common/clock.h"
#include "dataplane/decoder.h"
#include "dataplane/flow_directory.h"
#include "dataplane/frame.h"
#include "dataplane/gloo_flow.h"
#include "dataplane/port.h"
#include "dataplane/segment_sink.h"

namespace gradtap::dataplane {

struct GlooDecoderConfig {
  GlooFlowConfig flow;
  ChecksumPolicy checksum = ChecksumPolicy::kRequired;
  std::uint64_t total_reorder_bytes = std::uint64_t{64} << 20;  // of all flows of this queue
  std::shared_ptr<MemoryLedger> memory = nullptr;
  std::uint32_t max_connections = 4096;  // of this queue
};

struct GlooDecoderCounters {
  std::uint64_t frames = 0;
  std::uint64_t bytes = 0;
  std::array<std::uint64_t, kFrameDropCount> drops{};  // by FrameDrop
  std::uint64_t foreign_endpoint = 0;
  std::uint64_t handed_over = 0;
  std::uint64_t refused_connections = 0;  // a table was full
  std::uint64_t connections = 0;
  std::uint64_t renewed_connections = 0;
  FlowCounters flow;
};

struct FlowReport {
  FlowKey key;
  FlowIdentity identity;
  FlowState state = FlowState::kNew;
  bool proven = false;
  bool provisional = false;
  std::uint32_t comm = 0;  // meaningful when proven
  std::uint64_t stream_bytes = 0;
};

class GlooDecoder final : public Decoder {
 public:
  GlooDecoder(const GlooDecoderConfig& config, FlowDirectory& directory, const Clock& clock, std::uint16_t queue);

  void decode(std::span<const Frame> frames, SegmentSink& sink) override;
  void decode(std::span<const Frame> frames, std::span<const std::uint32_t> indices, SegmentSink& sink) override;
  void tick(SegmentSink& sink) override;
  void flush_holes(SegmentSink& sink) override;
  void op_closed(std::uint32_t flow, std::uint32_t tag, bool exact) override;
  void forget_tags_below(std::uint32_t comm, std::uint32_t tag) override;
  void set_sizes(const SizeTable& /*sizes*/, SegmentSink& /*sink*/) override {}  // gloo's headers say the lengths
  void begin_lineage(SegmentSink& /*sink*/) override {}  // its connections are new and get a comm of their own
  [[nodiscard]] nlohmann::json status() const override;

  [[nodiscard]] const GlooDecoderCounters& counters() const { return counters_; }
  [[nodiscard]] std::vector<FlowReport> report() const;
  [[nodiscard]] std::uint64_t waiting_bytes() const { return budget_.used; }
  [[nodiscard]] std::uint16_t queue() const { return queue_; }

 private:
  struct Connection {
    FlowKey key;
    std::uint16_t owner = 0;
    std::unique_ptr<GlooFlow> forward;  // both null when another queue owns it
    std::unique_ptr<GlooFlow> backward;
    bool reported_closed = false;
    std::uint32_t first_flow = 0;  // the lower id of the two
  };
  struct Direction {
    Connection* connection = nullptr;
    bool forward = true;
  };

  void refresh();
  void decode_one(const Frame& frame, std::uint32_t index, FlowContext& context);
  void deliver(Direction direction, const FrameView& view, FlowContext& context);
  [[nodiscard]] Direction find(const FrameView& view);
  void open(Connection& connection, const FlowAdmission& admission);
  bool make_room();
  void erase(const FlowKey& key);
  [[nodiscard]] FlowContext context(SegmentSink& sink);
  template <class F>
  void each_flow(F visit);

  GlooDecoderConfig config_;
  FlowDirectory& directory_;
  const Clock& clock_;
  std::uint16_t queue_;
  StoreBudget budget_;
  GlooDecoderCounters counters_;
  std::uint64_t generation_ = 0;
  std::shared_ptr<const EndpointTable> endpoints_;
  std::unordered_map<FlowKey, std::unique_ptr<Connection>, FlowKeyHash> connections_;  // by the key first seen
  using Directions = std::unordered_map<FlowKey, Direction, FlowKeyHash>;
  Directions directions_;                                   // both keys
  std::array<const Directions::value_type*, 16> recent_{};  // of directions_; most packets follow one of their flow
};

}  // namespace gradtap::dataplane
