// Frames to segments on one core: parsing, checksums, a whole decode, and what a lost header costs.
#include <algorithm>
#include <vector>

#include <benchmark/benchmark.h>

#include "common/clock.h"
#include "common/random.h"
#include "dataplane/gloo_decoder.h"

namespace {

using namespace gradtap;
using namespace gradtap::dataplane;

class CountingSink final : public SegmentSink {
 public:
  void segment(const Segment& s) override { bytes += s.bytes; }
  void keep(const OwnedBytes&) override {}
  void hand_over(std::uint16_t, std::uint32_t) override {}
  std::uint64_t bytes = 0;
};

// One direction of one connection: all-reduce messages of 1 MiB, each announced, cut into frames.
struct Traffic {
  explicit Traffic(std::size_t payload) {
    std::vector<std::uint8_t> stream;
    const auto word = [&](std::uint64_t v) {
      for (int i = 0; i < 8; ++i) stream.push_back(static_cast<std::uint8_t>(v >> 8 * i));
    };
    constexpr std::uint64_t kLength = 1 << 20;
    for (std::uint64_t tag = 1; tag <= 16; ++tag) {
      for (const std::uint64_t opcode : {2ULL, 1ULL}) {
        const std::uint64_t nbytes = 48 + (opcode == 1 ? kLength : 0);
        const std::uint64_t slot = std::uint64_t{4} << 56 | tag << 24;
        for (const std::uint64_t v : {nbytes, opcode, slot, std::uint64_t{0}, kLength, std::uint64_t{0}}) word(v);
      }
      SeededRandom random(tag);
      for (std::uint64_t i = 0; i < kLength / 8; ++i) word(random.next());
    }
    std::uint32_t sequence = 1;
    frames.push_back(frame(0, 0x02, {}));
    for (std::size_t at = 0; at < stream.size(); at += payload) {
      const ByteSpan part = ByteSpan(stream).subspan(at, std::min(payload, stream.size() - at));
      frames.push_back(frame(sequence, 0x10, part));
      sequence += static_cast<std::uint32_t>(part.size());
    }
    for (const auto& bytes : frames)
      views.push_back({bytes.data(), static_cast<std::uint32_t>(bytes.size()), 0, nullptr});
  }

  static std::vector<std::uint8_t> frame(std::uint32_t sequence, std::uint8_t flags, ByteSpan payload) {
    std::vector<std::uint8_t> out(14 + 20 + 20 + payload.size());
    std::uint8_t* const ip = out.data() + 14;
    std::uint8_t* const tcp = ip + 20;
    store_be<std::uint16_t>(&out[12], 0x0800);
    ip[0] = 0x45;
    store_be<std::uint16_t>(ip + 2, static_cast<std::uint16_t>(out.size() - 14));
    ip[8] = 64, ip[9] = 6;
    store_be<std::uint32_t>(ip + 12, 0x0a00000b);
    store_be<std::uint32_t>(ip + 16, 0x0a00000a);
    store_be<std::uint16_t>(ip + 10, static_cast<std::uint16_t>(~ones_complement_sum({ip, 20})));
    store_be<std::uint16_t>(tcp, 40000);
    store_be<std::uint16_t>(tcp + 2, 5000);
    store_be<std::uint32_t>(tcp + 4, sequence);
    tcp[12] = 0x50, tcp[13] = flags;
    std::copy(payload.begin(), payload.end(), tcp + 20);
    const std::uint64_t pseudo = std::uint64_t{ones_complement_sum({ip + 12, 8})} + 6 + 20 + payload.size();
    store_be<std::uint16_t>(tcp + 16,
                            static_cast<std::uint16_t>(~ones_complement_sum({tcp, 20 + payload.size()}, pseudo)));
    return out;
  }

  std::vector<std::vector<std::uint8_t>> frames;
  std::vector<Frame> views;
};

void decode(benchmark::State& state, ChecksumPolicy policy, std::size_t drop_every) {
  const Traffic traffic(static_cast<std::size_t>(state.range(0)));
  std::vector<Frame> frames;
  for (std::size_t i = 0; i < traffic.views.size(); ++i) {
    if (drop_every == 0 || i % drop_every != drop_every - 1) frames.push_back(traffic.views[i]);
  }
  std::int64_t bytes = 0;
  for (const Frame& frame : frames) bytes += frame.bytes;
  const IpAddress endpoints[] = {parse_ip("10.0.0.10").value(), parse_ip("10.0.0.11").value()};
  for (auto _ : state) {
    SystemClock clock;
    FlowDirectory directory;
    (void)directory.set_endpoints(endpoints);
    GlooDecoderConfig config;
    config.checksum = policy;
    GlooDecoder decoder(config, directory, clock, 0);
    CountingSink sink;
    for (std::size_t i = 0; i < frames.size(); i += 32) {
      decoder.decode(std::span(frames).subspan(i, std::min<std::size_t>(32, frames.size() - i)), sink);
    }
    if (drop_every == 0 && sink.bytes != 16 << 20) state.SkipWithError("bytes are missing");
    benchmark::DoNotOptimize(sink.bytes);
  }
  state.SetBytesProcessed(bytes * static_cast<std::int64_t>(state.iterations()));
  state.SetItemsProcessed(static_cast<std::int64_t>(frames.size() * state.iterations()));
}

BENCHMARK_CAPTURE(decode, checksums_required, ChecksumPolicy::kRequired, 0)->Arg(1448)->Arg(8948);
BENCHMARK_CAPTURE(decode, checksums_offload, ChecksumPolicy::kOffload, 0)->Arg(1448)->Arg(8948);
BENCHMARK_CAPTURE(decode, one_frame_of_100_lost, ChecksumPolicy::kRequired, 100)->Arg(1448);

}  // namespace
