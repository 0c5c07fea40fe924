// Hostile segments into a small op window: no crash, no bound crossed, no complete op with a wrong length.
#include <algorithm>
#include <cstdint>
#include <cstdlib>
#include <iterator>
#include <memory>

#include "common/bytes.h"
#include "dataplane/gloo_ring.h"
#include "dataplane/infer_length.h"
#include "dataplane/op_window.h"

using namespace gradtap;
using namespace gradtap::dataplane;

namespace {
void require(bool holds) {
  if (!holds) std::abort();
}
constexpr std::uint64_t kSizes[] = {4, 8, 36, 40, 44, 48, 100, 996, 1000, 4096, 8192, 19232};
}  // namespace

extern "C" int LLVMFuzzerTestOneInput(const std::uint8_t* data, std::size_t size) {
  ByteReader in({data, size});
  const std::uint32_t world = 2 + in.le<std::uint8_t>() % 4;
  OpWindowConfig config;
  config.window_bytes = 16 * 4096;
  config.window_ops = 1 + in.le<std::uint8_t>() % 8;
  config.limbo_bytes = 256 * 1024;
  config.closed_ops = in.le<std::uint8_t>() % 4;
  config.op = {.max_flows = 6, .max_messages_per_flow = 64, .max_intervals = 32};
  const auto ring = std::make_shared<const GlooRing>(world);
  OpWindow window(config, ring);
  SizeTable sizes;
  while (in.ok() && in.remaining() > 0) {
    const std::uint8_t action = in.le<std::uint8_t>();
    const OpKey op{in.le<std::uint8_t>() % 2U, in.le<std::uint8_t>() % 16U};
    const std::uint64_t bytes = kSizes[action % std::size(kSizes)];
    switch (action % 16) {
      case 0:
        (void)sizes.add({bytes, action & 64 ? 2U : 4U});
        window.set_sizes(sizes);
        break;
      case 1: {
        const auto bound = window.bind(op, bytes);
        require(!bound || (*bound)->size() == bytes);
        break;
      }
      case 2:
        (void)window.read(op, bytes, in.le<std::uint64_t>());
        break;
      case 3:
        window.abandon_below(op.comm, op.tag);
        break;
      case 4:
        for (const OpSummary& summary : window.summaries_changed())
          require(!summary.complete || (summary.lengths.size() == 1 && !summary.conflict));
        (void)window.take_conflicts();
        (void)window.take_proven_flows();
        (void)window.missing(op, bytes);
        break;
      case 5:
        if (OpBuffer* buffer = window.buffer(op)) {
          const auto edges = buffer->edges();
          const auto inferred = infer_op_size(*ring, edges);
          if (!inferred.empty()) window.offer_sizes(op, inferred);
        }
        break;
      default: {
        Segment segment;
        segment.op = op;
        const std::uint8_t kind = in.le<std::uint8_t>();
        segment.type = kind % 16 == 0 ? static_cast<CollectiveType>(kind >> 4) : CollectiveType::kAllReduce;
        segment.source_rank = in.le<std::uint8_t>() % 6;
        segment.target_rank = kind & 1 ? static_cast<std::uint16_t>((segment.source_rank + world - 1) % world)
                                       : in.le<std::uint8_t>() % 6;
        segment.flow = kind & 2 ? segment.source_rank : in.le<std::uint8_t>() % 8;
        segment.message_index = kind & 4 ? in.le<std::uint8_t>() % 20U : in.le<std::uint32_t>();
        // Most of the time the length that the schedule has, so that bytes are really placed.
        const auto place = ring->place(segment.source_rank, {bytes, 4}, segment.message_index);
        segment.message_bytes = place && (kind & 8) ? place->bytes : in.le<std::uint64_t>();
        segment.offset_bytes = kind & 32 ? 0 : in.le<std::uint16_t>();
        segment.provisional = (kind & 192) == 192;
        const std::size_t wanted = kind & 64 ? static_cast<std::size_t>(segment.message_bytes) : in.le<std::uint8_t>();
        const ByteSpan payload = in.take(std::min(wanted, in.remaining()));
        segment.data = payload.data();
        segment.bytes = static_cast<std::uint32_t>(payload.size());
        window.add(segment);
        require(window.limbo().used() <= config.limbo_bytes);
        require(window.memory().in_use_bytes + window.memory().idle_bytes <= config.window_bytes);
        require(window.open_count() <= config.window_ops);
        break;
      }
    }
  }
  return 0;
}
