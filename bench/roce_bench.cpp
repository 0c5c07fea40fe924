// One core from a DPDK port to whole all-reduces: NCCL's traffic over RoCE through a ring port, with packet sequence
// numbers that go on for ever, as deep as each tap goes (roce_tap.h).
//
// The core is its own sender: in rounds it numbers frames and copies them into the port's buffers, then takes all of
// them out. Only taking them out is measured; what sending costs stands beside it as send_ns, a frame. The payload is
// warm as far as the second-level cache goes, as after a driver that copies or a card that writes into the cache.
// GRADTAP_BENCH_FRAMES is the number of frames of each repetition.
#include <algorithm>
#include <array>
#include <cstdlib>
#include <map>
#include <string>
#include <utility>

#include <benchmark/benchmark.h>
#include <time.h>

#include "bench/roce_tap.h"
#include "bench/roce_traffic.h"
#include "dataplane/dpdk/dpdk_port.h"

namespace {

using namespace gradtap;
using namespace gradtap::bench;
using dataplane::Frame;
using dataplane::NcclProtocol;

constexpr std::size_t kBurst = 32;   // as an ingress takes them
constexpr std::size_t kRound = 512;  // frames in the ring
constexpr std::uint32_t kWarmPasses = 2;

dataplane::Ring& ring() {
  static const auto eal = [] {
    dataplane::EalConfig config;
    config.memory_mb = 128;
    return dataplane::Eal::start(config).value();
  }();
  static dataplane::Ring ring = dataplane::open_ring_port(*eal, {}).value();
  return ring;
}

RoceTraffic& traffic_of(NcclProtocol protocol, std::uint32_t path_mtu_bytes) {
  static std::map<std::pair<NcclProtocol, std::uint32_t>, RoceTraffic> known;
  const auto found = known.find({protocol, path_mtu_bytes});
  if (found != known.end()) return found->second;
  RoceTrafficConfig config;
  config.protocol = protocol;
  config.path_mtu_bytes = path_mtu_bytes;
  // Up to 4 MiB by Simple, as buckets of gradients are; up to 256 KiB by LL, the most that NCCL sends as lines.
  const bool simple = protocol == NcclProtocol::kSimple;
  for (int i = 0; i < (simple ? 1 : 8); ++i) {
    config.elements.push_back(simple ? 1'048'576 : 65'536);
    config.elements.push_back(simple ? 917'123 : 50'001);
  }
  return known.try_emplace({protocol, path_mtu_bytes}, config).first->second;
}

// Of this thread on a core, so that others who use the machine do not count.
double now_seconds() {
  timespec now{};
  clock_gettime(CLOCK_THREAD_CPUTIME_ID, &now);
  return static_cast<double>(now.tv_sec) + 1e-9 * static_cast<double>(now.tv_nsec);
}

struct Seconds {
  double send = 0;
  double take = 0;
};

// All frames of the traffic once.
Seconds play(RoceTraffic& traffic, std::uint32_t pass, bool check_values, RoceTap& tap) {
  Seconds seconds;
  const auto& frames = traffic.frames();
  std::array<Frame, kBurst> burst;
  for (std::size_t begin = 0; begin < frames.size(); begin += kRound) {
    const std::size_t end = std::min(frames.size(), begin + kRound);
    const double start = now_seconds();
    traffic.number(begin, end, pass, check_values);
    if (ring().feed->offer(std::span(frames).subspan(begin, end - begin)) != end - begin) std::abort();
    const double sent = now_seconds();
    while (const std::uint16_t count = ring().port->rx_burst(0, burst)) {
      const auto taken = std::span(burst).first(count);
      tap.burst(taken);
      ring().port->release(taken);
    }
    seconds.send += sent - start;
    seconds.take += now_seconds() - sent;
  }
  const double rest = now_seconds();
  tap.pass_over();
  seconds.take += now_seconds() - rest;
  return seconds;
}

void roce(benchmark::State& state, NcclProtocol protocol, std::uint32_t path_mtu_bytes, TapDepth depth,
          bool verify_icrc) {
  RoceTraffic& traffic = traffic_of(protocol, path_mtu_bytes);
  const auto tap = make_roce_tap(depth, verify_icrc, traffic);
  std::string wrong;
  std::uint32_t passes = 0;
  for (; passes < kWarmPasses && wrong.empty(); ++passes) {
    (void)play(traffic, passes, verify_icrc, *tap);
    wrong = tap->wrong();
  }
  double send_seconds = 0;
  for (auto _ : state) {
    const Seconds seconds = play(traffic, passes++, verify_icrc, *tap);
    state.SetIterationTime(seconds.take);
    send_seconds += seconds.send;
    if (wrong.empty()) wrong = tap->wrong();
  }
  if (!wrong.empty()) state.SkipWithError(wrong.c_str());
  const auto frames = static_cast<double>(state.iterations() * traffic.frames().size());
  state.counters["send_ns"] = 1e9 * send_seconds / frames;
  state.counters["frames"] = frames;
  state.counters["payload_bytes"] = static_cast<double>(state.iterations() * traffic.payload_bytes());
  state.SetItemsProcessed(static_cast<std::int64_t>(frames));
}

const bool registered = [] {
  const char* const wanted = std::getenv("GRADTAP_BENCH_FRAMES");
  const std::uint64_t frames = wanted != nullptr ? std::strtoull(wanted, nullptr, 10) : 300'000;
  struct Depth {
    const char* name;
    TapDepth depth;
    bool verify_icrc;
  };
  for (const auto& [protocol, protocol_name] :
       {std::pair{NcclProtocol::kSimple, "simple"}, std::pair{NcclProtocol::kLl, "ll"}}) {
    for (const std::uint32_t mtu : {1024U, 4096U}) {
      for (const Depth& depth : {Depth{"receive", TapDepth::kReceive, false}, Depth{"copy", TapDepth::kCopy, false},
                                 Depth{"decode", TapDepth::kDecode, false}, Depth{"place", TapDepth::kPlace, false},
                                 Depth{"place_icrc", TapDepth::kPlace, true}}) {
        const std::uint64_t passes = frames / ((40ULL << 20) / mtu) + 1;  // each has that much data, and more
        benchmark::RegisterBenchmark(
            (std::string("roce/") + protocol_name + "/" + std::to_string(mtu) + "/" + depth.name).c_str(), roce,
            protocol, mtu, depth.depth, depth.verify_icrc)
            ->Iterations(static_cast<std::int64_t>(passes))
            ->UseManualTime()
            ->Unit(benchmark::kMillisecond);
      }
    }
  }
  return true;
}();

}  // namespace
