// Assembly of one all-reduce from all edges of a ring, in segments of a 1500-byte MTU: bytes of payload per second,
// partial sums and compared copies included.
#include <algorithm>
#include <memory>
#include <vector>

#include <benchmark/benchmark.h>

#include "dataplane/gloo_ring.h"
#include "dataplane/op_window.h"

namespace {

using namespace gradtap::dataplane;

void assemble(benchmark::State& state) {
  const auto world = static_cast<std::uint32_t>(state.range(0));
  const OpSize size{static_cast<std::uint64_t>(state.range(1)), 4};
  const auto ring = std::make_shared<const GlooRing>(world);
  const std::vector<std::uint8_t> bytes(size.bytes, 7);
  std::vector<Segment> segments;
  std::uint64_t payload = 0;
  for (std::uint32_t source = 0; source < world; ++source) {
    for (std::uint64_t i = 0; i < ring->message_count(source, size); ++i) {
      const auto place = ring->place(source, size, i);
      for (std::uint64_t at = 0; at < place->bytes; at += 1448) {
        Segment segment;
        segment.type = CollectiveType::kAllReduce;
        segment.source_rank = static_cast<std::uint16_t>(source);
        segment.target_rank = static_cast<std::uint16_t>((source + world - 1) % world);
        segment.flow = source;
        segment.message_index = static_cast<std::uint32_t>(i);
        segment.message_bytes = place->bytes;
        segment.offset_bytes = at;
        segment.data = bytes.data() + place->op_offset + at;
        segment.bytes = static_cast<std::uint32_t>(std::min<std::uint64_t>(1448, place->bytes - at));
        payload += segment.bytes;
        segments.push_back(segment);
      }
    }
  }
  SizeTable sizes;
  if (!sizes.add(size)) state.SkipWithError("size");
  OpWindowConfig config;
  OpWindow window(config, ring);
  window.set_sizes(sizes);
  std::uint32_t tag = 0;
  for (auto _ : state) {
    for (Segment segment : segments) {
      segment.op.tag = tag;
      window.add(segment);
    }
    if (!window.bind({0, tag}, size.bytes)) state.SkipWithError("incomplete");
    window.abandon({0, tag});
    (void)window.summaries_changed();
    ++tag;
  }
  state.SetBytesProcessed(static_cast<std::int64_t>(payload * state.iterations()));
  state.SetItemsProcessed(static_cast<std::int64_t>(segments.size() * state.iterations()));
}
BENCHMARK(assemble)->Args({2, 25 << 20})->Args({4, 25 << 20})->Args({4, 1 << 20})->Unit(benchmark::kMillisecond);

}  // namespace
