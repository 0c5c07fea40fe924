#include "dataplane/nccl_program.h"

#include <algorithm>

namespace gradtap::dataplane {

NcclPattern NcclPattern::ring(std::uint32_t id, const NcclSchedule& schedule, std::uint32_t position,
                              std::uint32_t channel) {
  NcclPattern pattern;
  pattern.id_ = id;
  pattern.schedule_ = schedule;
  pattern.position_ = position;
  pattern.channel_ = channel;
  pattern.count_ = schedule.message_count(position, channel);
  return pattern;
}

NcclPattern NcclPattern::send(std::uint32_t id, std::uint64_t bytes) {
  NcclPattern pattern;
  pattern.id_ = id;
  pattern.send_bytes_ = bytes;
  pattern.count_ = (bytes + nccl_send_chunk_bytes(bytes) - 1) / nccl_send_chunk_bytes(bytes);
  return pattern;
}

std::uint64_t NcclPattern::wire_bytes(std::uint64_t index) const {
  if (schedule_) {
    const auto message = schedule_->message(position_, channel_, index);
    return message ? message->wire_bytes : 0;
  }
  const std::uint64_t chunk = nccl_send_chunk_bytes(send_bytes_);
  return std::min(chunk, send_bytes_ - index * chunk);
}

bool NcclPattern::brings_final(std::uint64_t index) const {
  if (!schedule_) return true;
  const auto message = schedule_->message(position_, channel_, index);
  return message && message->phase == Phase::kFinal && message->begin < message->end;
}

NcclProgram::NcclProgram(std::vector<NcclPattern> patterns, const NcclProgramConfig& config)
    : patterns_(std::move(patterns)), config_(config) {
  std::erase_if(patterns_, [](const NcclPattern& pattern) { return pattern.count() == 0; });
  occurrences_.resize(patterns_.size());
  for (const NcclPattern& pattern : patterns_) {
    // Only an operation whose first messages look like its last ones can be found in the wrong place.
    bool repeats = false;
    for (std::uint64_t shift = 1; shift < pattern.count() && !repeats; ++shift) {
      repeats = true;
      for (std::uint64_t i = 0; i + shift < pattern.count() && repeats; ++i)
        repeats = pattern.wire_bytes(i) == pattern.wire_bytes(i + shift);
      if (shift > 64) break;
    }
    repeating_.push_back(repeats);
  }
}

std::uint64_t NcclProgram::packets(std::uint64_t bytes) const {
  if (bytes == 0) return 1;
  const std::uint64_t data = packet_bytes_ == 0 ? 1 : (bytes + packet_bytes_ - 1) / packet_bytes_;
  return data + (splits_ && bytes > kNcclSplitBytes ? 1 : 0);
}

std::uint64_t NcclProgram::least_psns(const NcclPattern& pattern) const {
  std::uint64_t psns = 0;
  for (std::uint64_t i = 0; i < pattern.count(); ++i) psns += packets(pattern.wire_bytes(i));
  return psns;
}

void NcclProgram::add(const NcclItem& item, NcclProgramSink& sink) {
  if (!item.hole) {
    const RoceMessage& message = item.message;
    if (message.bytes > message.packet_bytes) packet_bytes_ = std::max(packet_bytes_, message.packet_bytes);
    if (message.bytes > kNcclSplitBytes && (message.split || message.awaits_immediate)) splits_ = true;
  }
  waiting_.push_back(item);
  if (waiting_.size() >= needed_) advance(false, sink);
  while (waiting_.size() > config_.max_waiting) {
    aligned_ = false;
    give_up_front(sink);
    advance(false, sink);
  }
}

void NcclProgram::finish(NcclProgramSink& sink) {
  advance(true, sink);
}

void NcclProgram::give_up_front(NcclProgramSink& sink) {
  const NcclItem item = waiting_.front();
  waiting_.pop_front();
  if (!item.hole) {
    for (std::size_t i = 0; i < patterns_.size(); ++i) {
      if (!repeating_[i]) continue;
      for (std::uint64_t index = 0; index < std::min<std::uint64_t>(patterns_[i].count(), 64); ++index)
        doubtful_ = doubtful_ || patterns_[i].wire_bytes(index) == item.message.bytes;
    }
  }
  sink.foreign(item);
}

void NcclProgram::advance(bool end, NcclProgramSink& sink) {
  needed_ = 0;
  while (!waiting_.empty())
    if (!(waiting_.front().hole ? advance_hole(end, sink) : advance_message(end, sink))) break;
}

// False: more items are needed.
bool NcclProgram::advance_message(bool end, NcclProgramSink& sink) {
  const NcclPattern* fitting = nullptr;
  std::size_t fitting_count = 0;
  bool hidden = false;
  std::size_t more = 0;
  for (const NcclPattern& pattern : patterns_) {
    const Match found = match(pattern, 0, 0, end, nullptr);
    if (found.fit == Fit::kMore) more = more == 0 ? pattern.count() : std::min<std::size_t>(more, pattern.count());
    if (found.fit == Fit::kHole && found.bytes > 0) hidden = true;
    if (found.fit == Fit::kYes || (found.fit == Fit::kCut && found.final_found)) {
      fitting = &pattern;
      ++fitting_count;
    }
  }
  if (more != 0) {
    needed_ = std::max(waiting_.size() + 1, more);
    return false;
  }
  if (fitting_count == 1) {
    accept(*fitting, 0, end, sink);
    return true;
  }
  if (fitting_count > 1) {
    ++ambiguous_;
    aligned_ = false;
  }
  if (hidden) aligned_ = false;
  give_up_front(sink);
  return true;
}

bool NcclProgram::advance_hole(bool end, NcclProgramSink& sink) {
  if (waiting_.size() == 1 && !end) {
    needed_ = 2;
    return false;
  }
  const std::uint64_t psns = waiting_.front().psns.count();
  const NcclPattern* fitting = nullptr;
  std::uint64_t fitting_lost = 0;
  std::size_t fitting_count = 0;
  std::size_t more = 0;
  bool fresh = false, hidden = false;
  for (const NcclPattern& pattern : patterns_) {
    if (waiting_.size() > 1) {
      const Match after = match(pattern, 1, 0, end, nullptr);
      if (after.fit == Fit::kMore) more = std::max<std::size_t>(more, pattern.count());
      fresh = fresh || after.fit == Fit::kYes;
    }
    hidden = hidden || least_psns(pattern) <= psns;
    std::uint64_t taken = 0;
    for (std::uint64_t lost = 1; lost < pattern.count() && lost <= config_.max_lost_messages; ++lost) {
      taken += packets(pattern.wire_bytes(lost - 1));
      if (taken > psns) break;
      const Match found = match(pattern, 0, lost, end, nullptr);
      if (found.fit == Fit::kMore) more = std::max<std::size_t>(more, pattern.count());
      if (found.fit != Fit::kYes || found.bytes == 0) continue;
      fitting = &pattern;
      fitting_lost = lost;
      ++fitting_count;
    }
  }
  if (more != 0) {
    needed_ = std::max(waiting_.size() + 1, more);
    return false;
  }
  if (fitting_count == 1 && !fresh && !hidden) {
    accept(*fitting, fitting_lost, end, sink);
    return true;
  }
  if (fitting_count > 0 || hidden) aligned_ = false;
  give_up_front(sink);
  return true;
}

void NcclProgram::accept(const NcclPattern& pattern, std::uint64_t lost_first, bool end, NcclProgramSink& sink) {
  const auto number = static_cast<std::size_t>(&pattern - patterns_.data());
  ++occurrences_[number];
  ++operations_;
  const Match taken = match(pattern, 0, lost_first, end, &sink);
  waiting_.erase(waiting_.begin(), waiting_.begin() + static_cast<std::ptrdiff_t>(taken.items));
  if (taken.used_psns > 0) waiting_.front().psns.begin += taken.used_psns;
}

// Compares the items from `at` on with the pattern. lost_first > 0: the item at `at` is a hole that ends with that many
// messages of the pattern. With a sink every step is told.
NcclProgram::Match NcclProgram::match(const NcclPattern& pattern, std::size_t at, std::uint64_t lost_first, bool end,
                                      NcclProgramSink* sink) {
  const auto number = static_cast<std::size_t>(&pattern - patterns_.data());
  NcclStep step{pattern.id(), aligned_ ? occurrences_[number] : 0, 0, {}};
  Match result;
  bool through_hole = lost_first > 0;
  std::size_t i = at;
  std::uint64_t used = 0;  // PSNs of the hole at i
  std::uint32_t flag = 0;  // of message `flag_index`
  std::uint64_t flag_index = 0;
  if (lost_first > 0) {
    used = waiting_[i].psns.count();
    for (std::uint64_t k = 0; k < lost_first; ++k) used -= packets(pattern.wire_bytes(k));
  }
  while (step.index < pattern.count()) {
    if (i == waiting_.size()) {
      result.fit = end ? Fit::kCut : Fit::kMore;
      break;
    }
    const NcclItem& item = waiting_[i];
    const std::uint64_t bytes = pattern.wire_bytes(step.index);
    if (item.hole) {
      const std::uint64_t left = item.psns.count() - used;
      if (left == 0) {
        ++i;
        used = 0;
        continue;
      }
      const std::uint64_t needed = packets(bytes);
      if (needed > left) {
        result.fit = Fit::kHole;
        break;
      }
      step.psns = {item.psns.begin + used, item.psns.begin + used + needed};
      if (sink != nullptr) sink->lost(step);
      through_hole = true;
      used += needed;
    } else {
      const RoceMessage& message = item.message;
      const bool length_fits =
          message.open_ended ? message.bytes <= bytes && message.bytes > 0 : message.bytes == bytes;
      if (message.foreign || message.immediate_mismatch || message.head_uncertain || !length_fits) break;
      if (pattern.line_based() && item.seen_data) {
        if (item.flag == 0) break;
        // Flags count the messages of the connection.
        if (flag != 0 && item.flag - flag != step.index - flag_index) break;
        flag = item.flag;
        flag_index = step.index;
      }
      // What of this message is in the hole that follows: the rest of its data, its immediate.
      std::uint64_t behind = 0;
      if (message.open_ended) {
        behind = (bytes - message.bytes + message.packet_bytes - 1) / message.packet_bytes;
        if (message.run || (splits_ && bytes > kNcclSplitBytes)) ++behind;
      } else if (message.awaits_immediate || (!message.immediate_seen && splits_ && bytes > kNcclSplitBytes)) {
        behind = 1;
      }
      const bool hole_follows = i + 1 < waiting_.size() && waiting_[i + 1].hole;
      if (behind > 0 && i + 1 == waiting_.size() && !end) {
        result.fit = Fit::kMore;
        break;
      }
      if (behind > 0 && i + 1 < waiting_.size() && (!hole_follows || waiting_[i + 1].psns.count() < behind)) {
        result.fit = hole_follows ? Fit::kHole : Fit::kNo;
        break;
      }
      step.psns = message.psns;
      if (sink != nullptr) sink->found(step, item);
      result.final_found = result.final_found || pattern.brings_final(step.index);
      result.bytes += bytes;
      ++i;
      used = i < waiting_.size() ? behind : 0;
    }
    ++result.messages;
    ++step.index;
    if (step.index == pattern.count()) result.fit = Fit::kYes;
  }
  if (result.fit == Fit::kNo && through_hole) result.fit = Fit::kHole;
  if (i < waiting_.size() && waiting_[i].hole && used == waiting_[i].psns.count()) {
    ++i;
    used = 0;
  }
  result.items = i - at;
  result.used_psns = used;
  return result;
}

}  // namespace gradtap::dataplane
