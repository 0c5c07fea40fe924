#include "dataplane/nccl_decoder.h"

#include <algorithm>
#include <array>
#include <utility>

#include "dataplane/nccl_cts.h"

namespace gradtap::dataplane {

// A flow between two of the job's ranks; it becomes a connection of the ring with its first data.
class NcclDecoder::Flow final : public RoceSink {
 public:
  Flow(NcclDecoder& decoder, std::uint32_t id, std::uint16_t source_rank, std::uint16_t target_rank,
       const RoceFlowIdentity& identity)
      : decoder_(decoder), id_(id), source_rank_(source_rank), target_rank_(target_rank), identity_(identity) {}

  void piece(const RocePiece& piece) override {
    if (ended_) return;
    if (!connection_ && !becomes_data(piece)) return;
    signs_.piece(piece, decoder_.grants_, identity_.target, identity_.source_port);
    connection_->piece(piece);
  }
  void message(const RoceMessage& message) override {
    // Without data, but with an immediate: an empty step of a connection.
    if (ended_) return;
    if (!connection_ && !control_ && message.immediate_seen) open();
    if (!connection_) return;
    signs_.message(message, decoder_.grants_, identity_.target, identity_.source_port);
    connection_->message(message);
  }
  void lost(const PsnRange& psns) override {
    if (connection_)
      connection_->lost(psns);
    else if (!control_ && !ended_ && lost_first_.size() < kLostFirstMax)
      lost_first_.push_back(psns);
  }
  void keep(const OwnedBytes& bytes) override { decoder_.emission_.sink->keep(bytes); }

  [[nodiscard]] std::uint32_t id() const { return id_; }
  [[nodiscard]] NcclConnection* connection() { return connection_.get(); }
  [[nodiscard]] const NcclConnection* connection() const { return connection_.get(); }
  [[nodiscard]] bool control() const { return control_; }
  [[nodiscard]] bool ended() const { return ended_; }
  // The table has forgotten it.
  void orphan() { orphaned_ = true; }
  [[nodiscard]] bool orphaned() const { return orphaned_; }
  [[nodiscard]] const RoceFlowIdentity& identity() const { return identity_; }
  [[nodiscard]] NcclFlowShown shown() const {
    return {source_rank_, target_rank_, identity_.target_qp, proven(), &signs_};
  }
  void forget_signs() { signs_ = {}; }
  void end() {
    if (ended_) return;
    ended_ = true;
    connection_.reset();  // and what it has kept; the communicator is made anew by whoever ends flows
    --decoder_.live_flows_;
  }

 private:
  // All-reduces that were not taken back.
  [[nodiscard]] std::uint64_t proven() const {
    if (!connection_) return 0;
    const std::uint64_t found = connection_->all_reduces(), taken_back = connection_->parse().reread();
    return found > taken_back ? found - taken_back : 0;
  }
  [[nodiscard]] bool becomes_data(const RocePiece& piece) {
    std::array<NcclCts, kMaxNcclReceives> entries;
    const std::size_t cleared =
        piece.immediate || piece.offset_bytes != 0 ? 0 : read_nccl_cts({piece.data, piece.bytes}, entries);
    if (cleared > 0) {
      control_ = true;
      decoder_.grants_.cleared(identity_.source, identity_.source_port, std::span(entries).first(cleared));
      return false;
    }
    open();
    return true;
  }
  void open() {
    decoder_.connection_begins();
    connection_ = std::make_unique<NcclConnection>(decoder_.config_.connection, decoder_.emission_, id_, source_rank_,
                                                   target_rank_, identity_.target_qp);
    ++decoder_.counters_.connections;
    for (const PsnRange& psns : lost_first_) connection_->lost(psns);
    lost_first_.clear();
    decoder_.comm_->add(*connection_);
  }

