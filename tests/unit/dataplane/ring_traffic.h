// RingTraffic: what the mirror shows of one gloo ring all-reduce, made by walking the algorithm step by step. It shares
// no code with dataplane/gloo_ring (golden/ring_simulation.py checks that one).
#pragma once

#include <algorithm>
#include <cstdint>
#include <vector>

#include "common/random.h"
#include "dataplane/segment.h"

namespace gradtap::test {

struct RingMessage {
  std::uint16_t source = 0;
  std::uint32_t index = 0;
  bool final = false;
  std::uint64_t op_offset = 0;
  std::vector<std::uint8_t> bytes;
};

struct RingTraffic {
  dataplane::OpKey op;
  std::uint32_t world = 0;
  std::vector<std::uint8_t> result;               // what every rank holds in the end
  std::vector<std::vector<RingMessage>> by_edge;  // by source rank, in sending order

  RingTraffic(dataplane::OpKey key, std::uint32_t ranks, std::uint64_t bytes, std::uint32_t element,
              SeededRandom& random)
      : op(key), world(ranks), result(bytes), by_edge(ranks) {
    for (std::uint8_t& byte : result) byte = static_cast<std::uint8_t>(random.next());
    std::uint64_t segments = (bytes + (1 << 20) - 1) >> 20;
    segments = std::max<std::uint64_t>(segments, 2ULL * ranks);
    while (segments % ranks != 0) ++segments;
    std::uint64_t size = (bytes + segments - 1) / segments;
    while (size % element != 0) ++size;
    const std::uint64_t per_chunk = segments / ranks;
    for (std::uint32_t rank = 0; rank < ranks; ++rank) {
      for (const bool final : {false, true}) {
        for (std::uint64_t i = 0; i < segments - per_chunk; ++i) {
          const std::uint64_t k = ((rank + (final ? 0 : 1)) * per_chunk + i) % segments;
          if (k * size >= bytes) continue;
          RingMessage message;
          message.source = static_cast<std::uint16_t>(rank);
          message.index = static_cast<std::uint32_t>(by_edge[rank].size());
          message.final = final;
          message.op_offset = k * size;
          const std::uint64_t end = std::min(bytes, (k + 1) * size);
          message.bytes.assign(result.begin() + static_cast<std::ptrdiff_t>(k * size),
                               result.begin() + static_cast<std::ptrdiff_t>(end));
          if (!final)
            for (std::uint8_t& byte : message.bytes) byte = static_cast<std::uint8_t>(random.next());
          by_edge[rank].push_back(std::move(message));
        }
      }
    }
  }

  // One message as segments of at most `most` bytes. The flow id is 100 + source.
  void cut(const RingMessage& message, std::uint32_t most, std::vector<dataplane::Segment>& to,
           bool provisional = false, std::uint32_t skipped_messages = 0) const {
    for (std::uint64_t at = 0; at < message.bytes.size(); at += most) {
      dataplane::Segment segment;
      segment.op = op;
      segment.type = dataplane::CollectiveType::kAllReduce;
      segment.source_rank = message.source;
      segment.target_rank = static_cast<std::uint16_t>((message.source + world - 1) % world);
      segment.flow = 100U + message.source;
      segment.message_index = message.index - skipped_messages;
      segment.message_bytes = message.bytes.size();
      segment.offset_bytes = at;
      segment.data = message.bytes.data() + at;
      segment.bytes = static_cast<std::uint32_t>(std::min<std::uint64_t>(most, message.bytes.size() - at));
      segment.provisional = provisional;
      to.push_back(segment);
    }
  }
  [[nodiscard]] std::vector<dataplane::Segment> edge(std::uint32_t source, std::uint32_t most = 1448) const {
    std::vector<dataplane::Segment> segments;
    for (const RingMessage& message : by_edge[source]) cut(message, most, segments);
    return segments;
  }
  [[nodiscard]] std::vector<dataplane::Segment> all(std::uint32_t most = 1448) const {
    std::vector<dataplane::Segment> segments;
    for (std::uint32_t source = 0; source < world; ++source)
      for (const RingMessage& message : by_edge[source]) cut(message, most, segments);
    return segments;
  }
};

inline void shuffle(std::vector<dataplane::Segment>& segments, SeededRandom& random) {
  for (std::size_t i = segments.size(); i > 1; --i) std::swap(segments[i - 1], segments[random.below(i)]);
}

}  // namespace gradtap::test
