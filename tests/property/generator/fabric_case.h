// Seeded cases of NCCL traffic for property tests: every pair of settings comes up, and the truth is known.
//
// A case is drawn from its number alone. The frames are those that the mirror delivers; `sent` are those that the job
// wrote, before any fault; both with the generator's notes.
#pragma once

#include <algorithm>
#include <array>
#include <cstdint>
#include <cstring>
#include <map>
#include <set>
#include <string>
#include <vector>

#include <doctest/doctest.h>
#include <fmt/format.h>

#include "common/interval_set.h"
#include "common/random.h"
#include "generator/fabric_faults.h"
#include "generator/nccl_job.h"
#include "generator/traffic.h"

namespace gradtap::testing {

struct FabricCase {
  std::uint64_t number = 0;
  dataplane::NcclLayout layout{};
  std::uint32_t ranks = 2;
  std::uint32_t channels = 1;
  bool ll = true;
  std::uint32_t mtu = 1024;
  std::uint32_t first_psn = 0;
  generator::WriteStyle style{};
  generator::ElementType type{};
  std::uint64_t elements = 1;
  std::uint32_t ops = 1;
  bool retransmission = false;
  bool loss = false;
  bool duplicates = false;
  bool reordering = false;
  bool side = false;

  // The choice in each dimension, for counting pairs.
  std::vector<std::uint32_t> choices;

