#include "dataplane/impairment.h"

#include <algorithm>
#include <utility>

#include "dataplane/frame.h"

namespace gradtap::dataplane {

bool Impairment::happens(double probability) {
  // Drawn even at 0, so that one setting does not change what the others see.
  return static_cast<double>(random_.next() >> 11) * 0x1p-53 < probability;
}

void Impairment::flip(MemoryFrame& frame) {
  FrameView view;
  const std::uint64_t draw = random_.next();
  if (parse_frame(frame.bytes, 0, ChecksumPolicy::kOffload, view) != FrameDrop::kNone || view.payload.empty()) return;
  const auto first = static_cast<std::size_t>(view.payload.data() - frame.bytes.data());
  const std::size_t at = first + draw % view.payload.size();
  const auto bit = static_cast<std::uint8_t>(1U << (draw >> 32) % 8);
  // The checksum word covers pairs of bytes from the TCP header on; the header length is even.
  const std::size_t high = (at - first) % 2 == 0 ? at : at - 1;
  const bool paired = high + 1 < first + view.payload.size();
  const auto word = [&] {
    return static_cast<std::uint32_t>(frame.bytes[high] << 8 | (paired ? frame.bytes[high + 1] : 0));
  };
  const std::uint32_t before = word();
  frame.bytes[at] = static_cast<std::uint8_t>(frame.bytes[at] ^ bit);
  ++report_.flipped;
  if (!config_.flip_fixes_checksum) return;
  // RFC 1624: HC' = ~(~HC + ~m + m'). The TCP header is found backwards from its ports and sequence number.
  for (std::size_t header = 20; header <= 60; header += 4) {
    if (header > first) break;
    std::uint8_t* const tcp = frame.bytes.data() + first - header;
    if (tcp[12] >> 4 != static_cast<int>(header / 4) || load_be<std::uint16_t>(tcp) != view.source_port ||
        load_be<std::uint32_t>(tcp + 4) != view.sequence) {
      continue;
    }
    std::uint32_t sum = (~std::uint32_t{load_be<std::uint16_t>(tcp + 16)} & 0xffff) + (~before & 0xffff) + word();
    while (sum >> 16 != 0) sum = (sum & 0xffff) + (sum >> 16);
    store_be<std::uint16_t>(tcp + 16, static_cast<std::uint16_t>(~sum));
    return;
  }
}

std::vector<MemoryFrame> Impairment::apply(const std::vector<MemoryFrame>& frames) {
  // Each surviving copy gets a sort key: its place, or a later one; then the order of arrival.
  struct Kept {
    std::uint64_t place = 0;
    std::uint64_t order = 0;
    MemoryFrame frame;
  };
  std::vector<Kept> kept;
  const auto keep = [&](std::uint64_t place, MemoryFrame frame) {
    kept.push_back({place, kept.size(), std::move(frame)});
  };
  std::uint64_t burst_left = 0;
  for (std::uint64_t i = 0; i < frames.size(); ++i) {
    if (config_.drop_every != 0 && (i + 1) % config_.drop_every == 0) burst_left = config_.drop_burst;
    const bool burst = burst_left > 0;
    if (burst) --burst_left;
    const bool dropped = happens(config_.drop_probability) || burst;
    const bool duplicated = happens(config_.duplicate_probability);
    const bool delayed = happens(config_.reorder_probability);
    const bool flipped = happens(config_.flip_probability);
    const std::uint64_t delay = 1 + random_.below(std::max(config_.reorder_distance, 1U));
    if (dropped) {
      ++report_.dropped;
      continue;
    }
    MemoryFrame frame = frames[i];
    if (flipped) flip(frame);
    if (config_.vlan_half && i % 2 == 0 && frame.bytes.size() >= 14) {
      const std::uint8_t tag[4] = {0x81, 0x00, 0x00, 0x2a};
      frame.bytes.insert(frame.bytes.begin() + 12, tag, tag + 4);
      if (frame.wire_bytes != 0) frame.wire_bytes += 4;
      ++report_.tagged;
    }
    if (duplicated) {
      keep(i, frame);
      ++report_.duplicated;
    }
    if (delayed) ++report_.reordered;
    keep(delayed ? i + delay : i, std::move(frame));
  }
  std::ranges::sort(
      kept, [](const Kept& a, const Kept& b) { return a.place != b.place ? a.place < b.place : a.order < b.order; });
  std::vector<MemoryFrame> result;
  result.reserve(kept.size());
  for (Kept& one : kept) result.push_back(std::move(one.frame));
  return result;
}

}  // namespace gradtap::dataplane
