#include <nlohmann/json.hpp>

#include "dataplane/gloo_decoder.h"

namespace gradtap::dataplane {

namespace {

nlohmann::json flow_counters_json(const FlowCounters& c) {
  return {{"messages", c.messages},
          {"notifications", c.notifications},
          {"foreign_messages", c.foreign_messages},
          {"hellos", c.hellos},
          {"segments", c.segments},
          {"segment_bytes", c.segment_bytes},
          {"provisional_segments", c.provisional_segments},
          {"behind_frames", c.behind_frames},
          {"gap_frames", c.gap_frames},
          {"late_bytes", c.late_bytes},
          {"keepalives", c.keepalives},
          {"stored_frames", c.stored_frames},
          {"window_hits", c.window_hits},
          {"dropped_bytes", c.dropped_bytes},
          {"header_holes", c.header_holes},
          {"framing_errors", c.framing_errors},
          {"position_losses", c.position_losses},
          {"implausible_frames", c.implausible_frames},
          {"resyncs", c.resyncs},
          {"weak_resyncs", c.weak_resyncs},
          {"harmless_holes", c.harmless_holes},
          {"unplaceable_messages", c.unplaceable_messages},
          {"tag_limit_hits", c.tag_limit_hits},
          {"foreign_frames", c.foreign_frames},
          {"foreign_flows", c.foreign_flows},
          {"quiescent_points", c.quiescent_points}};
}

// The flows of the queue, the first of them: a node with thousands is looked at with other tools.
nlohmann::json flows_json(const std::vector<FlowReport>& flows) {
  constexpr std::size_t kFlowsShown = 256;
  nlohmann::json list = nlohmann::json::array();
  for (const FlowReport& flow : flows) {
    if (list.size() == kFlowsShown) break;
    list.push_back({{"flow", flow.identity.flow},
                    {"source_rank", flow.identity.source_rank},
                    {"target_rank", flow.identity.target_rank},
                    {"state", flow_state_name(flow.state)},
                    {"provisional", flow.provisional},
                    {"comm", flow.proven ? nlohmann::json(flow.comm) : nlohmann::json(nullptr)},
                    {"stream_bytes", flow.stream_bytes}});
  }
  return list;
}

}  // namespace

nlohmann::json GlooDecoder::status() const {
  nlohmann::json drops = nlohmann::json::object();
  for (std::size_t i = 1; i < kFrameDropCount; ++i)
    if (counters_.drops[i] > 0) drops[std::string(frame_drop_name(static_cast<FrameDrop>(i)))] = counters_.drops[i];
  return {{"drops", drops},
          {"foreign_frames", counters_.foreign_endpoint},
          {"connections", counters_.connections},
          {"refused_connections", counters_.refused_connections},
          {"waiting_bytes", waiting_bytes()},
          {"waiting_refused", budget_.refused},
          {"decoder", flow_counters_json(counters_.flow)},
          {"flows", flows_json(report())}};
}

}  // namespace gradtap::dataplane
