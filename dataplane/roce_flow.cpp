#include "dataplane/roce_flow.h"

#include <algorithm>
#include <bit>
#include <cstring>
#include <limits>

namespace gradtap::dataplane {
namespace {

constexpr std::uint64_t kBeforeBirth = ~std::uint64_t{0};
constexpr std::uint64_t kWaitingOverhead = 256;  // what a waiting packet costs besides its bytes
constexpr std::uint64_t kFarPsns = 1U << 16;
constexpr std::uint32_t kMinPathMtuBytes = 256;

std::uint64_t packets_of(std::uint64_t bytes, std::uint32_t packet_bytes) {
  return (bytes + packet_bytes - 1) / packet_bytes;
}

bool is_path_mtu(std::uint64_t bytes) {
  return bytes >= kMinPathMtuBytes && bytes <= kMaxPathMtuBytes && std::has_single_bit(bytes);
}

std::uint32_t other_order(std::uint32_t immediate) {
  return __builtin_bswap32(immediate);
}

bool is_empty_immediate(const RoceFrame& frame) {
  return frame.meaning.kind == RoceKind::kWrite && frame.meaning.begins && frame.meaning.immediate &&
         frame.dma_bytes == 0;
}

}  // namespace

RoceFlow::RoceFlow(const RoceFlowConfig& config, StoreBudget& budget)
    : config_(config), budget_(&budget), recent_(std::bit_ceil(std::max<std::uint32_t>(config.recent_messages, 2))) {}

RoceFlow::~RoceFlow() {
  budget_->give_back(store_cost_);
}

std::uint64_t RoceFlow::unwrap(std::uint32_t psn) const {
  const std::uint32_t difference = (psn - static_cast<std::uint32_t>(highest_)) & (kPsnCount - 1);
  if (difference < kPsnCount / 2) return highest_ + difference;
  const std::uint32_t back = kPsnCount - difference;
  return back > highest_ ? kBeforeBirth : highest_ - back;
}

std::uint64_t RoceFlow::first_seen_psn() const {
  return seen_.empty() ? 0 : seen_.ranges().front().begin;
}

std::uint64_t RoceFlow::last_seen_psn() const {
  return highest_;
}

std::uint64_t RoceFlow::acknowledged_end() const {
  return acked_end_;
}

std::vector<Interval> RoceFlow::missing_psns() const {
  if (!started_) return {};
  return seen_.missing(base_, std::max({next_, highest_ + 1, acked_end_}));
}

void RoceFlow::acknowledged(std::uint32_t psn) {
  if (!started_) return;
  const std::uint64_t position = unwrap(psn);
  if (position != kBeforeBirth) acked_end_ = std::max(acked_end_, position + 1);
}

// A packet that begins a message near PSN 0, far from where this flow is or where another message is known to be, with
// another key: the number of the queue pair has been given to a new one.
bool RoceFlow::contradicts(std::uint64_t psn, const RoceFrame& frame) {
  if (!frame.meaning.address || frame.key == 0 || frame.psn >= config_.birth_psns) return false;
  const Extent* known = newest();
  if (known == nullptr || !known->address_known) return false;
  if (psn != kBeforeBirth && psn >= next_) return psn > highest_ + kFarPsns && frame.key != known->message.key;
  if (const Extent* const at = psn == kBeforeBirth ? nullptr : find(psn); at != nullptr) {
    if (!at->address_known || psn >= at->data_end) return false;
    known = at;
  }
  return frame.key != known->message.key;
}

bool RoceFlow::request(const RoceFrame& frame, RoceFlowContext& context) {
  if (!started_) {
    started_ = true;
    born_ = frame.psn < config_.birth_psns;
    base_ = next_ = born_ ? 0 : frame.psn;
    highest_ = frame.psn;
  }
  const std::uint64_t psn = unwrap(frame.psn);
  if ((psn == kBeforeBirth || psn < next_ || psn > highest_ + kFarPsns) && contradicts(psn, frame)) return false;
  ++context.counters.packets;
  arrival_ = context.packets;
  if (psn == kBeforeBirth || psn < base_) {
    ++context.counters.late;
    return true;
  }
  note_seen(psn, context);
  if (psn < next_) {
    if (Extent* const extent = find(psn))
      place(*extent, psn, frame, context);
    else
      ++context.counters.late;
    return true;
  }
  if (psn == next_)
    header(psn, frame, context);
  else if (!extend_run(psn, frame, context))
    store(psn, frame, context);
  if (!store_.empty()) settle(context, false);
  return true;
}

void RoceFlow::note_seen(std::uint64_t psn, RoceFlowContext& context) {
  if (psn < highest_) ++context.counters.behind;
  highest_ = std::max(highest_, psn);
  if (seen_.add(psn, psn + 1) == 0) ++context.counters.duplicates;
  if (seen_.size() > config_.max_seen_ranges) {
    seen_.add(seen_.ranges()[0].end, seen_.ranges()[1].begin);
    ++context.counters.forgotten_ranges;
  }
}

RoceFlow::Extent* RoceFlow::find(std::uint64_t psn) {
  if (numbers_ == 0) return nullptr;
  const std::uint64_t oldest = numbers_ > recent_.size() ? numbers_ - recent_.size() : 0;
  std::uint64_t number = numbers_ - 1;  // nearly always the newest one
  if (recent_[number & (recent_.size() - 1)].message.psns.begin > psn) {
    std::uint64_t low = oldest, high = number;  // the first that begins behind psn lies in [low, high]
    while (low < high) {
      const std::uint64_t middle = low + (high - low) / 2;
      if (recent_[middle & (recent_.size() - 1)].message.psns.begin <= psn)
        low = middle + 1;
      else
        high = middle;
    }
    if (low == oldest) return nullptr;
    number = low - 1;
  }
  Extent& extent = recent_[number & (recent_.size() - 1)];
  return psn < std::max(extent.message.psns.end, extent.data_end) ? &extent : nullptr;
}

// The newest message, if an immediate may still close it.
RoceFlow::Extent* RoceFlow::unfinished() {
  Extent* const extent = newest();
  if (extent == nullptr || extent->told || extent->message.immediate_seen) return nullptr;
  return extent;
}

RoceFlow::Extent& RoceFlow::open(std::uint64_t begin, RoceFlowContext& context) {
  tell_unfinished(pending_hole_.count() > 0, context);
  Extent& extent = recent_[numbers_ & (recent_.size() - 1)];
  extent = {};
  extent.message.number = numbers_++;
  extent.message.arrival = arrival_;
  extent.message.psns = {begin, begin};
  extent.hole_before = pending_hole_;
  pending_hole_ = {};
  return extent;
}

void RoceFlow::header(std::uint64_t psn, const RoceFrame& frame, RoceFlowContext& context) {
  if (frame.meaning.kind == RoceKind::kRequest) {
    ++context.counters.other_requests;
    Extent& extent = open(psn, context);
    std::uint64_t count = 1;  // a read takes as many as its response
    if (frame.meaning.address && mtu_bytes_ != 0)
      count = std::max<std::uint64_t>(1, packets_of(std::min(frame.dma_bytes, config_.max_message_bytes), mtu_bytes_));
    extent.message.foreign = true;
    extent.message.psns.end = extent.data_end = psn + count;
    next_ = psn + count;
    tell(extent, context);
  } else if (!frame.meaning.begins) {
    ++context.counters.unplaceable;
    skip_to(psn + 1, context);
  } else if (is_empty_immediate(frame)) {
    closing_immediate(psn, frame, context);
  } else {
    write_header(psn, frame, context);
  }
}

void RoceFlow::write_header(std::uint64_t psn, const RoceFrame& frame, RoceFlowContext& context) {
  if (extend_run(psn, frame, context)) return;
  const auto packet_bytes = static_cast<std::uint32_t>(frame.payload.size());
  const bool whole = frame.meaning.ends;
  const bool plausible = whole ? packet_bytes == frame.dma_bytes
                               : is_path_mtu(packet_bytes) && frame.dma_bytes > packet_bytes &&
                                     frame.dma_bytes <= config_.max_message_bytes;
  if (!plausible) {
    ++context.counters.inconsistent;
    skip_to(psn + 1, context);
    return;
  }
  if (!whole) mtu_bytes_ = packet_bytes;
  Extent& extent = open(psn, context);
  extent.message.address = frame.address;
  extent.message.key = frame.key;
  extent.message.bytes = frame.dma_bytes;
  extent.message.packet_bytes = packet_bytes;
  extent.data_end = psn + (whole ? 1 : packets_of(frame.dma_bytes, packet_bytes));
  extent.message.psns.end = extent.data_end;
  extent.single_writes = whole && !frame.meaning.immediate && packet_bytes > 0;
  next_ = extent.data_end;
  tell_hole_before(extent, context);
  place(extent, psn, frame, context);
}

// A write of one packet that continues a run of such writes, perhaps after missing ones: address and PSN must agree.
bool RoceFlow::extend_run(std::uint64_t psn, const RoceFrame& frame, RoceFlowContext& context) {
  if (frame.meaning.kind != RoceKind::kWrite || !frame.meaning.begins || !frame.meaning.ends) return false;
  if (frame.meaning.immediate || frame.payload.empty() || frame.payload.size() != frame.dma_bytes) return false;
  Extent* const run = unfinished();
  if (run == nullptr || !run->single_writes) return false;
  RoceMessage& message = run->message;
  const std::uint64_t gap = psn - run->data_end;
  if (frame.key != message.key || message.bytes % message.packet_bytes != 0) return false;
  if (frame.payload.size() > message.packet_bytes || gap >= config_.max_message_bytes / message.packet_bytes)
    return false;
  const std::uint64_t offset = message.bytes + gap * message.packet_bytes;
  if (frame.address != message.address + offset || offset + frame.payload.size() > config_.max_message_bytes)
    return false;
  message.bytes = offset + frame.payload.size();
  message.psns.end = run->data_end = next_ = psn + 1;
  pending_hole_ = {};  // it was inside the run
  if (is_path_mtu(message.packet_bytes)) mtu_bytes_ = message.packet_bytes;
  place(*run, psn, frame, context);
  return true;
}

// Whether an immediate without data at `psn`, which says `bytes`, closes this message.
bool RoceFlow::close_with(Extent& extent, std::uint64_t psn, std::uint32_t bytes, RoceFlowContext& context) {
  RoceMessage& message = extent.message;
  const std::uint64_t gap = psn - extent.data_end;
  if (bytes == 0 || bytes < message.bytes || bytes > config_.max_message_bytes) return false;
  const std::uint64_t more = bytes - message.bytes;
  if (!extent.end_known) {
    if (packets_of(bytes, message.packet_bytes) != psn - message.psns.begin) return false;
    extent.end_known = true;
    extent.data_end = psn;
  } else if (more > 0 || gap > 0) {
    // Packets of the run are missing. All but the last have the same size, so the length says where it began.
    if (!extent.single_writes || more == 0) return false;
    bool size_known = message.bytes > message.packet_bytes || extent.hole_before.count() == 0;
    if (!size_known && mtu_bytes_ != 0 && message.packet_bytes <= mtu_bytes_) {  // one packet, full or the last one
      if (message.packet_bytes < mtu_bytes_ && (gap > 0 || bytes % mtu_bytes_ != message.bytes)) return false;
      message.packet_bytes = mtu_bytes_;
      size_known = true;
    }
    const std::uint64_t packets = packets_of(bytes, message.packet_bytes);
    if (!size_known || packets > psn || psn - packets > message.psns.begin) return false;
    const std::uint64_t head = message.psns.begin - (psn - packets);
    if (head > extent.hole_before.count() || message.bytes > bytes - head * message.packet_bytes) return false;
    if (gap > 0 && message.bytes % message.packet_bytes != 0) return false;
    if (gap == 0 && more != head * message.packet_bytes) return false;
    message.head_missing_bytes = head * message.packet_bytes;
    message.psns.begin -= head;
    message.address -= message.head_missing_bytes;
    extent.hole_before.end -= head;
    extent.data_end = psn;
  }
  message.bytes = bytes;
  message.split = message.immediate_seen = true;
  message.psns.end = psn + 1;
  pending_hole_ = {};
  next_ = psn + 1;
  tell(extent, context);
  return true;
}

void RoceFlow::closing_immediate(std::uint64_t psn, const RoceFrame& frame, RoceFlowContext& context) {
  const std::uint32_t readings[] = {frame.immediate, other_order(frame.immediate)};
  if (Extent* const extent = unfinished(); extent != nullptr && !extent->message.foreign) {
    for (const std::uint32_t bytes : readings)
      if (close_with(*extent, psn, bytes, context)) return;
    if (extent->single_writes && frame.immediate != 0) {  // of this run, but where it began or ended cannot be said
      skip_to(psn + 1, context);
      return;
    }
  }
  // The data of this message was lost: its immediate says how much it was.
  std::uint32_t lost_bytes = 0;
  if (frame.immediate != 0 && mtu_bytes_ != 0) {
    for (const std::uint32_t bytes : readings) {
      if (bytes <= config_.max_message_bytes && packets_of(bytes, mtu_bytes_) <= pending_hole_.count()) {
        lost_bytes = bytes;
        break;
      }
    }
  }
  if (frame.immediate != 0 && lost_bytes == 0 && pending_hole_.count() > 0) {  // but not where it was
    skip_to(psn + 1, context);
    return;
  }
  const std::uint64_t data_begin = lost_bytes == 0 ? psn : psn - packets_of(lost_bytes, mtu_bytes_);
  if (lost_bytes != 0) {
    pending_hole_.end = data_begin;
    if (pending_hole_.count() == 0) pending_hole_ = {};
  }
  Extent& extent = open(data_begin, context);
  extent.message.address = frame.address;
  extent.message.key = frame.key;
  extent.message.bytes = lost_bytes;
  extent.message.packet_bytes = lost_bytes == 0 ? 0 : mtu_bytes_;
  extent.message.immediate_seen = true;
  extent.message.immediate = frame.immediate;
  extent.message.split = lost_bytes != 0;
  extent.message.psns.end = psn + 1;
  extent.data_end = psn;
  extent.address_known = lost_bytes == 0;
  if (frame.immediate != 0 && lost_bytes == 0) {
    extent.message.immediate_mismatch = true;
    ++context.counters.immediate_mismatches;
  }
  next_ = psn + 1;
  tell(extent, context);
}

void RoceFlow::place(Extent& extent, std::uint64_t psn, const RoceFrame& frame, RoceFlowContext& context) {
  RoceMessage& message = extent.message;
  if (psn >= extent.data_end || message.foreign) return;  // its closing immediate once more, or nothing of interest
  const std::uint64_t offset = (psn - message.psns.begin) * message.packet_bytes;
  const bool last = psn + 1 == extent.data_end;
  bool fits = frame.meaning.kind == RoceKind::kWrite &&
              frame.payload.size() == std::min<std::uint64_t>(message.packet_bytes, message.bytes - offset);
  if (fits && frame.meaning.address && extent.address_known)
    fits = frame.address == message.address + offset && frame.key == message.key;
  if (fits && !extent.single_writes) fits = frame.meaning.ends == (last && extent.end_known);
  if (fits && extent.single_writes) fits = frame.meaning.ends && frame.meaning.begins && !frame.meaning.immediate;
  if (!fits) {
    ++context.counters.inconsistent;
    return;
  }
  if (last && extent.end_known && !extent.single_writes && !extent.last_seen) {
    extent.last_seen = true;
    if (frame.meaning.immediate) {
      message.immediate_seen = true;
      message.immediate = frame.immediate;
      if (frame.immediate != message.bytes && other_order(frame.immediate) != message.bytes) {
        message.immediate_mismatch = true;
        ++context.counters.immediate_mismatches;
      }
    }
  }
  if (!frame.payload.empty()) {
    ++context.counters.pieces;
    context.counters.piece_bytes += frame.payload.size();
    const bool open_run = (extent.single_writes && !extent.told) || !extent.end_known;
    context.sink.piece({.message = message.number,
                        .psn = psn,
                        .offset_bytes = offset,
                        .message_bytes = open_run ? 0 : message.bytes,
                        .address = extent.address_known ? message.address + offset : 0,
                        .key = message.key,
                        .data = frame.payload.data(),
                        .bytes = static_cast<std::uint32_t>(frame.payload.size()),
                        .arrival = arrival_,
                        .immediate = frame.meaning.immediate,
                        .provisional = extent.single_writes && !extent.told && extent.hole_before.count() > 0});
  }
  if (message.immediate_seen && !extent.told) tell(extent, context);
}

// Only a run may yet turn out to reach into the hole before it.
void RoceFlow::tell_hole_before(Extent& extent, RoceFlowContext& context) {
  if (extent.hole_before.count() == 0 || (extent.single_writes && !extent.told)) return;
  context.sink.lost(extent.hole_before);
  extent.hole_before = {};
}

void RoceFlow::tell(Extent& extent, RoceFlowContext& context) {
  extent.told = true;
  tell_hole_before(extent, context);
  ++context.counters.messages;
  context.sink.message(extent.message);
}

void RoceFlow::tell_unfinished(bool hole_follows, RoceFlowContext& context) {
  Extent* const extent = newest();
  if (extent == nullptr || extent->told) return;
  extent->message.awaits_immediate = !extent->message.immediate_seen && (extent->last_seen || extent->single_writes);
  extent->message.head_uncertain =
      extent->single_writes && extent->hole_before.count() > 0 && !extent->message.immediate_seen;
  extent->message.run = extent->single_writes;
  extent->message.open_ended =
      !extent->end_known || (hole_follows && extent->single_writes && !extent->message.immediate_seen);
  tell(*extent, context);
}

void RoceFlow::store(std::uint64_t psn, const RoceFrame& frame, RoceFlowContext& context) {
  if (store_.contains(psn)) return;
  if (!hole_noted_) {
    hole_noted_ = true;
    hole_since_ns_ = context.now_ns;
    hole_since_packets_ = context.packets;
  }
  const std::uint64_t cost = frame.payload.size() + kWaitingOverhead;
  const auto taken = [&] { return store_cost_ + cost <= config_.reorder_window_bytes && budget_->take(cost); };
  if (!taken()) {
    ++context.counters.window_hits;
    settle(context, true);
    if (psn <= next_) {  // what it waited for was given up
      if (psn == next_)
        header(psn, frame, context);
      else if (Extent* const extent = find(psn))
        place(*extent, psn, frame, context);
      return;
    }
    if (!taken()) {
      ++context.counters.unplaceable;
      return;
    }
  }
  Waiting waiting{frame, nullptr, cost, context.packets};
  if (!frame.payload.empty()) {
    const std::shared_ptr<std::uint8_t[]> copy(new std::uint8_t[frame.payload.size()]);
    std::memcpy(copy.get(), frame.payload.data(), frame.payload.size());
    waiting.frame.payload = {copy.get(), frame.payload.size()};
    waiting.owner = copy;
  }
  store_.emplace(psn, std::move(waiting));
  store_cost_ += cost;
  ++context.counters.stored;
}

void RoceFlow::drop(Store::iterator at) {
  store_cost_ -= at->second.cost;
  budget_->give_back(at->second.cost);
  store_.erase(at);
}

bool RoceFlow::hole_is_definitive(RoceFlowContext& context) {
  if (!hole_noted_) {
    hole_noted_ = true;
    hole_since_ns_ = context.now_ns;
    hole_since_packets_ = context.packets;
  }
  return context.now_ns - hole_since_ns_ > config_.reorder_grace_ms * 1'000'000 ||
         context.packets - hole_since_packets_ > config_.reorder_grace_packets;
}

// Takes what waits as far as headers are known; gives holes up when they are definitive, all of them if forced.
void RoceFlow::settle(RoceFlowContext& context, bool force) {
  while (!store_.empty()) {
    const auto first = store_.begin();
    const std::uint64_t psn = first->first;
    if (psn <= next_) {
      const Waiting waiting = first->second;
      arrival_ = waiting.arrival;
      drop(first);
      if (waiting.owner) context.sink.keep(waiting.owner);
      if (psn == next_)
        header(psn, waiting.frame, context);
      else if (Extent* const extent = find(psn))
        place(*extent, psn, waiting.frame, context);
      else
        ++context.counters.late;
      continue;
    }
    if (const Extent* const run = unfinished(); run != nullptr && run->single_writes && first->second.owner) {
      context.sink.keep(first->second.owner);
      arrival_ = first->second.arrival;
      if (extend_run(psn, first->second.frame, context)) {
        drop(first);
        continue;
      }
    }
    if (!force && !hole_is_definitive(context)) return;
    const RoceOpcode meaning = first->second.frame.meaning;
    if (meaning.kind == RoceKind::kWrite && !meaning.begins) {
      if (!resolve_headless(context, force)) return;
    } else {
      skip_to(psn, context);
    }
    hole_noted_ = false;
  }
  hole_noted_ = false;
}

// What waits begins in the middle of a message. Its end may say where it began; without the end it is given up as soon
// as something behind it is known to begin. False: wait.
bool RoceFlow::resolve_headless(RoceFlowContext& context, bool force) {
  const Ending ending = find_ending();
  if (ending.found) {
    if (place_by_ending(ending, ending.immediate, context)) return true;
    if (place_by_ending(ending, other_order(ending.immediate), context)) return true;
  }
  std::uint64_t stop = ending.found ? ending.last + 1 : ending.boundary;
  if (stop == 0) {
    if (!force) return false;
    stop = store_.rbegin()->first + 1;
  }
  if (place_by_beginning(ending, stop, context)) return true;
  while (!store_.empty() && store_.begin()->first < stop) {
    ++context.counters.unplaceable;
    drop(store_.begin());
  }
  skip_to(stop, context);
  return true;
}

RoceFlow::Ending RoceFlow::find_ending() const {
  Ending ending;
  bool& ended = ending.ended;
  for (const auto& [psn, waiting] : store_) {
    const RoceFrame& frame = waiting.frame;
    if (ended && psn == ending.last + 1 && is_empty_immediate(frame)) {
      ending.immediate = frame.immediate;
      ending.found = true;
      return ending;
    }
    if (!ended && ending.middle_bytes != 0 && is_empty_immediate(frame) && frame.immediate != 0) {
      ending.immediate = frame.immediate;
      ending.last = psn - 1;
      ending.boundary = psn;
      ending.found = ending.last_unseen = true;
      return ending;
    }
    if (ended || frame.meaning.kind != RoceKind::kWrite || frame.meaning.begins) {
      ending.boundary = psn;
      return ending;
    }
    if (frame.meaning.ends) {
      ended = true;
      ending.last = psn;
      ending.last_bytes = static_cast<std::uint32_t>(frame.payload.size());
      if (frame.meaning.immediate) {
        ending.immediate = frame.immediate;
        ending.found = true;
        return ending;
      }
    } else {
      ending.middle_bytes = static_cast<std::uint32_t>(frame.payload.size());
    }
  }
  return ending;
}

// Only the packet before what waits is missing: it began the message. How far that goes may stay open.
bool RoceFlow::place_by_beginning(const Ending& ending, std::uint64_t stop, RoceFlowContext& context) {
  const auto first = store_.begin();
  if (first->first != next_ + 1 || first->second.frame.meaning.ends || !is_path_mtu(ending.middle_bytes)) return false;
  const std::uint64_t begin = next_;
  std::uint64_t end = ending.last + 1;
  bool ended = ending.ended;
  if (ending.found) {
    const std::uint64_t bytes = (end - begin - 1) * ending.middle_bytes + ending.last_bytes;
    if (bytes != ending.immediate && bytes != other_order(ending.immediate)) {
      // Another message ends there: a hole of two packets or more hides the end of this one and the beginning of that.
      ended = false;
      end = first->first + 1;
      for (auto at = std::next(first); at != store_.end() && at->first <= end + 1; ++at) end = at->first + 1;
      if (end > ending.last) return false;
    }
  } else if (!ended) {
    end = std::prev(store_.lower_bound(stop))->first + 1;
  }
  if (end - begin > config_.max_message_bytes / ending.middle_bytes) return false;
  Extent& extent = open(begin, context);
  extent.address_known = false;
  extent.end_known = ended;
  extent.message.packet_bytes = mtu_bytes_ = ending.middle_bytes;
  extent.message.bytes = (end - begin) * ending.middle_bytes;
  if (ended) extent.message.bytes -= ending.middle_bytes - ending.last_bytes;
  extent.message.psns.end = extent.data_end = next_ = end;
  tell_hole_before(extent, context);
  ++context.counters.recovered_firsts;
  return true;
}

bool RoceFlow::place_by_ending(const Ending& ending, std::uint32_t bytes, RoceFlowContext& context) {
  const std::uint64_t first = store_.begin()->first;
  if (bytes > config_.max_message_bytes || bytes <= ending.last_bytes) return false;
  std::uint64_t packet_bytes = ending.middle_bytes;
  if (packet_bytes == 0) packet_bytes = mtu_bytes_;
  if (packet_bytes == 0 && first == next_ + 1) packet_bytes = bytes - ending.last_bytes;  // two packets
  if (!is_path_mtu(packet_bytes)) return false;
  const std::uint64_t count = packets_of(bytes, static_cast<std::uint32_t>(packet_bytes));
  if (!ending.last_unseen && bytes - (count - 1) * packet_bytes != ending.last_bytes) return false;
  if (count > ending.last + 1 || ending.last + 1 - count < next_) return false;
  const std::uint64_t begin = ending.last + 1 - count;
  if (ending.last_unseen && begin >= first) return false;  // another message's, all of whose data was lost
  if (store_.contains(begin)) return false;                // what waits there begins nothing
  while (store_.begin()->first < begin) {                  // of a message before, of which neither end was seen
    ++context.counters.unplaceable;
    drop(store_.begin());
  }
  if (begin > next_) skip_to(begin, context);
  Extent& extent = open(begin, context);
  extent.address_known = false;
  extent.message.bytes = bytes;
  extent.message.packet_bytes = mtu_bytes_ = static_cast<std::uint32_t>(packet_bytes);
  extent.message.psns.end = extent.data_end = next_ = ending.last + 1;
  tell_hole_before(extent, context);
  ++context.counters.recovered_firsts;
  return true;
}

void RoceFlow::skip_to(std::uint64_t psn, RoceFlowContext& context) {
  if (pending_hole_.count() == 0) {
    pending_hole_ = {next_, next_};
    ++context.counters.holes;
  }
  context.counters.hole_psns += psn - pending_hole_.end;
  pending_hole_.end = next_ = psn;
}

void RoceFlow::tick(RoceFlowContext& context) {
  settle(context, false);
}

void RoceFlow::flush_holes(RoceFlowContext& context) {
  settle(context, true);
}

void RoceFlow::finish(RoceFlowContext& context) {
  settle(context, true);
  if (acked_end_ > next_ && acked_end_ - next_ < kPsnCount / 2) skip_to(acked_end_, context);
  tell_unfinished(pending_hole_.count() > 0, context);
  if (pending_hole_.count() > 0) context.sink.lost(pending_hole_);
  pending_hole_ = {};
}

}  // namespace gradtap::dataplane
