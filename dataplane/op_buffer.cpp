#include "dataplane/op_buffer.h"

#include <algorithm>
#include <cstring>
#include <string>
#include <utility>

namespace gradtap::dataplane {
namespace {
constexpr std::size_t kMaxConflictReports = 64;
constexpr std::size_t kMaxOtherFlows = 4;
constexpr std::size_t kMaxConflictRanges = 1024;
}  // namespace

OpBuffer::OpBuffer(OpKey op, const Schedule& schedule, std::shared_ptr<OpBufferPool> pool, LimboBudget& limbo_budget,
                   AssemblyCounters& counters, const OpBufferLimits& limits, std::span<const OpSize> candidates)
    : op_(op),
      schedule_(schedule),
      pool_(std::move(pool)),
      counters_(counters),
      limits_(limits),
      candidates_(candidates.begin(), candidates.end()),
      limbo_(limbo_budget) {}

// A flow has one edge, which is looked at once. Null, counted: it has another, or is one too many.
OpBuffer::Track* OpBuffer::track_of(const Segment& segment) {
  const auto is_of = [&](const Track& track) {
    if (track.source == segment.source_rank && track.target == segment.target_rank) return true;
    ++counters_.rejected_edge;
    return false;
  };
  if (last_track_ < tracks_.size() && tracks_[last_track_].flow == segment.flow)
    return is_of(tracks_[last_track_]) ? &tracks_[last_track_] : nullptr;
  for (std::size_t i = 0; i < tracks_.size(); ++i) {
    if (tracks_[i].flow == segment.flow) {
      last_track_ = i;
      return is_of(tracks_[i]) ? &tracks_[i] : nullptr;
    }
  }
  if (!schedule_.has_edge(segment.source_rank, segment.target_rank)) {
    ++counters_.rejected_edge;
    return nullptr;
  }
  if (tracks_.size() >= limits_.max_flows) {
    ++counters_.rejected_limit;
    return nullptr;
  }
  last_track_ = tracks_.size();
  Track track;
  track.flow = segment.flow;
  track.source = segment.source_rank;
  track.target = segment.target_rank;
  track.provisional = segment.provisional;
  tracks_.push_back(std::move(track));
  return &tracks_.back();
}

OpBuffer::Message* OpBuffer::find_message(Track& track, std::uint32_t index) {
  const auto at = std::lower_bound(track.messages.begin(), track.messages.end(), index,
                                   [](const Message& m, std::uint32_t i) { return m.index < i; });
  return at != track.messages.end() && at->index == index ? &*at : nullptr;
}

// Finds or makes the record of a message; null if it contradicts what is recorded, or is one too many.
OpBuffer::Message* OpBuffer::message_of(Track& track, std::uint32_t index, std::uint64_t bytes) {
  auto& messages = track.messages;
  auto at = messages.begin() + static_cast<std::ptrdiff_t>(track.last);
  if (at == messages.end() || at->index != index) {
    at = messages.empty() || messages.back().index < index
             ? messages.end()
             : std::lower_bound(
                   messages.begin(), messages.end(), index,
                   [](const Message& m, std::uint32_t i) { return m.index < i; });
    if (at == messages.end() || at->index != index) {
      if (messages.size() >= limits_.max_messages_per_flow || index >= limits_.max_messages_per_flow) {
        ++counters_.rejected_limit;
        return nullptr;
      }
      at = messages.insert(at, Message{.index = index, .bytes = bytes});
      track.last = static_cast<std::size_t>(at - messages.begin());
      if (!track.provisional) narrow(track, *at);
      return &*at;
    }
    track.last = static_cast<std::size_t>(at - messages.begin());
  }
  if (at->bytes != bytes) {
    ++counters_.rejected_message;
    return nullptr;
  }
  return &*at;
}

// Partial sums are dropped whatever range they belong to, so only the phase must agree for them.
bool OpBuffer::same_fate(const MessagePlace& one, const MessagePlace& other) {
  return one.phase == Phase::kPartial ? other.phase == Phase::kPartial : one == other;
}

void OpBuffer::set_fate(Message& message, const MessagePlace& place) {
  message.fate = place.phase == Phase::kFinal ? Fate::kFinal : Fate::kPartial;
  message.op_offset = place.op_offset;
}

// Decides too, as decide() would: asking the schedule is what costs here.
void OpBuffer::narrow(const Track& track, Message& message) {
  const std::size_t before = candidates_.size();
  std::optional<MessagePlace> first;
  bool agree = true;
  std::erase_if(candidates_, [&](const OpSize& size) {
    const auto place = schedule_.place(track.source, size, message.index);
    if (!place || place->bytes != message.bytes) return true;
    if (!first) first = place;
    agree = agree && same_fate(*first, *place);
    return false;
  });
  if (message.fate == Fate::kOpen && first && agree) set_fate(message, *first);
  if (candidates_.size() == before) return;
  candidates_changed_ = changed_ = true;
  if (candidates_.empty()) ++counters_.size_contradictions;
}

// Whether a size is consistent with every message of a flow whose numbers are proven, and with where its bytes are.
bool OpBuffer::fits(const OpSize& size, const Track& track) const {
  if (track.provisional) return true;
  return std::all_of(track.messages.begin(), track.messages.end(), [&](const Message& message) {
    const auto place = schedule_.place(track.source, size, message.index);
    if (!place || place->bytes != message.bytes) return false;
    if (message.fate == Fate::kPartial) return place->phase == Phase::kPartial;
    if (message.fate == Fate::kFinal) return place->phase == Phase::kFinal && place->op_offset == message.op_offset;
    return true;
  });
}

void OpBuffer::decide(const Track& track, Message& message) const {
  if (message.fate != Fate::kOpen || candidates_.empty()) return;
  const auto first = schedule_.place(track.source, candidates_.front(), message.index);
  if (!first || first->bytes != message.bytes) return;
  for (std::size_t i = 1; i < candidates_.size(); ++i) {
    const auto other = schedule_.place(track.source, candidates_[i], message.index);
    if (!other) return;
    if (!same_fate(*first, *other)) return;
  }
  set_fate(message, *first);
}

// Whether the lengths seen could be part of what a longer op sends on this edge, in order, with messages missing.
bool OpBuffer::lengths_fit_inside(const OpSize& size, const Track& track) const {
  const std::uint64_t count = schedule_.message_count(track.source, size);
  std::uint64_t next = 0;
  for (const Message& message : track.messages) {
    for (;; ++next) {
      if (next >= count) return false;
      const auto place = schedule_.place(track.source, size, next);
      if (place && place->bytes == message.bytes) break;
    }
    ++next;
  }
  return true;
}

// A provisional flow counts from the first message that was seen. That this was the op's first one is proven when the
// number of messages and all their lengths fit exactly one candidate, and no larger candidate could look like that
// while messages are missing.
bool OpBuffer::try_prove(Track& track) {
  if (!track.provisional || track.messages.empty() || candidates_.empty()) return false;
  const std::uint64_t seen = track.messages.back().index + 1ULL;
  const OpSize* exact = nullptr;
  for (const OpSize& size : candidates_) {
    if (schedule_.message_count(track.source, size) != seen) continue;
    const bool equal = std::all_of(track.messages.begin(), track.messages.end(), [&](const Message& message) {
      const auto place = schedule_.place(track.source, size, message.index);
      return place && place->bytes == message.bytes;
    });
    if (!equal) continue;
    if (exact != nullptr && exact->bytes != size.bytes) return false;
    exact = &size;
  }
  if (exact == nullptr) return false;
  const std::uint64_t exact_bytes = exact->bytes;
  for (const OpSize& size : candidates_) {
    if (size.bytes != exact_bytes && schedule_.message_count(track.source, size) > seen &&
        lengths_fit_inside(size, track))
      return false;
  }
  track.provisional = false;
  track.proven = true;
  for (Message& message : track.messages) narrow(track, message);
  std::erase_if(candidates_, [&](const OpSize& size) { return size.bytes != exact_bytes; });
  candidates_changed_ = changed_ = true;
  ++counters_.proven_flows;
  proven_flows_.push_back(track.flow);
  return true;
}

AddOutcome OpBuffer::add(const Segment& segment) {
  if (segment.message_bytes == 0 || segment.message_bytes > kMaxSegmentMessageBytes ||
      segment.offset_bytes > segment.message_bytes || segment.bytes > segment.message_bytes - segment.offset_bytes ||
      (segment.bytes > 0 && segment.data == nullptr)) {
    ++counters_.rejected_range;
    return AddOutcome::kRejected;
  }
  Track* track = track_of(segment);
  if (track == nullptr) return AddOutcome::kRejected;
  if (segment.provisional && !track->provisional && !track->proven) {
    ++counters_.rejected_unproven;
    return AddOutcome::kRejected;
  }
  Message* message = message_of(*track, segment.message_index, segment.message_bytes);
  if (message == nullptr) return AddOutcome::kRejected;
  AddOutcome outcome = AddOutcome::kNoted;
  try_prove(*track);
  if (!track->provisional) decide(*track, *message);
  if (segment.bytes > 0) {
    if (message->fate == Fate::kPartial) {
      counters_.partial_bytes += segment.bytes;
      outcome = AddOutcome::kPartial;
    } else if (message->fate == Fate::kFinal) {
      outcome = store(*track, *message, segment.offset_bytes, segment.data, segment.bytes);
      if (outcome == AddOutcome::kNoMemory) return outcome;
    } else {
      const auto index = static_cast<std::uint32_t>(track - tracks_.data());
      if (!limbo_.add(index, segment.message_index, segment.offset_bytes, segment.data, segment.bytes))
        return AddOutcome::kLimboFull;
      counters_.limbo_bytes += segment.bytes;
      outcome = AddOutcome::kLimbo;
    }
  }
  if (candidates_changed_) {
    const AddOutcome settled = settle();
    if (settled == AddOutcome::kStuck || settled == AddOutcome::kFragmented) return settled;
  }
  return outcome;
}

AddOutcome OpBuffer::widen(std::span<const OpSize> candidates) {
  for (const OpSize& size : candidates) {
    if (std::find(candidates_.begin(), candidates_.end(), size) != candidates_.end()) continue;
    // A bound op has its length for ever.
    if (sealed_ && size.bytes != sealed_->size()) continue;
    if (!std::all_of(tracks_.begin(), tracks_.end(), [&](const Track& track) { return fits(size, track); })) continue;
    candidates_.push_back(size);
    candidates_changed_ = changed_ = true;
  }
  return candidates_changed_ ? settle() : AddOutcome::kNoted;
}

AddOutcome OpBuffer::settle() {
  candidates_changed_ = true;
  AddOutcome outcome = AddOutcome::kNoted;
  while (candidates_changed_) {
    candidates_changed_ = false;
    for (Track& track : tracks_) try_prove(track);
    if (limbo_.empty()) continue;
    limbo_.filter([&](const LimboPiece& piece) {
      Track& track = tracks_[piece.track];
      if (track.provisional) return true;
      Message* message = find_message(track, piece.message_index);
      if (message == nullptr) return false;
      decide(track, *message);
      if (message->fate == Fate::kOpen) return true;
      if (message->fate == Fate::kPartial) {
        counters_.partial_bytes += piece.bytes;
        return false;
      }
      const AddOutcome stored = store(track, *message, piece.offset_bytes, piece.data, piece.bytes);
      if (stored == AddOutcome::kNoMemory) {
        outcome = AddOutcome::kStuck;
        return true;
      }
      if (stored == AddOutcome::kFragmented) outcome = stored;
      counters_.limbo_placed_bytes += piece.bytes;
      return false;
    });
  }
  note_completion();
  return outcome;
}

bool OpBuffer::ensure_capacity(std::uint64_t end) {
  if (sealed_) return end <= sealed_->size();
  if (buffer_ && end <= buffer_.capacity()) return true;
  std::uint64_t wanted = end;
  for (const OpSize& size : candidates_) wanted = std::max(wanted, size.bytes);
  PooledBuffer larger = pool_->acquire(wanted);
  if (!larger) return false;
  for (const Interval& range : covered_.ranges())
    std::memcpy(larger.data() + range.begin, buffer_.data() + range.begin, range.length());
  buffer_ = std::move(larger);
  return true;
}

AddOutcome OpBuffer::store(Track& track, const Message& message, std::uint64_t offset, const std::uint8_t* data,
                           std::uint64_t bytes) {
  const std::uint64_t begin = message.op_offset + offset;
  const std::uint64_t end = begin + bytes;
  if (!ensure_capacity(end)) {
    if (sealed_) {
      ++counters_.rejected_range;
      return AddOutcome::kRejected;
    }
    return AddOutcome::kNoMemory;
  }
  differing_.clear();
  covered_.split(begin, end, [&](std::uint64_t b, std::uint64_t e, bool covered) {
    const std::uint8_t* from = data + (b - begin);
    if (!covered) {
      // A sealed buffer is immutable; it is complete, so what is uncovered here is a conflict found after it was bound.
      if (!sealed_) std::memcpy(buffer_.data() + b, from, e - b);
    } else if (std::memcmp(this->bytes() + b, from, e - b) == 0) {
      counters_.duplicate_bytes += e - b;
      twice_.add(b, e);
    } else {
      differing_.push_back({b, e});
    }
  });
  counters_.placed_bytes += covered_.add(begin, end);
  track.brought_final = true;
  if (!conflicts_.empty()) {
    // What lies in an old conflict stays a hole; it was counted as placed just now.
    conflicts_.split(begin, end, [&](std::uint64_t b, std::uint64_t e, bool hole) {
      if (!hole) return;
      covered_.remove(b, e);
      counters_.placed_bytes -= e - b;
      counters_.conflict_bytes += e - b;
    });
  }
  for (const Interval& range : differing_) record_conflict(track, range);
  if (covered_.size() > limits_.max_intervals || twice_.size() > limits_.max_intervals ||
      conflicts_.size() > kMaxConflictRanges)
    return AddOutcome::kFragmented;
  note_completion();
  return AddOutcome::kPlaced;
}

void OpBuffer::record_conflict(const Track& track, Interval range) {
  conflicts_.add(range.begin, range.end);
  covered_.remove(range.begin, range.end);
  ++counters_.conflicts;
  counters_.conflict_bytes += range.length();
  changed_ = true;
  if (conflict_reports_.size() >= kMaxConflictReports) {
    ++counters_.reports_dropped;
    return;
  }
  ConflictReport report{op_, range, track.flow, {}};
  for (const Track& other : tracks_) {
    if (other.flow == track.flow || !other.brought_final || report.other_flows.size() >= kMaxOtherFlows) continue;
    const bool carries = std::any_of(other.messages.begin(), other.messages.end(), [&](const Message& m) {
      return m.fate == Fate::kFinal && m.op_offset < range.end && m.op_offset + m.bytes > range.begin;
    });
    if (carries) report.other_flows.push_back(other.flow);
  }
  conflict_reports_.push_back(std::move(report));
}

std::optional<std::uint64_t> OpBuffer::op_bytes() const {
  if (candidates_.empty()) return std::nullopt;
  for (const OpSize& size : candidates_)
    if (size.bytes != candidates_.front().bytes) return std::nullopt;
  return candidates_.front().bytes;
}

bool OpBuffer::complete() const {
  // Asked for every segment: nearly always there are several ranges.
  if (covered_.size() != 1 || covered_.ranges().front().begin != 0 || !conflicts_.empty()) return false;
  return op_bytes() == covered_.total();
}

void OpBuffer::note_completion() {
  const bool now = complete();
  if (now != was_complete_) changed_ = true;
  was_complete_ = now;
}

std::vector<Interval> OpBuffer::missing(std::uint64_t op_bytes) const {
  return covered_.missing(0, op_bytes);
}

Copies OpBuffer::copies() const {
  Copies copies;
  for (const Track& track : tracks_) copies.max += track.brought_final ? 1 : 0;
  if (!complete()) return copies;
  copies.min = twice_.total() == covered_.total() ? 2 : 1;
  return copies;
}

std::vector<EdgeMessages> OpBuffer::edges() const {
  std::vector<EdgeMessages> edges;
  for (const Track& track : tracks_) {
    EdgeMessages edge{track.source, !track.provisional, {}};
    if (!track.messages.empty()) edge.lengths.resize(track.messages.back().index + 1ULL);
    for (const Message& message : track.messages) edge.lengths[message.index] = message.bytes;
    edges.push_back(std::move(edge));
  }
  return edges;
}

bool OpBuffer::read(std::uint64_t op_bytes, std::uint64_t offset, std::span<std::uint8_t> to) const {
  if (to.empty() || offset > op_bytes || to.size() > op_bytes - offset) return false;
  const auto size = std::find_if(candidates_.begin(), candidates_.end(),
                                 [&](const OpSize& candidate) { return candidate.bytes == op_bytes; });
  if (size == candidates_.end()) return false;
  if (covered_.contains(offset, offset + to.size())) {
    std::memcpy(to.data(), bytes() + offset, to.size());
    return true;
  }
  // While several lengths are possible (only ops of a few hundred bytes stay so), look into limbo as if this one held.
  for (const LimboPiece& piece : limbo_.pieces()) {
    const Track& track = tracks_[piece.track];
    if (track.provisional) continue;
    const auto place = schedule_.place(track.source, *size, piece.message_index);
    if (!place || place->phase != Phase::kFinal) continue;
    const std::uint64_t begin = place->op_offset + piece.offset_bytes;
    if (offset < begin || offset + to.size() > begin + piece.bytes) continue;
    std::memcpy(to.data(), piece.data + (offset - begin), to.size());
    return true;
  }
  return false;
}

Result<std::shared_ptr<const OpBytes>> OpBuffer::bind(std::uint64_t op_bytes) {
  const std::string where = "comm " + std::to_string(op_.comm) + " tag " + std::to_string(op_.tag);
  if (!conflicts_.empty())
    return fail(ErrorCode::kOpConflict, "copies of the op differ", where, "equal copies",
                std::to_string(conflicts_.total()) + " bytes in conflict");
  if (sealed_) {
    if (sealed_->size() != op_bytes)
      return fail(ErrorCode::kOpSizeMismatch, "the op is bound with another length", where,
                  std::to_string(sealed_->size()), std::to_string(op_bytes));
    return sealed_;
  }
  const bool possible = std::any_of(candidates_.begin(), candidates_.end(),
                                    [&](const OpSize& candidate) { return candidate.bytes == op_bytes; });
  if (!possible)
    return fail(ErrorCode::kOpSizeMismatch, "the messages of the op do not fit this length", where,
                std::to_string(op_bytes));
  if (std::erase_if(candidates_, [&](const OpSize& candidate) { return candidate.bytes != op_bytes; }) > 0) {
    changed_ = true;
    if (settle() == AddOutcome::kStuck) return fail(ErrorCode::kLimitReached, "no memory for the op buffer", where);
  }
  if (!conflicts_.empty())
    return fail(ErrorCode::kOpConflict, "copies of the op differ", where, "equal copies",
                std::to_string(conflicts_.total()) + " bytes in conflict");
  if (!complete())
    return fail(ErrorCode::kOpIncomplete, "bytes of the op are missing", where, std::to_string(op_bytes),
                std::to_string(covered_.total()));
  sealed_ = std::make_shared<const OpBytes>(std::move(buffer_), op_bytes);
  return sealed_;
}

void OpBuffer::copy_covered(std::span<std::uint8_t> to) const {
  for (const Interval& range : covered_.ranges()) {
    if (range.begin >= to.size()) break;
    std::memcpy(to.data() + range.begin, bytes() + range.begin,
                std::min<std::uint64_t>(range.end, to.size()) - range.begin);
  }
}

bool OpBuffer::take_changed() {
  note_completion();
  return std::exchange(changed_, false);
}
std::vector<std::uint32_t> OpBuffer::take_proven_flows() {
  return std::exchange(proven_flows_, {});
}
std::vector<ConflictReport> OpBuffer::take_conflicts() {
  return std::exchange(conflict_reports_, {});
}

}  // namespace gradtap::dataplane
