#include <nlohmann/json.hpp>

#include "dataplane/nccl_decoder.h"

namespace gradtap::dataplane {

nlohmann::json NcclDecoder::status() const {
  nlohmann::json drops = nlohmann::json::object();
  for (std::size_t i = 1; i < kFrameDropCount; ++i)
    if (counters_.drops[i] > 0) drops[std::string(frame_drop_name(static_cast<FrameDrop>(i)))] = counters_.drops[i];
  const RoceFlowCounters& flow = table_.flow_counters();
  const RoceTableCounters& table = table_.counters();
  const NcclCounters& nccl = nccl_counters_;
  nlohmann::json flows = nlohmann::json::array();
  constexpr std::size_t kFlowsShown = 256;
  for (const NcclConnectionReport& connection : connections()) {
    if (flows.size() == kFlowsShown) break;
    flows.push_back({{"flow", connection.flow},
                     {"source_rank", connection.source_rank},
                     {"target_rank", connection.target_rank},
                     {"queue_pair", connection.target_qp},
                     {"channel", connection.channel ? nlohmann::json(*connection.channel) : nlohmann::json(nullptr)},
                     {"state", connection.lost      ? "suspect"
                               : connection.channel ? "anchored"
                                                    : "role"},
                     {"all_reduces", connection.all_reduces},
                     {"reread", connection.reread},
                     {"kept_bytes", connection.kept_bytes},
                     {"stream_bytes", connection.stream_bytes}});
  }
  return {{"drops", drops},
          {"foreign_frames", counters_.foreign_endpoint},
          {"roce_frames", counters_.roce_frames},
          {"connections", counters_.connections},
          {"refused_connections", counters_.refused_connections + table.refused},
          {"renewed_connections", table.renewed},
          {"forgotten_flows", table.forgotten},
          {"unsupported", refusal()},
          {"decoder",
           {{"messages", nccl.messages},
            {"foreign_messages", nccl.foreign_messages},
            {"all_reduce_messages", nccl.all_reduce_messages},
            {"segments", nccl.segments},
            {"segment_bytes", nccl.segment_bytes},
            {"kept_bytes", nccl.kept_bytes},
            {"dropped_bytes", nccl.dropped_bytes},
            {"keep_hits", nccl.keep_hits},
            {"late_pieces", nccl.late_pieces},
            {"bad_lines", nccl.bad_lines},
            {"lost_parses", nccl.lost_parses},
            {"renumbered_channels", nccl.renumbered_channels},
            {"surplus_connections", nccl.surplus_connections},
            {"duplicates", flow.duplicates},
            {"behind_frames", flow.behind},
            {"stored_frames", flow.stored},
            {"window_hits", flow.window_hits},
            {"holes", flow.holes},
            {"hole_psns", flow.hole_psns},
            {"recovered_firsts", flow.recovered_firsts},
            {"unplaceable", flow.unplaceable},
            {"late_frames", flow.late},
            {"inconsistent", flow.inconsistent},
            {"immediate_mismatches", flow.immediate_mismatches},
            {"acknowledgements", table.acknowledgements},
            {"naks", table.naks},
            {"congestion_notifications", table.congestion},
            {"management", table.management}}},
          {"operations", comm_->numbered()},
          {"flows", flows}};
}

}  // namespace gradtap::dataplane
