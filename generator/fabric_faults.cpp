#include "generator/fabric_faults.h"

#include "dataplane/nccl_schedule.h"

namespace gradtap::generator {
namespace {

constexpr std::uint64_t kBackoffNs = 1000;

bool happens(SeededRandom& random, double probability) {
  return probability > 0 && static_cast<double>(random.next() >> 11) * 0x1p-53 < probability;
}

HeldFrame hold(std::uint64_t time_ns, ByteSpan bytes, const FrameNote& note) {
  return {time_ns, {bytes.begin(), bytes.end()}, note};
}

}  // namespace

void Retransmission::frame(std::uint64_t time_ns, ByteSpan bytes, const FrameNote& note) {
  auto found = episodes_.find(note.connection);
  if (found != episodes_.end() && note.kind != FrameKind::kForeign) {
    Episode& episode = found->second;
    // Entry m + 8 clears the slot of message m, so it comes after that message is there; data comes after its entry.
    const bool slot_again = note.message >= episode.data.front().note.message + dataplane::kNcclSlots;
    if (note.kind == FrameKind::kAcknowledge || (note.kind == FrameKind::kClearToSend && slot_again)) {
      episode.answers.push_back(hold(time_ns, bytes, note));
      return;
    }
    if (note.kind == FrameKind::kData && !slot_again) {
      next_.frame(time_ns, bytes, note);
      episode.data.push_back(hold(time_ns, bytes, note));
      if (episode.data.size() <= episode.packets) return;
      go_back(episode, time_ns);
      episodes_.erase(found);
      return;
    }
    if (note.kind == FrameKind::kData) {
      go_back(episode, time_ns);
      episodes_.erase(found);
    }
  }
  if (note.kind != FrameKind::kData || !happens(random_, config_.probability)) {
    next_.frame(time_ns, bytes, note);
    return;
  }
  Episode& episode = episodes_[note.connection];
  episode.packets = static_cast<std::uint32_t>(random_.below(config_.max_packets + 1ULL));
  episode.data.push_back(hold(time_ns, bytes, note));
  if (!happens(random_, config_.lost_probability)) next_.frame(time_ns, bytes, note);
  if (episode.packets > 0) return;
  go_back(episode, time_ns);
  episodes_.erase(note.connection);
}

void Retransmission::go_back(Episode& episode, std::uint64_t time_ns) {
  for (HeldFrame& held : episode.data) {
    held.note.repeated = true;
    next_.frame(time_ns + kBackoffNs, held.bytes, held.note);
    repeats_ += 1;
  }
  for (const HeldFrame& held : episode.answers) next_.frame(time_ns + kBackoffNs, held.bytes, held.note);
}

void Retransmission::finish() {
  for (auto& [connection, episode] : episodes_) go_back(episode, episode.data.back().time_ns);
  episodes_.clear();
}

void MirrorFaults::pass(std::uint64_t time_ns, ByteSpan bytes, const FrameNote& note) {
  next_.frame(time_ns, bytes, note);
  for (std::size_t i = 0; i < late_.size();) {
    if (--late_[i].frames_left > 0) {
      ++i;
      continue;
    }
    next_.frame(time_ns, late_[i].frame.bytes, late_[i].frame.note);
    late_.erase(late_.begin() + static_cast<std::ptrdiff_t>(i));
  }
}

void MirrorFaults::frame(std::uint64_t time_ns, ByteSpan bytes, const FrameNote& note) {
  if (burst_left_ == 0 && happens(random_, config_.drop_probability)) burst_left_ = config_.burst;
  if (burst_left_ > 0) {
    burst_left_ -= 1;
    dropped_ += 1;
    return;
  }
  if (happens(random_, config_.duplicate_probability)) {
    duplicated_ += 1;
    pass(time_ns, bytes, note);
  }
  if (config_.reorder_distance > 0 && happens(random_, config_.reorder_probability)) {
    reordered_ += 1;
    late_.push_back(
        {static_cast<std::uint32_t>(1 + random_.below(config_.reorder_distance)), hold(time_ns, bytes, note)});
    return;
  }
  pass(time_ns, bytes, note);
}

void MirrorFaults::finish() {
  for (const Late& late : late_) next_.frame(late.frame.time_ns, late.frame.bytes, late.frame.note);
  late_.clear();
}

}  // namespace gradtap::generator
