#include "dataplane/gloo_flow.h"

#include <algorithm>
#include <array>
#include <vector>

namespace gradtap::dataplane {
namespace {

constexpr int kChainedHeaders = 2;
constexpr std::int32_t kTagsBehind = 64;
constexpr std::int32_t kTagsAhead = 1024;

// Tags wrap at 2^32, so they are compared by distance.
std::int32_t tag_distance(std::uint32_t a, std::uint32_t b) {
  return static_cast<std::int32_t>(a - b);
}

std::uint64_t tag_key(CollectiveType type, std::uint32_t tag) {
  return std::uint64_t{static_cast<std::uint8_t>(type)} << 32 | tag;
}

}  // namespace

std::string_view flow_state_name(FlowState state) {
  switch (state) {
    case FlowState::kNew:
      return "NEW";
    case FlowState::kRole:
      return "ROLE";
    case FlowState::kAnchored:
      return "ANCHORED";
    case FlowState::kSuspect:
      return "SUSPECT";
    case FlowState::kForeign:
      return "FOREIGN";
    case FlowState::kClosed:
      return "CLOSED";
  }
  return "UNKNOWN";
}

GlooFlow::GlooFlow(const GlooFlowConfig& config, FlowIdentity identity, StoreBudget& budget)
    : config_(config), identity_(identity), store_(config.reorder_window_bytes, budget) {
  config_.recent_messages = std::max(config_.recent_messages, 1U);
  config_.max_tags = std::max(config_.max_tags, 16U);
  config_.resync_step_bytes = std::max(config_.resync_step_bytes, 1U);
  config_.quiescent_tags = std::max(config_.quiescent_tags, 1U);
}

FlowState GlooFlow::state() const {
  if (mode_ == Mode::kForeign) return FlowState::kForeign;
  if (closed_) return FlowState::kClosed;
  switch (mode_) {
    case Mode::kNew:
      return FlowState::kNew;
    case Mode::kStart:
      return FlowState::kRole;
    case Mode::kFramed:
      return FlowState::kAnchored;
    default:
      return proven_ ? FlowState::kSuspect : FlowState::kRole;
  }
}

bool GlooFlow::start(std::uint32_t first_sequence) {
  if (mode_ == Mode::kNew) {
    position_.anchor(first_sequence, 0);
    first_sequence_ = first_sequence;
    born_ = true;
    mode_ = Mode::kStart;
    return false;
  }
  if (first_sequence != first_sequence_) return true;
  // A repeated SYN, or one that the first data overtook: nothing was missed then.
  if (!born_ && mode_ == Mode::kSearch && !proven_ && search_from_ == 0) {
    mode_ = Mode::kStart;
    missed_ = false;
  }
  born_ = true;
  return false;
}

void GlooFlow::ack(std::uint32_t acknowledgement) {
  if (!position_.anchored()) return;
  const std::int64_t distance = position_.distance(acknowledgement);
  if (!StreamPosition::plausible(distance)) return;
  const std::int64_t at = static_cast<std::int64_t>(position_.highest()) + distance;
  if (at <= 0) return;
  if (!acked_known_ || static_cast<std::uint64_t>(at) > acked_) acked_ = static_cast<std::uint64_t>(at);
  acked_known_ = true;
}

void GlooFlow::data(std::uint32_t sequence, ByteSpan payload, FlowContext& context) {
  if (mode_ == Mode::kForeign) {
    ++context.counters.foreign_frames;
    return;
  }
  if (payload.empty()) return;
  if (!position_.anchored()) {
    position_.anchor(sequence, 0);
    first_sequence_ = sequence;
    missed_ = true;
    enter_search(0);
  }
  const std::int64_t distance = position_.distance(sequence);
  if (!StreamPosition::plausible(distance)) {
    ++context.counters.implausible_frames;
    const bool believed = far_valid_ && far_next_ == sequence;
    far_next_ = sequence + static_cast<std::uint32_t>(payload.size());
    far_valid_ = true;
    if (!believed) return;
    lose_position(sequence, context);
  }
  far_valid_ = false;

  std::int64_t begin = position_.position(sequence);
  if (begin < 0) {
    const auto before = static_cast<std::uint64_t>(-begin);
    context.counters.late_bytes += std::min<std::uint64_t>(before, payload.size());
    if (before >= payload.size()) return;
    payload = payload.subspan(before);
    begin = 0;
  }
  const auto position = static_cast<std::uint64_t>(begin);
  const std::uint64_t highest = position_.highest();
  if (payload.size() == 1 && (position + 1 == highest || (acked_known_ && position + 1 == acked_))) {
    ++context.counters.keepalives;
    return;
  }
  if (position < highest) ++context.counters.behind_frames;
  if (position > highest) ++context.counters.gap_frames;
  position_.advance(position + payload.size());
  place(position, payload, context);
}

void GlooFlow::place(std::uint64_t position, ByteSpan bytes, FlowContext& context) {
  switch (mode_) {
    case Mode::kFramed:
      place_framed(position, bytes, context);
      break;
    case Mode::kSearch:
      if (position < search_from_) {
        const std::uint64_t old = std::min<std::uint64_t>(search_from_ - position, bytes.size());
        emit(position, bytes.first(old), context);
        position += old;
        bytes = bytes.subspan(old);
      }
      [[fallthrough]];
    case Mode::kStart:
      if (mode_ == Mode::kStart && position == 0 && store_.empty() && bytes.size() >= kGlooHeaderBytes &&
          parse_gloo_strict(bytes.data(), config_.max_message_bytes)) {
        adopt(0, context);
        place_framed(position, bytes, context);
      } else if (!bytes.empty()) {
        store(position, bytes, context);
      }
      break;
    case Mode::kNew:
    case Mode::kForeign:
      return;
  }
  if (!store_.empty()) settle(context, Force::kNo);
}

void GlooFlow::place_framed(std::uint64_t position, ByteSpan bytes, FlowContext& context) {
  while (!bytes.empty()) {
    if (position < next_header_) {
      const std::uint64_t known = std::min<std::uint64_t>(next_header_ - position, bytes.size());
      emit(position, bytes.first(known), context);
      position += known;
      bytes = bytes.subspan(known);
      continue;
    }
    if (position == next_header_ && bytes.size() >= kGlooHeaderBytes) {
      if (!header(bytes.data(), bytes.size() > kGlooHeaderBytes, context)) {
        ++context.counters.framing_errors;
        enter_search(next_header_);
        break;
      }
      position += kGlooHeaderBytes;
      bytes = bytes.subspan(kGlooHeaderBytes);
      continue;
    }
    const std::uint64_t header_end = next_header_ + kGlooHeaderBytes;
    if (position > next_header_ && position < header_end && store_.run_end(next_header_) >= position) {
      // The rest of a split header: copy only that, the payload behind it stays where it is.
      const std::uint64_t part = std::min<std::uint64_t>(header_end - position, bytes.size());
      const bool behind = bytes.size() > part;
      store(position, bytes.first(part), context);
      std::array<std::uint8_t, kGlooHeaderBytes> copy;
      if (mode_ != Mode::kFramed || !store_.read(next_header_, copy.data(), copy.size())) {
        position += part;
        bytes = bytes.subspan(part);
        if (mode_ != Mode::kFramed) break;
        continue;
      }
      if (!header(copy.data(), behind, context)) {
        ++context.counters.framing_errors;
        position += part;
        bytes = bytes.subspan(part);
        enter_search(next_header_);
        break;
      }
      store_.erase_before(header_end);
      position += part;
      bytes = bytes.subspan(part);
      continue;
    }
    store(position, bytes, context);
    return;
  }
  if (!bytes.empty()) store(position, bytes, context);
}

// Copies bytes whose header is missing. A full store ends the wait for it.
void GlooFlow::store(std::uint64_t position, ByteSpan bytes, FlowContext& context) {
  ++context.counters.stored_frames;
  while (!bytes.empty() && !store_.insert(position, bytes, {context.now_ns, context.packets})) {
    ++context.counters.window_hits;
    const std::uint64_t cost = store_.cost();
    settle(context, Force::kOnce);
    if (mode_ == Mode::kForeign) return;
    const std::uint64_t known = mode_ == Mode::kFramed ? next_header_ : search_from_;
    if (mode_ != Mode::kStart && position < known) {
      const std::uint64_t part = std::min<std::uint64_t>(known - position, bytes.size());
      emit(position, bytes.first(part), context);
      position += part;
      bytes = bytes.subspan(part);
    }
    if (store_.cost() >= cost) break;
  }
  if (!bytes.empty() && store_.view(position).empty()) context.counters.dropped_bytes += bytes.size();
}

void GlooFlow::settle(FlowContext& context, Force force) {
  // Every turn consumes stored bytes or changes the mode to one that does.
  for (bool again = true; again;) {
    switch (mode_) {
      case Mode::kStart:
        again = settle_start(context, force);
        break;
      case Mode::kFramed:
        again = settle_framed(context, force);
        break;
      case Mode::kSearch:
        again = settle_search(context, force);
        if (force == Force::kOnce) force = Force::kNo;
        break;
      default:
        return;
    }
  }
}

bool GlooFlow::settle_start(FlowContext& context, Force force) {
  std::array<std::uint8_t, kGlooHelloBytes + kGlooHeaderBytes> head;
  if (store_.read(0, head.data(), kGlooHeaderBytes) && parse_gloo_strict(head.data(), config_.max_message_bytes)) {
    adopt(0, context);
    return true;
  }
  if (store_.read(0, head.data(), head.size())) {
    if (is_gloo_hello(head.data()) && parse_gloo_strict(head.data() + kGlooHelloBytes, config_.max_message_bytes)) {
      ++context.counters.hellos;
      adopt(kGlooHelloBytes, context);
      return true;
    }
    become_foreign(context);
    return false;
  }
  next_header_ = 0;
  if (!hole_is_definitive(context) && !(force != Force::kNo && hole())) return false;
  ++context.counters.header_holes;
  enter_search(0);
  return true;
}

bool GlooFlow::settle_framed(FlowContext& context, Force force) {
  while (!store_.empty()) {
    // What waited for a header that is known by now.
    store_.visit(0, next_header_, [&](std::uint64_t position, ByteSpan part, const OwnedBytes& owner) {
      context.sink.keep(owner);
      emit(position, part, context);
    });
    store_.erase_before(next_header_);
    std::array<std::uint8_t, kGlooHeaderBytes> copy;
    if (!store_.read(next_header_, copy.data(), copy.size())) break;
    const std::uint64_t payload = next_header_ + kGlooHeaderBytes;
    if (!header(copy.data(), !store_.view(payload).empty(), context)) {
      ++context.counters.framing_errors;
      enter_search(next_header_);
      return true;
    }
    store_.erase_before(payload);
  }
  if (!hole_is_definitive(context) && !(force != Force::kNo && hole())) return false;
  ++context.counters.header_holes;
  enter_search(next_header_);
  hole_known_ = true;
  return true;
}

bool GlooFlow::settle_search(FlowContext& context, Force force) {
  std::uint64_t at = search_from_;
  while (true) {
    const std::uint64_t stored = store_.next_stored(at);
    if (stored == ReorderStore::kNone) break;
    at = align_up(stored);
    const ByteSpan block = store_.view(at);
    if (block.empty()) continue;
    std::array<std::uint8_t, kGlooHeaderBytes> copy;
    const std::uint8_t* p = block.data();
    if (block.size() < kGlooHeaderBytes) {
      if (!store_.read(at, copy.data(), copy.size())) {
        const std::uint64_t run = store_.run_end(at);
        if (run >= store_.end()) break;  // the rest may be on its way
        at = run;
        continue;
      }
      p = copy.data();
    }
    if (!may_be_gloo_header(p) || !candidate(p)) {
      at += config_.resync_step_bytes;
      continue;
    }
    const Chain verdict = chain(at);
    if (verdict == Chain::kBroken) {
      at += config_.resync_step_bytes;
      continue;
    }
    if (verdict == Chain::kOpen && force == Force::kNo) {
      const auto whole = store_.arrival(at + kGlooHeaderBytes - 1);
      if (!whole || context.now_ns - whole->ns < config_.reorder_grace_ms * 1'000'000) {
        search_from_ = at;
        store_.erase_before(at);
        return false;
      }
    }
    if (verdict == Chain::kOpen) ++context.counters.weak_resyncs;
    ++context.counters.resyncs;
    if (verdict == Chain::kHolds && hole_known_ && at - next_header_ == kGlooHeaderBytes) {
      // Room for one header without payload: a notification (or an empty message, which no all-reduce sends), so no
      // message with bytes was missed and all counts stay right.
      ++context.counters.harmless_holes;
    } else {
      miss();
    }
    adopt(at, context);
    return true;
  }
  // No candidate: what has been looked at is of no use any more.
  if (at > search_from_) {
    searched_bytes_ += at - search_from_;
    search_from_ = at;
  }
  store_.erase_before(search_from_);
  if (!proven_ && searched_bytes_ > config_.foreign_after_bytes) become_foreign(context);
  return false;
}

// The stream between the last known header and this position was not seen.
void GlooFlow::miss() {
  missed_ = true;
  clean_valid_ = false;
  exact_tags_ = 0;
  for (auto& [key, tag] : tags_) tag.blocked = tag.blocked || tag.messages > 0;
}

void GlooFlow::adopt(std::uint64_t header_position, FlowContext& context) {
  if (!proven_) {
    proven_ = true;
    comm_ = context.comms.comm(identity_.flow);
  }
  mode_ = Mode::kFramed;
  next_header_ = header_position;
  store_.erase_before(header_position);
}

bool GlooFlow::header(const std::uint8_t* p, bool payload_follows, FlowContext& context) {
  const auto parsed = parse_gloo_framed(p, config_.max_message_bytes);
  if (!parsed) return false;
  Message message;
  message.begin = next_header_ + kGlooHeaderBytes;
  message.end = next_header_ + parsed->stream_bytes;
  next_header_ = message.end;
  const bool collective = parsed->type != CollectiveType::kUnknown;
  if (collective && (!last_tag_known_ || tag_distance(parsed->tag, last_tag_) > 0)) {
    last_tag_ = parsed->tag;
    last_tag_known_ = true;
  }
  if (parsed->opcode != GlooOpcode::kData) {
    ++context.counters.notifications;
    return true;
  }
  ++context.counters.messages;
  if (!collective) {
    ++context.counters.foreign_messages;
  } else if (forgotten_ && tag_distance(parsed->tag, forgotten_below_) < 0) {
    ++context.counters.unplaceable_messages;
  } else {
    Tag& tag = tag_state(parsed->type, parsed->tag, context);
    message.tag = parsed->tag;
    message.type = parsed->type;
    message.index = tag.messages++;
    message.provisional = tag.provisional;
    if (tag.blocked) {
      ++context.counters.unplaceable_messages;
    } else {
      message.emit = parsed->type == CollectiveType::kAllReduce || config_.emit_all_payload;
      if (!message.emit || !payload_follows || parsed->length == 0) announce(message, context);
    }
  }
  if (message.end > message.begin) {
    if (recent_.size() >= config_.recent_messages) recent_.pop_front();
    recent_.push_back(message);
  }
  return true;
}

Segment GlooFlow::segment_of(const Message& message) const {
  Segment segment;
  segment.op = OpKey{comm_, message.tag};
  segment.type = message.type;
  segment.source_rank = identity_.source_rank;
  segment.target_rank = identity_.target_rank;
  segment.flow = identity_.flow;
  segment.message_index = message.index;
  segment.message_bytes = message.end - message.begin;
  segment.provisional = message.provisional;
  return segment;
}

void GlooFlow::announce(const Message& message, FlowContext& context) {
  context.sink.segment(segment_of(message));
}

// Passes on the parts of [position, ...) that are payload of known messages.
void GlooFlow::emit(std::uint64_t position, ByteSpan bytes, FlowContext& context) {
  const std::uint64_t end = position + bytes.size();
  std::size_t i = recent_.size();
  while (i > 0 && recent_[i - 1].end > position) --i;
  if (i == 0 && (recent_.empty() || position < recent_.front().begin)) {
    // Headers in front of the oldest known message are no loss.
    const std::uint64_t known = recent_.empty() ? end : std::min(end, recent_.front().begin);
    if (known - position > kGlooHeaderBytes) context.counters.late_bytes += known - position;
  }
  for (; i < recent_.size() && recent_[i].begin < end; ++i) {
    const Message& message = recent_[i];
    if (!message.emit) continue;
    const std::uint64_t from = std::max(position, message.begin);
    const std::uint64_t stop = std::min(end, message.end);
    Segment segment = segment_of(message);
    segment.offset_bytes = from - message.begin;
    segment.data = bytes.data() + (from - position);
    segment.bytes = static_cast<std::uint32_t>(stop - from);
    ++context.counters.segments;
    context.counters.segment_bytes += segment.bytes;
    if (segment.provisional) ++context.counters.provisional_segments;
    context.sink.segment(segment);
  }
}

void GlooFlow::enter_search(std::uint64_t from) {
  mode_ = Mode::kSearch;
  search_from_ = from;
  align_ = from % config_.resync_step_bytes;
  hole_known_ = false;
}

void GlooFlow::lose_position(std::uint32_t sequence, FlowContext& context) {
  ++context.counters.position_losses;
  // Positions stay monotonic; how many bytes really passed is unknown.
  const std::uint64_t fresh = position_.highest() + (std::uint64_t{1} << 33);
  store_.clear();
  recent_.clear();
  position_.anchor(sequence, fresh);
  acked_known_ = false;
  missed_ = true;
  enter_search(fresh);
}

void GlooFlow::become_foreign(FlowContext& context) {
  mode_ = Mode::kForeign;
  ++context.counters.foreign_flows;
  store_.clear();
  recent_.clear();
  tags_.clear();
}

// Something is stored behind the header that is missing, wholly or in part.
bool GlooFlow::hole() const {
  return !store_.empty() && store_.run_end(next_header_) < store_.end();
}

// PROTOCOLS 4.5 (a). A reordered frame that comes to lie in front of the others starts the wait anew.
bool GlooFlow::hole_is_definitive(const FlowContext& context) const {
  if (!hole()) return false;
  const std::uint64_t missing = store_.run_end(next_header_);
  const auto behind = store_.arrival(missing);
  const bool acked = reset_ || (acked_known_ && acked_ > missing);
  return acked && behind && context.now_ns - behind->ns >= config_.reorder_grace_ms * 1'000'000 &&
         context.packets - behind->packets >= config_.reorder_grace_packets;
}

bool GlooFlow::tag_plausible(std::uint32_t tag) const {
  if (!last_tag_known_) return true;
  const std::int32_t distance = tag_distance(tag, last_tag_);
  return distance >= -kTagsBehind && distance <= kTagsAhead;
}

std::optional<GlooHeader> GlooFlow::candidate(const std::uint8_t* p) const {
  auto parsed = parse_gloo_strict(p, config_.max_message_bytes);
  if (parsed && !tag_plausible(parsed->tag)) parsed.reset();
  return parsed;
}

// Follows the headers from a candidate. kOpen: nothing contradicts it, but fewer than two more headers are stored yet.
GlooFlow::Chain GlooFlow::chain(std::uint64_t position) const {
  std::array<std::uint8_t, kGlooHeaderBytes> copy;
  for (int headers = 0;; ++headers) {
    if (!store_.read(position, copy.data(), copy.size())) return Chain::kOpen;
    const auto header = candidate(copy.data());
    if (!header) return Chain::kBroken;
    if (headers == kChainedHeaders) return Chain::kHolds;
    position += header->stream_bytes;
  }
}

std::uint64_t GlooFlow::align_up(std::uint64_t position) const {
  const std::uint64_t step = config_.resync_step_bytes;
  return position + (align_ + step - position % step) % step;
}

GlooFlow::Tag& GlooFlow::tag_state(CollectiveType type, std::uint32_t tag, FlowContext& context) {
  const std::uint64_t key = tag_key(type, tag);
  const auto found = tags_.find(key);
  if (found != tags_.end()) return found->second;
  if (tags_.size() >= config_.max_tags) {
    ++context.counters.tag_limit_hits;
    // Forget the older half; what comes for it later is unplaceable.
    std::vector<std::int32_t> distances;
    distances.reserve(tags_.size());
    for (const auto& [other, state] : tags_) distances.push_back(tag_distance(static_cast<std::uint32_t>(other), tag));
    const auto middle = distances.begin() + static_cast<std::ptrdiff_t>(distances.size() / 2);
    std::nth_element(distances.begin(), middle, distances.end());
    forget_tags_below(tag + static_cast<std::uint32_t>(*middle));
    if (tags_.size() >= config_.max_tags) return overflow_;
  }
  Tag& state = tags_[key];
  state.provisional = missed_ && !(clean_valid_ && tag_distance(tag, clean_above_) > 0);
  return state;
}

void GlooFlow::op_closed(std::uint32_t tag, bool exact, FlowCounters& counters) {
  for (std::uint8_t type = 1; type <= 8; ++type) {
    const auto found = tags_.find(tag_key(static_cast<CollectiveType>(type), tag));
    if (found == tags_.end()) continue;
    Tag& state = found->second;
    if (!exact || state.counted || state.blocked || state.messages == 0) continue;
    state.counted = true;
    if (!provisional()) continue;
    exact_max_ = exact_tags_ == 0 || tag_distance(tag, exact_max_) > 0 ? tag : exact_max_;
    if (++exact_tags_ < config_.quiescent_tags) continue;
    clean_valid_ = true;
    clean_above_ = exact_max_;
    ++counters.quiescent_points;
  }
}

void GlooFlow::forget_tags_below(std::uint32_t tag) {
  if (forgotten_ && tag_distance(tag, forgotten_below_) <= 0) return;
  forgotten_ = true;
  forgotten_below_ = tag;
  std::erase_if(tags_,
                [&](const auto& entry) { return tag_distance(static_cast<std::uint32_t>(entry.first), tag) < 0; });
}

void GlooFlow::tick(FlowContext& context) {
  if (!store_.empty()) settle(context, Force::kNo);
}

void GlooFlow::flush_holes(FlowContext& context) {
  if (!store_.empty()) settle(context, Force::kAll);
}

}  // namespace gradtap::dataplane