  NcclDecoder& decoder_;
  std::uint32_t id_;
  std::uint16_t source_rank_;
  std::uint16_t target_rank_;
  RoceFlowIdentity identity_;
  NcclFlowSigns signs_;
  std::unique_ptr<NcclConnection> connection_;
  // Before it was known what this flow is. Data follows the first of them; beyond the bound it is none.
  static constexpr std::size_t kLostFirstMax = 64;
  std::vector<PsnRange> lost_first_;
  bool control_ = false;
  bool ended_ = false;
  bool orphaned_ = false;
};

// A flow between two of the job's ranks that no edge of the ring has.
class NcclDecoder::Other final : public RoceSink {
 public:
  Other(NcclDecoder& decoder, std::uint16_t source_rank, std::uint16_t target_rank, const RoceFlowIdentity& identity)
      : decoder_(decoder), source_rank_(source_rank), target_rank_(target_rank), identity_(identity) {}
  void piece(const RocePiece& piece) override {
    std::array<NcclCts, kMaxNcclReceives> entries;
    const std::size_t cleared = piece.immediate || piece.offset_bytes != 0 || signs_.messages() > 0
                                    ? 0
                                    : read_nccl_cts({piece.data, piece.bytes}, entries);
    if (cleared > 0)
      decoder_.grants_.cleared(identity_.source, identity_.source_port, std::span(entries).first(cleared));
    else
      signs_.piece(piece, decoder_.grants_, identity_.target, identity_.source_port);
  }
  void message(const RoceMessage& message) override {
    if (message.immediate_seen) signs_.message(message, decoder_.grants_, identity_.target, identity_.source_port);
  }
  void lost(const PsnRange& /*psns*/) override {}
  void keep(const OwnedBytes& /*bytes*/) override {}

  [[nodiscard]] const RoceFlowIdentity& identity() const { return identity_; }
  [[nodiscard]] NcclFlowShown shown() const { return {source_rank_, target_rank_, identity_.target_qp, 0, &signs_}; }
  void forget_signs() { signs_ = {}; }

