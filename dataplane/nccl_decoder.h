// NcclDecoder: the Decoder of NCCL over RoCEv2 (PROTOCOLS 2.4).
//
// Finds RoCE packets under whatever the mirror wrapped them in, follows the queue pairs between the job's endpoints,
// tells data from clear-to-send entries by content, and puts the connections of the ring together to one communicator
// per lineage (nccl_comm.h). A packet whose ICRC does not verify is dropped and counted.
// A job that runs NCCL in a way that is not decoded is told by name (refusal(), nccl_manner.h).
// Ownership: owns flows and connections, as long as the table knows them. Threads: one; only the FlowDirectory
// (endpoints, flow numbers, the end of a lineage) is shared. Limits: one receive queue sees all frames of a flow pair;
// one communicator on the ring's edges, of ranks in ring order 0, 1, 2, ...; other connections between the same ranks
// have higher queue pair numbers.
#pragma once

#include <array>
#include <cstdint>
#include <memory>
#include <optional>
#include <span>
#include <string>
#include <vector>

#include "common/clock.h"
#include "dataplane/decoder.h"
#include "dataplane/encapsulation.h"
#include "dataplane/flow_directory.h"
#include "dataplane/nccl_comm.h"
#include "dataplane/nccl_connection.h"
#include "dataplane/nccl_manner.h"
#include "dataplane/roce_flow_table.h"

namespace gradtap::dataplane {

struct NcclDecoderConfig {
  NcclCommConfig comm;
  NcclConnectionConfig connection;
  RoceFlowTableConfig table;
  IcrcPolicy icrc = IcrcPolicy::kRequired;
  std::uint32_t max_connections = 1024;             // of lineages that have not ended; and as many flows that are none
  std::uint32_t max_flows = 8192;                   // at a time
  std::size_t keep_bytes = std::size_t{256} << 20;  // of what waits, all connections together
};

struct NcclDecoderCounters {
  std::uint64_t frames = 0;
  std::uint64_t bytes = 0;
  std::uint64_t roce_frames = 0;  // whole and verified
  std::array<std::uint64_t, kFrameDropCount> drops{};
  std::uint64_t foreign_endpoint = 0;
  std::uint64_t connections = 0;
  std::uint64_t refused_connections = 0;
};

struct NcclConnectionReport {
  std::uint32_t flow = 0;
  std::uint16_t source_rank = 0;
  std::uint16_t target_rank = 0;
  std::uint32_t target_qp = 0;
  std::optional<std::uint32_t> channel;
  bool lost = false;
  std::uint64_t all_reduces = 0;
  std::uint64_t reread = 0;
  std::size_t kept_bytes = 0;
  std::uint64_t stream_bytes = 0;
};

class NcclDecoder final : public Decoder, private RoceFlowUser {
 public:
  NcclDecoder(const NcclDecoderConfig& config, FlowDirectory& directory, const Clock& clock);
  ~NcclDecoder() override;

  void decode(std::span<const Frame> frames, SegmentSink& sink) override;
  void decode(std::span<const Frame> frames, std::span<const std::uint32_t> indices, SegmentSink& sink) override;
  void tick(SegmentSink& sink) override;
  void flush_holes(SegmentSink& sink) override;
  void op_closed(std::uint32_t /*flow*/, std::uint32_t /*tag*/, bool /*exact*/) override {}
  void forget_tags_below(std::uint32_t comm, std::uint32_t tag) override;
  void set_sizes(const SizeTable& sizes, SegmentSink& sink) override;
  void begin_lineage(SegmentSink& sink) override;
  [[nodiscard]] nlohmann::json status() const override;
  // Of what is not decoded; flush_holes() tells it to the directory.
  [[nodiscard]] std::string refusal() const;

  [[nodiscard]] std::vector<NcclConnectionReport> connections() const;
  [[nodiscard]] const NcclDecoderCounters& counters() const { return counters_; }
  [[nodiscard]] const NcclCounters& nccl_counters() const { return nccl_counters_; }

 private:
  class Flow;
  class Other;

  [[nodiscard]] RoceSink& opened(const RoceFlowIdentity& identity) override;
  [[nodiscard]] bool dispensable(const RoceFlowIdentity& identity) const override;
  void closed(const RoceFlowIdentity& identity) override;
  [[nodiscard]] std::vector<NcclMannerFinding> manners() const;
  void forget_signs();
  void forget_orphans();
  void refresh();
  void decode_one(const Frame& frame);
  void begin(SegmentSink& sink);
  void end();
  void new_comm();
  void connection_begins();
  void end_flows_of(std::uint64_t before_ns);

  NcclDecoderConfig config_;
  FlowDirectory& directory_;
  const Clock& clock_;
  NcclDecoderCounters counters_;
  NcclCounters nccl_counters_;
  StripArena arena_;
  NcclEmission emission_;
  SizeTable sizes_;
  std::uint64_t generation_ = 0;
  std::uint32_t closed_below_ = 0;
  std::shared_ptr<const EndpointTable> endpoints_;
  std::uint32_t comms_ = 0;
  std::uint64_t lineage_ns_ = 0;  // when the last one began
  std::unique_ptr<NcclComm> comm_;
  std::vector<std::unique_ptr<Flow>> flows_;
  std::vector<std::unique_ptr<Other>> others_;  // between ranks that are no neighbours: control, or what no ring has
  NcclGrants grants_;
  std::uint32_t live_flows_ = 0;  // of lineages that have not ended
  RoceFlowTable table_;
};

}  // namespace gradtap::dataplane
