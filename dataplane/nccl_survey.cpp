#include "dataplane/nccl_survey.h"

#include <algorithm>

#include "dataplane/nccl_ll.h"

namespace gradtap::dataplane {

FrameDrop read_roce_frame(ByteSpan bytes, std::uint32_t wire_bytes, RoceCaptureCounters& counters, RoceFrame& frame,
                          IpPacket* ip) {
  ++counters.frames;
  MirroredPacket packet;
  FrameDrop drop = find_packet(bytes, wire_bytes, ChecksumPolicy::kRequired, packet);
  if (drop == FrameDrop::kNone) {
    drop = parse_roce(packet.ip, IcrcPolicy::kRequired, frame);
    if (packet.tunnels > 0) ++counters.tunnelled;
    if (ip != nullptr) *ip = packet.ip;
    if (drop != FrameDrop::kNotRoce) ++counters.roce_frames;
    if (drop == FrameDrop::kBadIcrc) {
      ++counters.bad_icrc;
      if (roce_opcode(roce_datagram(packet.ip)[kUdpBytes]).kind == RoceKind::kUnknown) ++counters.vendor_frames;
    }
  }
  ++counters.drops[static_cast<std::size_t>(drop)];
  return drop;
}

NcclRole SurveyedFlow::role() const {
  if (messages_with_immediate_ > 0 || long_messages_ > 0) return NcclRole::kData;
  return cts_entries_ > 0 ? NcclRole::kCts : NcclRole::kUnknown;
}

const NcclItem* SurveyedFlow::item_of(std::uint64_t message) const {
  return message < item_of_message_.size() ? &items_[item_of_message_[message]] : nullptr;
}

void SurveyedFlow::note(Lines& lines, const RocePiece& piece) const {
  const ByteSpan wire(piece.data, piece.bytes);
  lines.seen = true;
  const auto flag = ll_flag(wire);
  if (!flag || piece.offset_bytes % kLlLineBytes != 0 || (lines.flag != 0 && lines.flag != *flag) ||
      !has_ll_flags(wire, *flag)) {
    lines.broken = true;
  } else {
    lines.flag = *flag;
  }
}

void SurveyedFlow::piece(const RocePiece& piece) {
  data_bytes_ += piece.bytes;
  signs_.piece(piece, grants_, identity_.target, identity_.source_port);
  if (!piece.immediate && piece.offset_bytes == 0 && messages_with_immediate_ == 0) {
    std::array<NcclCts, kMaxNcclReceives> entries;
    if (const std::size_t count = read_nccl_cts({piece.data, piece.bytes}, entries); count > 0) {
      cts_entries_ += count;
      receives_ = std::max<std::uint64_t>(receives_, count);
      grants_.cleared(identity_.source, identity_.source_port, std::span(entries).first(count));
      for (std::size_t i = 0; i < count && tags_.size() < kMaxTags; ++i) tags_.insert(entries[i].tag);
    }
  }
  if (piece.message < item_of_message_.size()) {  // late: the message is an item already
    NcclItem& item = items_[item_of_message_[piece.message]];
    Lines lines{item.flag, item.seen_data, item.seen_data && item.flag == 0, item.frame};
    note(lines, piece);
    item.seen_data = true;
    item.flag = lines.broken ? 0 : lines.flag;
  } else if (!truncated_) {
    Lines& lines = open_[piece.message];
    lines.frame = lines.seen ? std::min(lines.frame, piece.arrival) : piece.arrival;
    note(lines, piece);
  }
}

void SurveyedFlow::message(const RoceMessage& message) {
  if (message.immediate_seen) ++messages_with_immediate_;
  signs_.message(message, grants_, identity_.target, identity_.source_port);
  if (message.bytes > kMaxCtsBytes) ++long_messages_;
  if (message.immediate_mismatch) ++mismatches_;
  if (message.bytes > message.packet_bytes) packet_bytes_ = std::max(packet_bytes_, message.packet_bytes);
  const auto lines = open_.find(message.number);
  if (items_left_ == 0) {
    truncated_ = true;
    open_.clear();
    return;
  }
  --items_left_;
  NcclItem item{.hole = false, .psns = message.psns, .message = message};
  item.frame = message.arrival;
  if (lines != open_.end()) {
    item.seen_data = true;
    item.frame = lines->second.frame;
    item.flag = lines->second.broken ? 0 : lines->second.flag;
    open_.erase(lines);
  }
  item_of_message_.push_back(static_cast<std::uint32_t>(items_.size()));
  items_.push_back(item);
}

void SurveyedFlow::lost(const PsnRange& psns) {
  if (items_left_ == 0) return;
  --items_left_;
  items_.push_back({.hole = true, .psns = psns, .message = {}});
}

NcclSurvey::NcclSurvey(const NcclSurveyConfig& config) : items_left_(config.max_items), table_(config.table, *this) {}

RoceSink& NcclSurvey::opened(const RoceFlowIdentity& identity) {
  flows_.push_back(std::make_unique<SurveyedFlow>(identity, items_left_, grants_));
  return *flows_.back();
}

void NcclSurvey::frame(ByteSpan bytes, std::uint32_t wire_bytes, std::uint64_t time_ns) {
  RoceFrame frame;
  IpPacket ip;
  time_ns_ = time_ns;
  const FrameDrop drop = read_roce_frame(bytes, wire_bytes, counters_, frame, &ip);
  if (drop == FrameDrop::kNone) {
    table_.frame(frame, time_ns, counters_.frames);
  } else if (drop == FrameDrop::kNotRoce && ip.protocol == kProtocolTcp) {
    FrameView view;
    if (parse_tcp(ip, ChecksumPolicy::kOffload, view) == FrameDrop::kNone) bootstrap_.segment(view);
  }
}

void NcclSurvey::finish() {
  table_.finish(time_ns_, counters_.frames);
  for (const NcclExchange& exchange : bootstrap_.exchanges())
    if (exchange.name) names_[{exchange.receiver.gid, exchange.receiver.qp}] = *exchange.name;
}

bool NcclSurvey::orderly(const SurveyedFlow& flow) const {
  constexpr std::uint64_t kMissingPerSeen = 64;
  const RoceFlowTable::Entry& entry = *table_.entries()[flow.identity().flow];
  std::uint64_t missing = 0;
  for (const Interval& range : entry.flow->missing_psns()) missing += range.length();
  return missing <= kMissingPerSeen * (entry.requests + 16);
}

const NcclConnectionName* NcclSurvey::name_of(const SurveyedFlow& flow) const {
  const auto at = names_.find({flow.identity().target, flow.identity().target_qp});
  return at == names_.end() ? nullptr : &at->second;
}

const SurveyedFlow* NcclSurvey::partner(const SurveyedFlow& flow) const {
  const RoceFlowTable::Entry* const other = table_.entries()[flow.identity().flow]->partner;
  return other == nullptr ? nullptr : flows_[other->identity.flow].get();
}

}  // namespace gradtap::dataplane
