#include "dataplane/nccl_connection.h"

#include <algorithm>
#include <bit>
#include <cstring>
#include <utility>

#include "dataplane/nccl_comm.h"
#include "dataplane/nccl_ll.h"

namespace gradtap::dataplane {
namespace {

constexpr std::size_t kMappedKept = 4096;

}  // namespace

NcclConnection::NcclConnection(const NcclConnectionConfig& config, NcclEmission& emission, std::uint32_t flow,
                               std::uint16_t source_rank, std::uint16_t target_rank, std::uint32_t target_qp)
    : config_(config),
      emission_(emission),
      flow_(flow),
      source_rank_(source_rank),
      target_rank_(target_rank),
      target_qp_(target_qp),
      first_ns_(emission.now_ns),
      last_ns_(emission.now_ns),
      parse_(config.parse),
      recent_(std::bit_ceil(std::max<std::size_t>(config.recent_messages, 512))) {}

NcclConnection::~NcclConnection() {
  let_go(kept_bytes_);
}

NcclConnection::Message* NcclConnection::find(std::uint64_t number) {
  Message& message = recent_[number & (recent_.size() - 1)];
  return message.number == number ? &message : nullptr;
}

NcclConnection::Message* NcclConnection::open(std::uint64_t number) {
  Message& message = recent_[number & (recent_.size() - 1)];
  if (message.number == number) return &message;
  if (message.number != ~std::uint64_t{0}) {
    if (message.number > number) return nullptr;  // older than what is remembered
    drop(message);
    while (!tail_.empty() && (tail_.front().hole || tail_.front().number <= message.number)) {
      tail_foreign_ = std::max(tail_foreign_, tail_.front().foreign);
      tail_.pop_front();
    }
  }
  message = {};
  message.number = number;
  return &message;
}

void NcclConnection::drop(Message& message) {
  for (const Kept& kept : message.kept) {
    let_go(kept.count);
    emission_.counters->dropped_bytes += kept.count;
  }
  message.kept.clear();
}

void NcclConnection::let_go(std::size_t bytes) {
  kept_bytes_ -= bytes;
  emission_.kept_bytes -= bytes;
}

bool NcclConnection::keeps_too_much() const {
  return kept_bytes_ > config_.keep_bytes || emission_.kept_bytes > emission_.keep_bytes;
}

// The oldest of what waits goes first.
void NcclConnection::make_room() {
  if (emission_.kept_bytes > emission_.keep_bytes) ++emission_.counters->keep_hits;
  while (keeps_too_much() && !tail_.empty()) {
    if (!tail_.front().hole)
      if (Message* const message = find(tail_.front().number)) drop(*message);
    tail_foreign_ = std::max(tail_foreign_, tail_.front().foreign);
    tail_.pop_front();
  }
  for (std::size_t i = 0; keeps_too_much() && i < unplaced_.size(); ++i)
    if (Message* const message = find(unplaced_[i])) drop(*message);
  // What is left is not read yet, or other connections': the newest message goes.
  if (keeps_too_much())
    if (Message* const message = find(newest_)) drop(*message);
}

void NcclConnection::copy(Message& message, const RocePiece& piece) {
  if (parse_.lost() || piece.bytes > config_.keep_bytes) {
    emission_.counters->dropped_bytes += piece.bytes;
    return;
  }
  Kept kept;
  kept.offset = piece.offset_bytes;
  kept.provisional = piece.provisional;
  kept.bytes.reset(new std::uint8_t[piece.bytes]);
  std::memcpy(kept.bytes.get(), piece.data, piece.bytes);
  kept.count = piece.bytes;
  kept_bytes_ += piece.bytes;
  emission_.kept_bytes += piece.bytes;
  emission_.counters->kept_bytes += piece.bytes;
  message.kept.push_back(std::move(kept));
  make_room();
}

void NcclConnection::keep(const OwnedBytes& bytes) {
  emission_.sink->keep(bytes);
}

void NcclConnection::piece(const RocePiece& piece) {
  stream_bytes_ += piece.bytes;
  last_ns_ = emission_.now_ns;
  Message* const message = open(piece.message);
  if (message == nullptr) {
    ++emission_.counters->late_pieces;
    return;
  }
  newest_ = std::max(newest_, piece.message);
  message->seen_end = std::max(message->seen_end, piece.offset_bytes + piece.bytes);
  if (piece.offset_bytes == 0 && !piece.provisional) message->begin_psn = piece.psn;
  // A message that begins where the one before ended needs no further proof of its place in the order.
  if (message->stage == Stage::kNew && piece.offset_bytes == 0 && piece.message_bytes > 0 && !piece.provisional &&
      piece.psn == next_psn_) {
    message->extent.number = piece.message;
    message->extent.bytes = piece.message_bytes;
    message->extent.packet_bytes = piece.bytes;
    announce(*message);
  }
  if (message->stage == Stage::kPlaced)
    give_out(*message, piece.offset_bytes + head_bytes(*message, piece.provisional), piece.data, piece.bytes);
  else if (message->stage != Stage::kLabelled || message->label.phase != Phase::kPartial)  // those are never given out
    copy(*message, piece);
}

void NcclConnection::message(const RoceMessage& extent) {
  Message* const message = open(extent.number);
  if (message == nullptr) return;
  message->extent = extent;
  message->told = true;
  next_psn_ = extent.psns.end;
  if (message->stage == Stage::kNew)
    announce(*message);
  else if (comm_ != nullptr && extent.number == last_announced_)
    parse_.ended(extent);
}

void NcclConnection::flush() {
  if (comm_ != nullptr) {
    parse_.conclude_hole();
    take_labels();
  }
  Message* const message = find(newest_);
  if (comm_ == nullptr || message == nullptr || message->stage != Stage::kNew || message->begin_psn != next_psn_)
    return;
  if (!parse_.expects(message->seen_end)) return;
  message->extent.number = message->number;
  message->extent.bytes = message->seen_end;
  announce(*message);
}

void NcclConnection::lost(const PsnRange& psns) {
  next_psn_ = psns.end;
  Entry entry;
  entry.hole = true;
  entry.psns = psns;
  if (comm_ != nullptr)
    give_to_parse(entry);
  else
    tail_.push_back(entry);
}

void NcclConnection::announce(Message& message) {
  message.stage = Stage::kAnnounced;
  last_announced_ = message.number;
  ++emission_.counters->messages;
  Entry entry;
  entry.number = message.number;
  if (comm_ != nullptr) {
    give_to_parse(entry);
    return;
  }
  message.stage = Stage::kForeign;
  tail_.push_back(entry);
}

void NcclConnection::give_to_parse(const Entry& entry) {
  if (entry.hole) {
    if (parse_.at_boundary()) tail_.push_back(entry);
    parse_.hole(entry.psns);
  } else {
    const Message* const message = find(entry.number);
    if (message == nullptr) return;
    unlabelled_.push_back(entry.number);
    parse_.message(message->extent, message->told);
  }
  take_labels();
}

void NcclConnection::take_labels() {
  while (const auto label = parse_.take()) {
    if (unlabelled_.empty()) return;
    const std::uint64_t number = unlabelled_.front();
    unlabelled_.pop_front();
    Message* const message = find(number);
    if (!label->all_reduce) {
      ++emission_.counters->foreign_messages;
      if (message != nullptr) {
        message->stage = Stage::kForeign;
        if (parse_.lost()) drop(*message);
      }
      Entry entry;
      entry.number = number;
      entry.foreign = label->foreign;
      if (!parse_.lost()) tail_.push_back(entry);
      continue;
    }
    ++emission_.counters->all_reduce_messages;
    for (const Entry& entry : tail_)
      if (Message* const foreign = entry.hole ? nullptr : find(entry.number)) drop(*foreign);
    tail_.clear();
    tail_all_reduces_ = all_reduces_ = label->all_reduces + 1;
    tail_foreign_ = label->foreign;
    if (message == nullptr) continue;
    message->label = *label;
    message->stage = Stage::kLabelled;
    unplaced_.push_back(number);
    tell_candidates();
    if (channel_ == 0U) comm_->begun(source_rank_, label->all_reduces, label->foreign);
  }
  if (parse_.lost() && !std::exchange(lost_counted_, true)) ++emission_.counters->lost_parses;
  place_waiting();
}

void NcclConnection::place_waiting() {
  while (!unplaced_.empty()) {
    Message* const message = find(unplaced_.front());
    if (message != nullptr && !place(*message)) return;
    unplaced_.pop_front();
  }
}

void NcclConnection::settle() {
  if (comm_ == nullptr) return;
  heed_candidates();
  take_labels();
}

// The number, in the communicator, of the n-th all-reduce on this connection.
std::optional<std::uint64_t> NcclConnection::all_reduce_of(std::uint64_t n) {
  const std::uint32_t own = channel_.value_or(0);
  if (own == 0) return n;
  while (mapped_base_ + mapped_.size() <= n) {
    const auto channels = comm_->channels(next_mapped_);
    if (!channels) return std::nullopt;
    if (*channels > own) mapped_.push_back(next_mapped_);
    ++next_mapped_;
    if (mapped_.size() > kMappedKept) {
      mapped_.pop_front();
      ++mapped_base_;
    }
  }
  if (n < mapped_base_) return std::nullopt;
  return mapped_[n - mapped_base_];
}

// What this connection makes of its newest all-reduces, for the others.
void NcclConnection::tell_candidates() {
  if (told_revision_ == parse_.revision()) return;
  const std::uint64_t end = parse_.undecided().second;
  for (std::uint64_t n = end > 2 ? end - 2 : 0; n < end; ++n) {
    const std::vector<std::uint32_t> ids = parse_.candidates(n);
    if (ids.empty()) continue;
    const auto all_reduce = all_reduce_of(n);
    if (!all_reduce) return;
    comm_->narrow(*all_reduce, ids);
  }
  told_revision_ = parse_.revision();
}

// And what they make of those on which it is in doubt.
void NcclConnection::heed_candidates() {
  const auto [first, end] = parse_.undecided();
  for (std::uint64_t n = first; n < end; ++n) {
    const auto all_reduce = all_reduce_of(n);
    if (!all_reduce) break;
    const std::vector<std::uint32_t>* const ids = comm_->candidates(*all_reduce);
    if (ids != nullptr) (void)parse_.restrict(n, *ids);
  }
}

bool NcclConnection::place(Message& message) {
  const auto all_reduce = all_reduce_of(message.label.all_reduces);
  if (!all_reduce) return false;
  const auto tag = comm_->tag(*all_reduce);
  if (!tag) return false;
  message.tag = *tag;
  message.stage = Stage::kPlaced;
  if (message.label.data_bytes > 0) {
    Segment segment = segment_of(message);
    emission_.sink->segment(segment);
  }
  for (const Kept& kept : message.kept) {
    let_go(kept.count);
    if (!message.label.lines) emission_.sink->keep(kept.bytes);
    give_out(message, kept.offset + head_bytes(message, kept.provisional), kept.bytes.get(), kept.count);
  }
  message.kept.clear();
  return true;
}

// What lies before the offset of a piece.
std::uint64_t NcclConnection::head_bytes(const Message& message, bool provisional) {
  if (message.extent.head_uncertain) return message.label.head_bytes;
  return provisional ? message.extent.head_missing_bytes : 0;
}

Segment NcclConnection::segment_of(const Message& message) const {
  Segment segment;
  segment.op = {comm_->number(), message.tag};
  segment.type = CollectiveType::kAllReduce;
  segment.source_rank = source_rank_;
  segment.target_rank = target_rank_;
  segment.flow = flow_;
  segment.message_index = comm_->message_index(channel_.value_or(0), message.label.index);
  segment.message_bytes = message.label.data_bytes;
  return segment;
}

void NcclConnection::give_out(Message& message, std::uint64_t offset, const std::uint8_t* data, std::uint32_t bytes) {
  const NcclLabel& label = message.label;
  if (comm_ == nullptr || label.phase == Phase::kPartial || label.data_bytes == 0) return;
  Segment segment = segment_of(message);
  segment.data = data;
  segment.bytes = bytes;
  segment.offset_bytes = offset;
  if (label.lines) {
    const std::size_t lines = bytes / kLlLineBytes;
    if (bytes % kLlLineBytes != 0 || offset % kLlLineBytes != 0) {
      ++emission_.counters->bad_lines;
      return;
    }
    if (message.flag == 0) message.flag = ll_flag({data, bytes}).value_or(0);
    std::uint8_t* const stripped = emission_.arena->take(lines * kLlLineDataBytes, *emission_.sink);
    if (message.flag == 0 || !strip_ll(data, lines, message.flag, stripped)) {
      ++emission_.counters->bad_lines;
      return;
    }
    segment.data = stripped;
    segment.bytes = static_cast<std::uint32_t>(lines * kLlLineDataBytes);
    segment.offset_bytes = offset / 2;
  }
  if (segment.offset_bytes >= label.data_bytes) return;
  segment.bytes =
      static_cast<std::uint32_t>(std::min<std::uint64_t>(segment.bytes, label.data_bytes - segment.offset_bytes));
  ++emission_.counters->segments;
  emission_.counters->segment_bytes += segment.bytes;
  emission_.sink->segment(segment);
}

void NcclConnection::attach(NcclComm& comm, std::uint32_t channel, const std::vector<NcclPattern>& patterns) {
  if (comm_ != &comm) {
    parse_ = NcclParse(config_.parse);
    for (const std::uint64_t number : unlabelled_) {
      Entry entry;
      entry.number = number;
      tail_.push_back(entry);
    }
    unlabelled_.clear();
    for (const std::uint64_t number : unplaced_)
      if (Message* const message = find(number)) drop(*message);
    unplaced_.clear();
    tail_all_reduces_ = tail_foreign_ = all_reduces_ = 0;
    mapped_.clear();
    mapped_base_ = next_mapped_ = 0;
    lost_counted_ = false;
    told_revision_.reset();
  }
  comm_ = &comm;
  channel_ = channel;
  parse_.set_patterns(patterns);
  if (!unlabelled_.empty() || !parse_.at_boundary() || parse_.lost()) return;
  parse_.restart(tail_all_reduces_, tail_foreign_);
  const std::deque<Entry> again = std::exchange(tail_, {});
  for (const Entry& entry : again) {
    if (!entry.hole) {
      Message* const message = find(entry.number);
      if (message == nullptr) continue;
      message->stage = Stage::kAnnounced;
    }
    give_to_parse(entry);
  }
}

}  // namespace gradtap::dataplane