  [[nodiscard]] std::string text() const {
    return fmt::format(
        "case {}: layout {} ranks {} channels {} {} mtu {} psn {} style {} type {} elements {} ops {}{}{}{}{}{}",
        number, static_cast<int>(layout), ranks, channels, ll ? "LL" : "Simple", mtu, first_psn,
        static_cast<int>(style), static_cast<int>(type), elements, ops, retransmission ? " retransmission" : "",
        loss ? " loss" : "", duplicates ? " duplicates" : "", reordering ? " reordering" : "", side ? " side" : "");
  }
};

// Element counts that meet tails, empty chunks, one loop and several; `large` allows those of up to 1 MiB.
inline std::uint64_t draw_elements(SeededRandom& random, std::uint32_t choice, std::uint32_t bytes) {
  switch (choice) {
    case 0:
      return 1 + random.below(3);
    case 1:
      return 1 + random.below(1000);
    case 2:
      return 4096 + random.below(3);
    case 3:
      return 1 + random.below(20'000);
    case 4:
      return 8192 * (1 + random.below(5)) + random.below(2);
    default:
      return ((1ULL << 20) - random.below(4096)) / bytes;
  }
}

inline FabricCase draw_case(std::uint64_t number) {
  using namespace generator;
  SeededRandom random(splitmix64_mix(number + 0xfab));
  FabricCase c;
  c.number = number;
  const auto choose = [&](std::uint32_t count) {
    const auto value = static_cast<std::uint32_t>(random.below(count));
    c.choices.push_back(value);
    return value;
  };
  constexpr std::array kRanks{2U, 3U, 4U, 5U, 7U, 8U, 11U, 16U};
  constexpr std::array kTypes{ElementType::kFloat32, ElementType::kBfloat16, ElementType::kInt32, ElementType::kFloat64,
                              ElementType::kUint8};
  c.layout = static_cast<dataplane::NcclLayout>(choose(3));
  c.ranks = kRanks[choose(kRanks.size())];
  c.channels = 1 + choose(8);
  c.ll = choose(2) == 0;
  c.mtu = choose(2) == 0 ? 1024 : 4096;
  c.first_psn = std::array{0U, 0xfffff0U, 0xffffffU}[choose(3)];
  c.style = static_cast<WriteStyle>(choose(3));
  c.type = kTypes[choose(kTypes.size())];
  const std::uint32_t size = choose(5);
  c.elements = draw_elements(random, size, element_bytes(c.type));
  c.ops = 1 + choose(3);
  // What crosses all links is bounded, but for one case in 32, which has vectors of a MiB.
  const std::uint64_t budget = (1ULL << 20) / (2 * (c.ranks - 1) * c.ops * element_bytes(c.type));
  if (number % 32 == 5)
    c.elements = draw_elements(random, 5, element_bytes(c.type));
  else if (c.elements > budget)
    c.elements = budget - random.below(8);
  c.retransmission = choose(2) == 1;
  c.loss = choose(2) == 1;
  c.duplicates = choose(2) == 1;
  c.reordering = choose(2) == 1;
  c.side = choose(2) == 1;
  return c;
}

// The same with vectors of up to 64 MiB, every fourth of just that, over few ranks: they are held in memory whole.
inline FabricCase draw_large_case(std::uint64_t number) {
  FabricCase c = draw_case(number);
  SeededRandom random(splitmix64_mix(number + 0x64));
  const std::uint64_t bytes = number % 4 == 0 ? (64ULL << 20) - random.below(4096) : random.below(64ULL << 20);
  c.elements = std::max<std::uint64_t>(1, bytes / generator::element_bytes(c.type));
  c.ranks = std::min(c.ranks, c.ll ? 2U : 3U);
  c.ops = 1;
  return c;
}

class NotedFrames final : public generator::FrameSink {
 public:
  void frame(std::uint64_t time_ns, ByteSpan bytes, const generator::FrameNote& note) override {
    frames.push_back({time_ns, {bytes.begin(), bytes.end()}, note});
  }
  std::vector<generator::HeldFrame> frames;
};

// What a decoder can know of an op's result, from the notes of what was delivered.
struct Knowable {
  IntervalSet most;   // in a frame that was delivered
  IntervalSet least;  // and the first packet of its message was delivered too, or its last and one more
  // Not in `least`, because the wire does not say it:
  std::uint64_t endless_messages = 0;  // the last of a connection, of writes of a packet each, its immediate lost
  std::uint64_t nameless_edges =
      0;  // no data of a connection of the edge was seen at all: channels are known by their order
};

// Whether the frame is an empty write with an immediate.
inline bool closes_apart(const std::vector<std::uint8_t>& frame) {
  const std::size_t transport = frame[12] == 0x86 ? 14 + 40 + 8 : 14 + 20 + 8;
  constexpr std::size_t kBthBytes = 12, kLengthOffset = 12;
  constexpr std::uint8_t kWriteOnlyImmediate = 0x0b;
  const std::uint8_t* const length = &frame[transport + kBthBytes + kLengthOffset];
  return frame[transport] == kWriteOnlyImmediate && (length[0] | length[1] | length[2] | length[3]) == 0;
}

struct FabricRun {
  generator::JobConfig job;
  std::vector<std::vector<std::uint8_t>> reduced;  // by op
  std::vector<generator::HeldFrame> sent;
  std::vector<generator::HeldFrame> seen;
  std::uint64_t dropped = 0;
  std::uint64_t repeated = 0;
};

inline FabricRun run_case(const FabricCase& c) {
  using namespace generator;
  TrafficConfig config;
  JobConfig& job = config.job;
  job.tuning.layout = c.layout;
  job.tuning.ranks = c.ranks;
  job.tuning.channels = c.channels;
  job.tuning.ll_max_bytes = c.ll ? ~std::uint64_t{0} : 0;
  job.hosts = invented_hosts(1, c.ranks, c.number % 2 == 1);
  job.path_mtu_bytes = c.mtu;
  job.first_psn = c.first_psn;
  job.style = c.style;
  job.cts = cts_format_of(c.layout);
  config.seed = c.number;
  if (c.retransmission) config.retransmission.probability = 0.01;
  // With few ranks no other link heals a loss: there it makes holes.
  if (c.loss) config.mirror.drop_probability = c.ranks <= 3 ? 0.04 : 0.01;
  if (c.loss && c.number % 3 == 0) config.mirror.burst = 5;
  if (c.duplicates) config.mirror.duplicate_probability = 0.02;
  if (c.reordering) config.mirror.reorder_probability = 0.03;
  if (c.side) config.side_frames = 0.1;

  auto made = NcclJob::make(job);
  REQUIRE(made);
  FabricRun run;
  run.job = job;
  NotedFrames sent, seen;
  DrawnValues drawn(c.type, c.number);
  for (std::uint32_t op = 0; op < c.ops; ++op) {
    const ByteSpan values = drawn.draw(0, op, 0, c.elements);
    run.reduced.emplace_back(values.begin(), values.end());
    const Status done = made->all_reduce(c.type, values, {}, sent);
    REQUIRE_MESSAGE(done, (done ? std::string() : done.error().text()));
  }
  const std::vector<ConnectionConfig> connections = job_connections(job);
  FabricStages stages(config, {connections[0].data, connections.back().data}, seen);
  for (const HeldFrame& held : sent.frames) {
    // NCCL's connections begin at PSN 0. Those that begin elsewhere stand for ones that have been followed for long:
    // what was before is known there, so the first message of each is seen whole.
    const bool known = c.first_psn != 0 && held.note.kind == FrameKind::kData && held.note.message == 0;
    (known ? static_cast<FrameSink&>(seen) : stages.front()).frame(held.time_ns, held.bytes, held.note);
  }
  stages.finish();
  run.sent = std::move(sent.frames);
  run.seen = std::move(seen.frames);
  run.dropped = stages.mirror().dropped();
  run.repeated = stages.retransmission().repeats();
  return run;
}

inline std::vector<Knowable> knowable(const FabricRun& run, std::uint32_t ops) {
  using generator::FrameKind;
  using generator::HeldFrame;
  using MessageName = std::pair<std::uint32_t, std::uint64_t>;          // connection, message
  std::map<MessageName, std::pair<std::uint32_t, std::uint32_t>> ends;  // first and last PSN, in sending order
  std::set<MessageName> apart;                                          // runs with an immediate of their own
  std::map<std::uint32_t, std::set<std::uint32_t>> edges;               // by sender: connections that carried something
  for (const HeldFrame& held : run.sent) {
    if (held.note.kind != FrameKind::kData) continue;
    const MessageName name{held.note.connection, held.note.message};
    const auto [at, fresh] = ends.emplace(name, std::pair{held.note.psn, held.note.psn});
    if (!fresh) at->second.second = held.note.psn;
    if (!fresh && run.job.style == generator::WriteStyle::kPerPacketWrites && closes_apart(held.bytes))
      apart.insert(name);
    edges[held.note.connection / run.job.tuning.channels].insert(held.note.connection);
  }
  std::map<MessageName, std::set<std::uint32_t>> delivered;
  std::set<std::uint32_t> shown;  // connections of which data was seen
  for (const HeldFrame& held : run.seen) {
    if (held.note.kind != FrameKind::kData) continue;
    delivered[{held.note.connection, held.note.message}].insert(held.note.psn);
    if (!closes_apart(held.bytes)) shown.insert(held.note.connection);
  }
  std::map<std::uint32_t, std::uint64_t> newest;  // message that was seen of a connection
  for (const auto& [name, psns] : delivered) newest[name.first] = std::max(newest[name.first], name.second);
  std::vector<Knowable> known(ops);
  for (const HeldFrame& held : run.seen) {
    if (held.note.kind != FrameKind::kData || held.note.end == held.note.begin) continue;
    known[held.note.op].most.add(held.note.begin, held.note.end);
    const MessageName name{held.note.connection, held.note.message};
    const std::set<std::uint32_t>& psns = delivered[name];
    const auto [first, last] = ends[name];
    const std::set<std::uint32_t>& edge = edges[held.note.connection / run.job.tuning.channels];
    if (std::any_of(edge.begin(), edge.end(), [&](std::uint32_t other) { return !shown.contains(other); })) {
      ++known[held.note.op].nameless_edges;
      continue;
    }
    if (apart.contains(name) && !psns.contains(last) && newest[name.first] == name.second) {
      ++known[held.note.op].endless_messages;
      continue;
    }
    if (psns.contains(first) || (psns.contains(last) && psns.size() > 1))
      known[held.note.op].least.add(held.note.begin, held.note.end);
  }
  return known;
}

// Every pair of choices in two different dimensions that comes up in cases [0, count).
inline std::set<std::array<std::uint32_t, 4>> pairs_in(std::uint64_t count) {
  std::set<std::array<std::uint32_t, 4>> pairs;
  for (std::uint64_t number = 0; number < count; ++number) {
    const FabricCase c = draw_case(number);
    for (std::uint32_t i = 0; i < c.choices.size(); ++i)
      for (std::uint32_t j = i + 1; j < c.choices.size(); ++j) pairs.insert({i, c.choices[i], j, c.choices[j]});
  }
  return pairs;
}

inline std::size_t all_pairs() {
  constexpr std::array<std::size_t, 15> kCounts{3, 8, 8, 2, 2, 3, 3, 5, 5, 3, 2, 2, 2, 2, 2};
  std::size_t pairs = 0;
  for (std::size_t i = 0; i < kCounts.size(); ++i)
    for (std::size_t j = i + 1; j < kCounts.size(); ++j) pairs += kCounts[i] * kCounts[j];
  return pairs;
}

}  // namespace gradtap::testing
