#include "dataplane/gloo_decoder.h"

#include <algorithm>

namespace gradtap::dataplane {

GlooDecoder::GlooDecoder(const GlooDecoderConfig& config, FlowDirectory& directory, const Clock& clock,
                         std::uint16_t queue)
    : config_(config), directory_(directory), clock_(clock), queue_(queue) {
  budget_.limit = config.total_reorder_bytes;
  budget_.memory = config.memory;
}

FlowContext GlooDecoder::context(SegmentSink& sink) {
  return {sink, directory_, counters_.flow, clock_.monotonic_ns(), counters_.frames};
}

void GlooDecoder::decode(std::span<const Frame> frames, SegmentSink& sink) {
  refresh();
  FlowContext flow_context = context(sink);
  for (std::uint32_t i = 0; i < frames.size(); ++i) decode_one(frames[i], i, flow_context);
}

void GlooDecoder::decode(std::span<const Frame> frames, std::span<const std::uint32_t> indices, SegmentSink& sink) {
  refresh();
  FlowContext flow_context = context(sink);
  for (const std::uint32_t i : indices) {
    if (i < frames.size()) decode_one(frames[i], i, flow_context);
  }
}

void GlooDecoder::refresh() {
  const std::uint64_t generation = directory_.generation();
  if (generation == generation_) return;
  generation_ = generation;
  endpoints_ = directory_.endpoints();
  const std::uint32_t closed_below = directory_.closed_below();
  std::vector<FlowKey> ended;
  for (const auto& [key, connection] : connections_) {
    if (connection->first_flow < closed_below) ended.push_back(key);
  }
  for (const FlowKey& key : ended) erase(key);
}

void GlooDecoder::erase(const FlowKey& key) {
  recent_ = {};
  directions_.erase(key);
  directions_.erase(key.reversed());
  connections_.erase(key);
}

bool GlooDecoder::make_room() {
  if (connections_.size() < config_.max_connections) return true;
  std::vector<FlowKey> ended;
  for (const auto& [key, connection] : connections_) {
    if (connection->reported_closed || connection->forward == nullptr) ended.push_back(key);
  }
  for (const FlowKey& key : ended) erase(key);
  return connections_.size() < config_.max_connections;
}

void GlooDecoder::open(Connection& connection, const FlowAdmission& admission) {
  connection.owner = admission.owner_queue;
  connection.first_flow = std::min(admission.forward.flow, admission.backward.flow);
  connection.reported_closed = false;
  if (connection.owner != queue_) return;
  connection.forward = std::make_unique<GlooFlow>(config_.flow, admission.forward, budget_);
  connection.backward = std::make_unique<GlooFlow>(config_.flow, admission.backward, budget_);
  ++counters_.connections;
}

GlooDecoder::Direction GlooDecoder::find(const FrameView& view) {
  const FlowKey key{view.source, view.target, view.source_port, view.target_port};
  const std::size_t place = static_cast<std::size_t>(view.source.bytes[15]) + 3U * view.target.bytes[15] +
                            view.source_port + 5U * view.target_port;
  const Directions::value_type*& recent = recent_[place % recent_.size()];
  if (recent != nullptr && recent->first == key) return recent->second;
  const auto found = directions_.find(key);
  if (found != directions_.end()) {
    recent = &*found;
    return found->second;
  }
  const auto source = endpoints_->rank(view.source);
  const auto target = endpoints_->rank(view.target);
  if (!source || !target || *source == *target) {
    ++counters_.foreign_endpoint;
    return {};
  }
  const auto admission = make_room() ? directory_.admit(key, *source, *target, queue_) : std::optional<FlowAdmission>();
  if (!admission) {
    ++counters_.refused_connections;
    return {};
  }
  auto connection = std::make_unique<Connection>();
  connection->key = key;
  open(*connection, *admission);
  Connection* const known = connection.get();
  connections_.emplace(key, std::move(connection));
  directions_.emplace(key.reversed(), Direction{known, false});
  return directions_.emplace(key, Direction{known, true}).first->second;
}

void GlooDecoder::decode_one(const Frame& frame, std::uint32_t index, FlowContext& context) {
  ++counters_.frames;
  counters_.bytes += frame.bytes;
  context.packets = counters_.frames;
  FrameView view;
  const FrameDrop drop = parse_frame({frame.data, frame.bytes}, frame.wire_bytes, config_.checksum, view);
  if (drop != FrameDrop::kNone) {
    ++counters_.drops[static_cast<std::size_t>(drop)];
    return;
  }
  const Direction direction = find(view);
  if (direction.connection == nullptr) return;
  if (direction.connection->owner != queue_) {
    ++counters_.handed_over;
    context.sink.hand_over(direction.connection->owner, index);
    return;
  }
  deliver(direction, view, context);
}

void GlooDecoder::deliver(Direction direction, const FrameView& view, FlowContext& context) {
  Connection& connection = *direction.connection;
  const auto flow = [&]() -> GlooFlow& { return direction.forward ? *connection.forward : *connection.backward; };
  const auto reverse = [&]() -> GlooFlow& { return direction.forward ? *connection.backward : *connection.forward; };
  std::uint32_t sequence = view.sequence;
  if ((view.flags & kTcpSyn) != 0 && (view.flags & kTcpRst) == 0) {
    ++sequence;
    const bool both = (view.flags & kTcpAck) != 0;  // the answer to a SYN names the other side's start too
    if (flow().start(sequence) || (both && reverse().start(view.acknowledgement))) {
      const FlowKey key{view.source, view.target, view.source_port, view.target_port};
      auto admission = directory_.renew(key);
      if (!admission) return;
      if (!direction.forward) std::swap(admission->forward, admission->backward);
      open(connection, *admission);
      ++counters_.renewed_connections;
      (void)flow().start(sequence);
      if (both) (void)reverse().start(view.acknowledgement);
    }
  }
  if ((view.flags & kTcpAck) != 0) reverse().ack(view.acknowledgement);
  if (!view.payload.empty()) flow().data(sequence, view.payload, context);
  if ((view.flags & (kTcpFin | kTcpRst)) != 0) {
    flow().close();
    if ((view.flags & kTcpRst) != 0) {
      flow().reset();
      reverse().reset();
    }
    if (!connection.reported_closed && flow().closed() && reverse().closed()) {
      connection.reported_closed = true;
      directory_.closed(connection.first_flow);
    }
  }
}

template <class F>
void GlooDecoder::each_flow(F visit) {
  for (auto& [key, connection] : connections_) {
    if (connection->forward == nullptr) continue;
    visit(*connection->forward);
    visit(*connection->backward);
  }
}

void GlooDecoder::tick(SegmentSink& sink) {
  refresh();
  if (budget_.used == 0) return;
  FlowContext flow_context = context(sink);
  each_flow([&](GlooFlow& flow) { flow.tick(flow_context); });
}

void GlooDecoder::flush_holes(SegmentSink& sink) {
  refresh();
  if (budget_.used == 0) return;
  FlowContext flow_context = context(sink);
  each_flow([&](GlooFlow& flow) { flow.flush_holes(flow_context); });
}

void GlooDecoder::op_closed(std::uint32_t flow_id, std::uint32_t tag, bool exact) {
  each_flow([&](GlooFlow& flow) {
    if (flow.identity().flow == flow_id) flow.op_closed(tag, exact, counters_.flow);
  });
}

void GlooDecoder::forget_tags_below(std::uint32_t comm, std::uint32_t tag) {
  each_flow([&](GlooFlow& flow) {
    if (flow.proven() && flow.comm() == comm) flow.forget_tags_below(tag);
  });
}

std::vector<FlowReport> GlooDecoder::report() const {
  std::vector<FlowReport> reports;
  for (const auto& [key, connection] : connections_) {
    if (connection->forward == nullptr) continue;
    const auto add = [&](const FlowKey& name, const GlooFlow& flow) {
      reports.push_back(
          {name, flow.identity(), flow.state(), flow.proven(), flow.provisional(), flow.comm(), flow.stream_bytes()});
    };
    add(key, *connection->forward);
    add(key.reversed(), *connection->backward);
  }
  std::ranges::sort(reports, {}, [](const FlowReport& report) { return report.identity.flow; });
  return reports;
}

}  // namespace gradtap::dataplane