 private:
  NcclDecoder& decoder_;
  std::uint16_t source_rank_;
  std::uint16_t target_rank_;
  RoceFlowIdentity identity_;
  NcclFlowSigns signs_;
};

namespace {

RoceFlowTableConfig table_of(const NcclDecoderConfig& config) {
  RoceFlowTableConfig table = config.table;
  table.forget = true;
  table.max_flows = config.max_flows;
  return table;
}

// Of flows that are nobody's.
class Ignored final : public RoceSink {
 public:
  void piece(const RocePiece& /*piece*/) override {}
  void message(const RoceMessage& /*message*/) override {}
  void lost(const PsnRange& /*psns*/) override {}
  void keep(const OwnedBytes& /*bytes*/) override {}
};
Ignored ignored;

constexpr std::size_t kFramesAhead = 8;

// Headers lie in the first two lines of a frame that is not wrapped; the payload is the hardware's to foresee.
void prefetch_headers(const Frame& frame) {
  constexpr std::size_t kLineBytes = 64;
  __builtin_prefetch(frame.data);
  __builtin_prefetch(frame.data + kLineBytes);
}

}  // namespace

NcclDecoder::NcclDecoder(const NcclDecoderConfig& config, FlowDirectory& directory, const Clock& clock)
    : config_(config),
      directory_(directory),
      clock_(clock),
      emission_{nullptr, &arena_, &nccl_counters_, clock.monotonic_ns(), config.keep_bytes, 0},
      endpoints_(std::make_shared<const EndpointTable>()),
      table_(table_of(config), *this) {
  new_comm();
}

NcclDecoder::~NcclDecoder() = default;

void NcclDecoder::new_comm() {
  comm_ = std::make_unique<NcclComm>(config_.comm, comms_++, emission_);
  for (const auto& flow : flows_)
    if (NcclConnection* const connection = flow->connection()) {
      connection->detach();  // from the one before, which is gone
      comm_->add(*connection);
    }
  comm_->set_sizes(sizes_);
}

void NcclDecoder::refresh() {
  const std::uint64_t generation = directory_.generation();
  if (generation == generation_) return;
  generation_ = generation;
  endpoints_ = directory_.endpoints();
  if (directory_.closed_below() == closed_below_) return;
  closed_below_ = directory_.closed_below();
  for (const auto& flow : flows_)
    if (flow->id() < closed_below_) flow->end();
  sizes_ = {};
  forget_signs();
  forget_orphans();
  new_comm();
}

void NcclDecoder::end_flows_of(std::uint64_t before_ns) {
  for (const auto& flow : flows_)
    if (const NcclConnection* const connection = flow->connection(); connection && connection->first_ns() < before_ns)
      flow->end();
}

// A run that goes on in the same processes keeps its connections; one in new processes makes new ones, before or after
// it attaches, and its predecessor's are silent by then.
void NcclDecoder::begin_lineage(SegmentSink& sink) {
  begin(sink);
  std::uint64_t last_ns = 0;
  std::uint64_t newest_ns = 0;
  for (const auto& flow : flows_) {
    const NcclConnection* const connection = flow->connection();
    if (connection == nullptr) continue;
    if (connection->channel()) last_ns = std::max(last_ns, connection->last_ns());
    newest_ns = std::max(newest_ns, connection->first_ns());
  }
  if (last_ns != 0 && newest_ns > last_ns) end_flows_of(last_ns);
  lineage_ns_ = emission_.now_ns;
  sizes_ = {};
  forget_signs();
  forget_orphans();
  new_comm();
  end();
}

void NcclDecoder::connection_begins() {
  if (lineage_ns_ == 0) return;
  bool old = false;
  for (const auto& flow : flows_) {
    const NcclConnection* const connection = flow->connection();
    if (connection == nullptr || connection->first_ns() >= lineage_ns_) continue;
    if (connection->last_ns() >= lineage_ns_) return;  // they are in use
    old = true;
  }
  if (!old) return;
  end_flows_of(lineage_ns_);
  new_comm();
}

void NcclDecoder::begin(SegmentSink& sink) {
  emission_.sink = &sink;
  emission_.now_ns = clock_.monotonic_ns();
  refresh();
}

void NcclDecoder::end() {
  arena_.end_burst();
  emission_.sink = nullptr;
}

void NcclDecoder::decode(std::span<const Frame> frames, SegmentSink& sink) {
  begin(sink);
  for (std::size_t i = 0; i < std::min(frames.size(), kFramesAhead); ++i) prefetch_headers(frames[i]);
  for (std::size_t i = 0; i < frames.size(); ++i) {
    if (i + kFramesAhead < frames.size()) prefetch_headers(frames[i + kFramesAhead]);
    decode_one(frames[i]);
  }
  end();
}

void NcclDecoder::decode(std::span<const Frame> frames, std::span<const std::uint32_t> indices, SegmentSink& sink) {
  begin(sink);
  for (const std::uint32_t i : indices)
    if (i < frames.size()) decode_one(frames[i]);
  end();
}

void NcclDecoder::decode_one(const Frame& frame) {
  ++counters_.frames;
  counters_.bytes += frame.bytes;
  MirroredPacket packet;
  RoceFrame roce;
  FrameDrop drop = find_packet({frame.data, frame.bytes}, frame.wire_bytes, ChecksumPolicy::kRequired, packet);
  if (drop == FrameDrop::kNone) drop = parse_roce(packet.ip, config_.icrc, roce);
  if (drop != FrameDrop::kNone) {
    ++counters_.drops[static_cast<std::size_t>(drop)];
    return;
  }
  ++counters_.roce_frames;
  if (!endpoints_->rank(roce.source) || !endpoints_->rank(roce.target)) {
    ++counters_.foreign_endpoint;
    return;
  }
  table_.frame(roce, emission_.now_ns, counters_.frames);
}

RoceSink& NcclDecoder::opened(const RoceFlowIdentity& identity) {
  const auto source = endpoints_->rank(identity.source);
  const auto target = endpoints_->rank(identity.target);
  const std::uint32_t ranks = config_.comm.tuning.ranks;
  if (!source || !target || source == target) return ignored;
  if ((*source + 1U) % ranks != *target) {
    if (others_.size() >= config_.max_connections) return ignored;
    others_.push_back(std::make_unique<Other>(*this, *source, *target, identity));
    return *others_.back();
  }
  if (live_flows_ >= config_.max_connections) {
    ++counters_.refused_connections;
    return ignored;
  }
  flows_.push_back(std::make_unique<Flow>(*this, directory_.new_flow(), *source, *target, identity));
  ++live_flows_;
  return *flows_.back();
}

// Connections of the ring are kept, however long training pauses.
bool NcclDecoder::dispensable(const RoceFlowIdentity& identity) const {
  const auto at = std::find_if(flows_.begin(), flows_.end(),
                               [&](const auto& flow) { return flow->identity().flow == identity.flow; });
  return at == flows_.end() || (*at)->ended() || (*at)->connection() == nullptr;
}

void NcclDecoder::closed(const RoceFlowIdentity& identity) {
  std::erase_if(others_, [&](const auto& other) { return other->identity().flow == identity.flow; });
  const auto at = std::find_if(flows_.begin(), flows_.end(),
                               [&](const auto& flow) { return flow->identity().flow == identity.flow; });
  if (at == flows_.end()) return;
  if ((*at)->connection() != nullptr) {
    (*at)->orphan();  // the communicator refers to it
    return;
  }
  (*at)->end();
  flows_.erase(at);
}

void NcclDecoder::forget_orphans() {
  std::erase_if(flows_, [](const auto& flow) {
    if (!flow->orphaned()) return false;
    flow->end();
    return true;
  });
}

void NcclDecoder::forget_signs() {
  for (const auto& flow : flows_) flow->forget_signs();
  for (const auto& other : others_) other->forget_signs();
  grants_.clear();
}

std::vector<NcclMannerFinding> NcclDecoder::manners() const {
  std::vector<NcclFlowShown> shown;
  for (const auto& flow : flows_)
    if (std::as_const(*flow).connection() != nullptr) shown.push_back(flow->shown());
  for (const auto& other : others_)
    if (other->shown().signs->messages() > 0) shown.push_back(other->shown());
  std::vector<std::uint64_t> sizes;
  for (const OpSize& size : sizes_.sizes()) sizes.push_back(size.bytes);
  return judge_nccl_manner(shown, config_.comm.tuning.ranks, sizes);
}

std::string NcclDecoder::refusal() const {
  std::string text;
  for (const NcclMannerFinding& finding : manners()) text += (text.empty() ? "" : ". ") + finding.text();
  return text;
}

void NcclDecoder::tick(SegmentSink& sink) {
  begin(sink);
  table_.tick(emission_.now_ns, counters_.frames);
  comm_->tick();
  end();
}

void NcclDecoder::flush_holes(SegmentSink& sink) {
  begin(sink);
  table_.flush_holes(emission_.now_ns, counters_.frames);
  for (const auto& flow : flows_)
    if (NcclConnection* const connection = flow->connection()) connection->flush();
  comm_->tick();
  directory_.refuse(refusal());
  end();
}

std::vector<NcclConnectionReport> NcclDecoder::connections() const {
  std::vector<NcclConnectionReport> reports;
  for (const auto& flow : flows_) {
    const NcclConnection* const connection = std::as_const(*flow).connection();
    if (connection == nullptr) continue;
    reports.push_back({connection->flow(), connection->source_rank(), connection->target_rank(),
                       connection->target_qp(), connection->channel(), connection->parse().lost(),
                       connection->all_reduces(), connection->parse().reread(), connection->kept_bytes(),
                       connection->stream_bytes()});
  }
  return reports;
}

void NcclDecoder::forget_tags_below(std::uint32_t comm, std::uint32_t tag) {
  if (comm == comm_->number()) comm_->forget_below(tag);
}

void NcclDecoder::set_sizes(const SizeTable& sizes, SegmentSink& sink) {
  begin(sink);
  sizes_ = sizes;
  comm_->set_sizes(sizes);
  comm_->tick();
  end();
}

}  // namespace gradtap::dataplane
