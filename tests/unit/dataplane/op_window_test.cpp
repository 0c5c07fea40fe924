#include "dataplane/op_window.h"

#include <algorithm>
#include <cstring>
#include <optional>

#include <doctest/doctest.h>

#include "dataplane/gloo_ring.h"
#include "tests/unit/dataplane/ring_traffic.h"

using namespace gradtap;
using namespace gradtap::dataplane;
using gradtap::test::RingTraffic;
using gradtap::test::shuffle;

namespace {

// The code of an error, or nothing for a success: reading the error of a success would be undefined.
template <class Outcome>
std::optional<ErrorCode> error_of(const Outcome& outcome) {
  return outcome ? std::nullopt : std::optional(outcome.error().code);
}

SizeTable table(std::initializer_list<OpSize> sizes) {
  SizeTable out;
  for (const OpSize& size : sizes) REQUIRE(out.add(size).has_value());
  return out;
}

struct Bench {
  explicit Bench(std::uint32_t world, OpWindowConfig config = {})
      : window(config, std::make_shared<const GlooRing>(world)) {}
  void add(const std::vector<Segment>& segments) {
    for (const Segment& segment : segments) window.add(segment);
  }
  bool equals(const RingTraffic& traffic) {
    auto bytes = window.bind(traffic.op, traffic.result.size());
    return bytes && (*bytes)->size() == traffic.result.size() &&
           std::memcmp((*bytes)->data(), traffic.result.data(), traffic.result.size()) == 0;
  }
  OpWindow window;
};

}  // namespace

TEST_CASE("an op of a known size is assembled from all edges, in any order") {
  SeededRandom random(1);
  for (const std::uint32_t world : {2U, 3U, 4U, 5U}) {
    Bench bench(world);
    bench.window.set_sizes(table({{132756, 4}, {40000, 4}, {77108, 4}}));
    const RingTraffic traffic({0, 7}, world, 77108, 4, random);
    auto segments = traffic.all();
    shuffle(segments, random);
    bench.add(segments);
    const auto summary = bench.window.summary({0, 7});
    REQUIRE(summary.has_value());
    CHECK(summary->complete);
    CHECK(summary->lengths == std::vector<std::uint64_t>{77108});
    CHECK(bench.window.copies({0, 7})->min == (world == 2 ? 1 : 2));
    CHECK(bench.window.copies({0, 7})->max == world);
    CHECK(bench.equals(traffic));
    CHECK(bench.window.counters().placed_bytes == 77108);
    CHECK(bench.window.counters().duplicate_bytes == (world - 2) * 77108ULL);
    CHECK(bench.window.counters().partial_bytes == (world - 1) * 77108ULL);
    CHECK(bench.window.limbo().used() == 0);
  }
}

TEST_CASE("partial sums are never stored, even if they are all that came") {
  SeededRandom random(2);
  Bench bench(4);
  bench.window.set_sizes(table({{4096, 4}}));
  const RingTraffic traffic({0, 1}, 4, 4096, 4, random);
  for (const auto& edge : traffic.by_edge)
    for (const auto& message : edge) {
      std::vector<Segment> segments;
      if (!message.final) traffic.cut(message, 100, segments);
      bench.add(segments);
    }
  CHECK(bench.window.counters().placed_bytes == 0);
  CHECK(bench.window.missing({0, 1}, 4096) == std::vector<Interval>{{0, 4096}});
  CHECK(bench.window.memory().in_use_bytes == 0);
}

TEST_CASE("a size that becomes known late is applied to what waits in limbo, and to nothing else") {
  SeededRandom random(3);
  Bench bench(3);
  const RingTraffic traffic({0, 5}, 3, 65540, 4, random);
  const RingTraffic foreign({0, 6}, 3, 65536, 4, random);
  bench.add(traffic.all());
  bench.add(foreign.all());
  CHECK(bench.window.counters().placed_bytes == 0);
  CHECK(bench.window.limbo().used() > 2 * 65536);
  CHECK(bench.window.summary({0, 5})->lengths.empty());
  bench.window.set_sizes(table({{65540, 4}, {1000, 4}}));
  CHECK(bench.window.summary({0, 5})->complete);
  CHECK(bench.window.summary({0, 6})->lengths.empty());
  CHECK(bench.equals(traffic));
  CHECK_FALSE(bench.window.bind({0, 6}, 65540).has_value());
}

TEST_CASE("lost frames leave exactly their bytes missing, another edge fills them") {
  SeededRandom random(4);
  Bench bench(4);
  bench.window.set_sizes(table({{8192, 4}}));
  const RingTraffic traffic({0, 2}, 4, 8192, 4, random);
  // Segments of 1024 bytes, two a chunk: rank 0 brings the chunks 0, 1, 2; of chunk 1 a piece is lost.
  for (const Segment& segment : traffic.edge(0, 256)) {
    const auto& message = traffic.by_edge[0][segment.message_index];
    if (message.final && message.op_offset + segment.offset_bytes == 2048 + 256) continue;
    bench.window.add(segment);
  }
  CHECK(bench.window.missing({0, 2}, 8192) == std::vector<Interval>{{2304, 2560}, {6144, 8192}});
  CHECK_FALSE(bench.window.read({0, 2}, 8192, 2304).has_value());
  CHECK_FALSE(bench.window.read({0, 2}, 8192, 2302).has_value());
  std::uint32_t expected = 0;
  std::memcpy(&expected, traffic.result.data() + 2300, 4);
  CHECK(bench.window.read({0, 2}, 8192, 2300) == expected);
  CHECK_FALSE(bench.window.read({0, 2}, 8196, 2300).has_value());
  CHECK_FALSE(bench.window.read({0, 2}, 8192, 8189).has_value());
  CHECK_FALSE(bench.window.read({0, 2}, 8192, ~0ULL).has_value());
  CHECK(error_of(bench.window.bind({0, 2}, 8192)) == ErrorCode::kOpIncomplete);
  bench.add(traffic.edge(1));
  CHECK(bench.equals(traffic));
}

TEST_CASE("one of three copies differs: CONFLICT, both sides named, never a vote") {
  SeededRandom random(5);
  for (std::uint32_t order = 0; order < 3; ++order) {
    Bench bench(4);
    bench.window.set_sizes(table({{8192, 4}}));
    const RingTraffic traffic({0, 3}, 4, 8192, 4, random);
    RingTraffic bad = traffic;
    // Chunk 1 [2048, 4096) is carried by the edges 0, 1 and 3; the one of edge 1 is changed.
    for (auto& message : bad.by_edge[1])
      if (message.final && message.op_offset == 2048) message.bytes[17] ^= 1;
    for (std::uint32_t i = 0; i < 4; ++i) bench.add(bad.edge((i + order) % 4, 512));
    const auto summary = bench.window.summary({0, 3});
    CHECK(summary->conflict);
    CHECK_FALSE(summary->complete);
    CHECK(bench.window.missing({0, 3}, 8192) == std::vector<Interval>{{2048, 2560}});
    CHECK(error_of(bench.window.bind({0, 3}, 8192)) == ErrorCode::kOpConflict);
    const auto conflicts = bench.window.take_conflicts();
    REQUIRE(conflicts.size() == 1);
    CHECK(conflicts[0].range == Interval{2048, 2560});
    std::vector<std::uint32_t> flows = conflicts[0].other_flows;
    flows.push_back(conflicts[0].flow);
    CHECK(std::count(flows.begin(), flows.end(), 101U) == 1);
    CHECK(flows.size() >= 2);
    // More copies, good or bad, change nothing.
    bench.add(traffic.all());
    CHECK(bench.window.missing({0, 3}, 8192) == std::vector<Interval>{{2048, 2560}});
    CHECK_FALSE(bench.window.read({0, 3}, 8192, 2048).has_value());
  }
}

TEST_CASE("a copy that differs after the op was bound is an alarm and changes no byte") {
  SeededRandom random(6);
  Bench bench(4);
  bench.window.set_sizes(table({{8192, 4}}));
  const RingTraffic traffic({0, 3}, 4, 8192, 4, random);
  bench.add(traffic.edge(0));
  bench.add(traffic.edge(1));
  const auto bytes = bench.window.bind({0, 3}, 8192);
  REQUIRE(bytes.has_value());
  RingTraffic bad = traffic;
  for (auto& message : bad.by_edge[2])
    if (message.final) message.bytes[0] ^= 0x80;
  bench.add(bad.edge(2));
  bench.add(traffic.edge(3));
  CHECK(bench.window.summary({0, 3})->conflict);
  CHECK(bench.window.take_conflicts().size() == 6);
  CHECK(std::memcmp((*bytes)->data(), traffic.result.data(), 8192) == 0);
}

TEST_CASE("sizes that tiny ops cannot tell apart stay possible until the binder decides") {
  // 40 and 48 bytes at world 4 have the same messages as far as they go; only their number differs.
  SeededRandom random(7);
  Bench bench(4);
  bench.window.set_sizes(table({{40, 4}, {48, 4}}));
  const RingTraffic traffic({0, 9}, 4, 40, 4, random);
  bench.add(traffic.all());
  CHECK(bench.window.summary({0, 9})->lengths == std::vector<std::uint64_t>{40, 48});
  CHECK_FALSE(bench.window.summary({0, 9})->complete);
  std::uint32_t expected = 0;
  std::memcpy(&expected, traffic.result.data() + 36, 4);
  CHECK(bench.window.read({0, 9}, 40, 36) == expected);
  CHECK(bench.equals(traffic));

  const RingTraffic longer({0, 10}, 4, 48, 4, random);
  bench.add(longer.all());
  CHECK(bench.window.summary({0, 10})->lengths == std::vector<std::uint64_t>{48});
  CHECK(bench.equals(longer));
}

TEST_CASE("a foreign op that looks like a bucket until its last message never becomes one") {
  SeededRandom random(8);
  Bench bench(4);
  bench.window.set_sizes(table({{1000, 4}}));
  const RingTraffic traffic({0, 1}, 4, 996, 4, random);
  bench.add(traffic.all());
  CHECK(bench.window.summary({0, 1})->lengths.empty());
  CHECK(bench.window.counters().size_contradictions == 1);
  CHECK(error_of(bench.window.bind({0, 1}, 1000)) == ErrorCode::kOpSizeMismatch);
  // Its own size, learnt late, is still right.
  bench.window.set_sizes(table({{1000, 4}, {996, 4}}));
  CHECK(bench.equals(traffic));
}

TEST_CASE("provisional flows are placed only when their messages fit exactly one size") {
  SeededRandom random(9);
  const RingTraffic traffic({0, 4}, 4, 77108, 4, random);
  const auto provisional = [&](std::uint32_t source, std::uint32_t skipped) {
    std::vector<Segment> segments;
    for (const auto& message : traffic.by_edge[source])
      if (message.index >= skipped) traffic.cut(message, 1448, segments, true, skipped);
    return segments;
  };
  SUBCASE("entered between ops: proven when the last message begins") {
    Bench bench(4);
    bench.window.set_sizes(table({{77108, 4}, {132756, 4}}));
    auto segments = provisional(0, 0);
    const Segment last = segments.back();
    segments.pop_back();
    bench.add(segments);
    bench.window.add(last);
    const auto proven = bench.window.take_proven_flows();
    REQUIRE(proven.size() == 1);
    CHECK(proven[0].flow == 100);
    CHECK(proven[0].op == OpKey{0, 4});
    bench.add(provisional(1, 0));
    CHECK(bench.window.limbo().used() == 0);
    CHECK(bench.equals(traffic));
  }
  SUBCASE("entered inside the op: never placed, nothing wrong stored") {
    for (std::uint32_t skipped = 1; skipped < traffic.by_edge[0].size(); ++skipped) {
      Bench bench(4);
      bench.window.set_sizes(table({{77108, 4}, {132756, 4}, {19232, 4}}));
      for (std::uint32_t source = 0; source < 4; ++source) bench.add(provisional(source, skipped));
      CHECK(bench.window.counters().placed_bytes == 0);
      CHECK(bench.window.take_proven_flows().empty());
    }
  }
  SUBCASE("exact edges decide the size, the provisional one is still only placed whole") {
    Bench bench(4);
    bench.window.set_sizes(table({{77108, 4}, {132756, 4}}));
    bench.add(traffic.edge(2));
    const auto placed = bench.window.counters().placed_bytes;
    bench.add(provisional(0, 2));
    CHECK(bench.window.counters().placed_bytes == placed);
    bench.add(traffic.edge(1));
    CHECK(bench.equals(traffic));
  }
  SUBCASE("late sizes") {
    Bench bench(4);
    for (std::uint32_t source = 0; source < 4; ++source) bench.add(provisional(source, 0));
    CHECK(bench.window.counters().placed_bytes == 0);
    bench.window.set_sizes(table({{77108, 4}}));
    CHECK(bench.window.take_proven_flows().size() == 4);
    CHECK(bench.equals(traffic));
  }
}

TEST_CASE("a provisional op that could be the end of a longer one waits") {
  // All messages of 64-byte multiples have equal lengths here: 8 of them may be the rest of 10.
  SeededRandom random(10);
  Bench bench(4);
  bench.window.set_sizes(table({{40, 4}, {48, 4}}));
  const RingTraffic longer({0, 1}, 4, 48, 4, random);
  std::vector<Segment> segments;
  for (const auto& message : longer.by_edge[0])
    if (message.index >= 2) longer.cut(message, 8, segments, true, 2);
  bench.add(segments);
  CHECK(bench.window.counters().placed_bytes == 0);
  CHECK(bench.window.take_proven_flows().empty());
}

TEST_CASE("renumbered messages of a flow with proven ones in the same op are refused") {
  SeededRandom random(11);
  Bench bench(4);
  bench.window.set_sizes(table({{8192, 4}}));
  const RingTraffic traffic({0, 1}, 4, 8192, 4, random);
  auto segments = traffic.edge(0);
  bench.window.add(segments[0]);
  segments[5].provisional = true;
  segments[5].message_index = 0;
  bench.window.add(segments[5]);
  CHECK(bench.window.counters().rejected_unproven == 1);
}

TEST_CASE("hostile segments are counted and change nothing") {
  SeededRandom random(12);
  Bench bench(4);
  bench.window.set_sizes(table({{8192, 4}}));
  const RingTraffic traffic({0, 1}, 4, 8192, 4, random);
  const auto segments = traffic.all();
  const Segment good = traffic.edge(0).front();
  const auto rejects = [&](Segment segment, std::uint64_t AssemblyCounters::* counter) {
    const auto before = bench.window.counters().*counter;
    bench.window.add(segment);
    CHECK(bench.window.counters().*counter == before + 1);
  };
  bench.window.add(good);
  Segment bad = good;
  bad.target_rank = 1;
  rejects(bad, &AssemblyCounters::rejected_edge);
  bad = good;
  bad.source_rank = 9;
  rejects(bad, &AssemblyCounters::rejected_edge);
  bad = good;
  bad.source_rank = 1;
  bad.target_rank = 0;
  rejects(bad, &AssemblyCounters::rejected_edge);  // the flow belongs to another edge
  bad = good;
  bad.message_bytes = 0;
  rejects(bad, &AssemblyCounters::rejected_range);
  bad = good;
  bad.offset_bytes = bad.message_bytes - bad.bytes + 1;
  rejects(bad, &AssemblyCounters::rejected_range);
  bad = good;
  bad.offset_bytes = ~0ULL;
  rejects(bad, &AssemblyCounters::rejected_range);
  bad = good;
  bad.message_bytes = ~0ULL;
  rejects(bad, &AssemblyCounters::rejected_range);
  bad = good;
  bad.data = nullptr;
  rejects(bad, &AssemblyCounters::rejected_range);
  bad = good;
  bad.message_bytes += 4;
  rejects(bad, &AssemblyCounters::rejected_message);
  bad = good;
  bad.message_index = ~0U;
  rejects(bad, &AssemblyCounters::rejected_limit);
  bad = good;
  bad.type = CollectiveType::kBroadcast;
  rejects(bad, &AssemblyCounters::rejected_type);
  bad = good;
  bad.op.tag = 77;
  bad.type = CollectiveType::kUnknown;
  rejects(bad, &AssemblyCounters::rejected_type);
  bench.add(segments);
  CHECK(bench.equals(traffic));
  CHECK(bench.window.counters().conflicts == 0);
}

TEST_CASE("other collectives are known by type only") {
  Bench bench(4);
  Segment segment;
  segment.op = {0, 11};
  segment.type = CollectiveType::kBroadcast;
  segment.source_rank = 0;
  segment.target_rank = 2;
  segment.message_bytes = 100;
  bench.window.add(segment);
  CHECK(bench.window.summary({0, 11})->type == CollectiveType::kBroadcast);
  CHECK(bench.window.summaries_changed().size() == 1);
  bench.window.add(segment);
  CHECK(bench.window.summaries_changed().empty());
  CHECK(error_of(bench.window.bind({0, 11}, 100)) == ErrorCode::kOpUnknown);
}

TEST_CASE("only ops that changed are summarised") {
  SeededRandom random(13);
  Bench bench(4);
  bench.window.set_sizes(table({{8192, 4}, {4096, 4}}));
  const RingTraffic traffic({0, 1}, 4, 8192, 4, random);
  auto segments = traffic.edge(0);
  bench.window.add(segments[0]);
  auto changed = bench.window.summaries_changed();
  REQUIRE(changed.size() == 1);
  CHECK(changed[0].lengths == std::vector<std::uint64_t>{8192});
  for (std::size_t i = 1; i < segments.size(); ++i) bench.window.add(segments[i]);
  CHECK(bench.window.summaries_changed().empty());
  bench.add(traffic.edge(1));
  changed = bench.window.summaries_changed();
  REQUIRE(changed.size() == 1);
  CHECK(changed[0].complete);
}

TEST_CASE("at its bounds the window gives up the oldest op, says so, and keeps working (N9)") {
  SeededRandom random(14);
  SUBCASE("number of ops") {
    Bench bench(4, {.window_bytes = 1 << 20, .window_ops = 3, .limbo_bytes = 1 << 20, .closed_ops = 2, .op = {}});
    bench.window.set_sizes(table({{4096, 4}}));
    for (std::uint32_t tag = 0; tag < 10; ++tag) {
      const RingTraffic traffic({0, tag}, 4, 4096, 4, random);
      bench.add(traffic.edge(0));
      CHECK(bench.window.open_count() <= 3);
    }
    CHECK(bench.window.counters().shed_window_ops == 7);
    const auto shed = bench.window.take_shed();
    REQUIRE(shed.size() == 7);
    CHECK(shed[0].op == OpKey{0, 0});
    CHECK(shed[6].op == OpKey{0, 6});
    CHECK(bench.window.summary({0, 6})->shed == ShedReason::kWindowOps);
    CHECK_FALSE(bench.window.summary({0, 0}).has_value());
  }
  SUBCASE("bytes of op buffers") {
    Bench bench(4, {.window_bytes = 3 * 8192, .limbo_bytes = 1 << 20, .op = {}});
    bench.window.set_sizes(table({{8192, 4}}));
    std::vector<RingTraffic> ops;
    for (std::uint32_t tag = 0; tag < 6; ++tag) {
      ops.emplace_back(OpKey{0, tag}, 4, 8192, 4, random);
      bench.add(ops.back().all());
      CHECK(bench.window.memory().in_use_bytes <= 3 * 8192);
    }
    CHECK(bench.window.counters().shed_window_bytes == 3);
    CHECK(bench.window.summary({0, 2})->shed == ShedReason::kWindowBytes);
    for (std::uint32_t tag = 3; tag < 6; ++tag) CHECK(bench.equals(ops[tag]));
    CHECK(bench.window.memory().allocations == 3);
    bench.add(ops[0].all());  // late bytes of a shed op open nothing
    CHECK(bench.window.summary({0, 0})->closed);
    CHECK(bench.window.counters().late_segments > 0);
  }
  SUBCASE("limbo") {
    Bench bench(4, {.window_bytes = 1 << 20, .limbo_bytes = 300 * 1024, .op = {}});
    std::vector<RingTraffic> ops;
    for (std::uint32_t tag = 0; tag < 8; ++tag) {
      ops.emplace_back(OpKey{0, tag}, 4, 8192, 4, random);
      bench.add(ops.back().all());
      CHECK(bench.window.limbo().used() <= 300 * 1024);
    }
    CHECK(bench.window.counters().shed_limbo > 0);
    bench.window.set_sizes(table({{8192, 4}}));
    CHECK(bench.equals(ops[7]));
    CHECK_FALSE(bench.equals(ops[0]));
  }
  SUBCASE("fragments") {
    OpWindowConfig config;
    config.op.max_intervals = 8;
    Bench bench(4, config);
    bench.window.set_sizes(table({{65536, 4}}));
    const RingTraffic traffic({0, 0}, 4, 65536, 4, random);
    const auto segments = traffic.edge(0, 64);
    for (std::size_t i = 0; i < segments.size(); i += 2) bench.window.add(segments[i]);
    CHECK(bench.window.counters().shed_fragments == 1);
    CHECK(bench.window.summary({0, 0})->shed == ShedReason::kFragments);
  }
}

TEST_CASE("abandoned ops free their memory and take no more bytes") {
  SeededRandom random(15);
  Bench bench(4);
  bench.window.set_sizes(table({{8192, 4}}));
  std::vector<RingTraffic> ops;
  for (std::uint32_t tag = 0; tag < 4; ++tag) {
    ops.emplace_back(OpKey{0, tag}, 4, 8192, 4, random);
    bench.add(ops.back().edge(0));
  }
  bench.window.abandon_below(0, 3);
  CHECK(bench.window.open_count() == 1);
  CHECK(bench.window.memory().in_use_bytes == 8192);
  const auto late = bench.window.counters().late_segments;
  bench.add(ops[1].edge(1));
  CHECK(bench.window.counters().late_segments > late);
  bench.add(ops[3].edge(1));
  CHECK(bench.equals(ops[3]));
  CHECK_FALSE(bench.equals(ops[1]));
  CHECK(bench.window.missing({0, 1}, 8192) == std::vector<Interval>{{0, 8192}});
}

TEST_CASE("bound bytes outlive the window and go back to the pool") {
  SeededRandom random(16);
  const RingTraffic traffic({0, 0}, 3, 12000, 4, random);
  std::shared_ptr<const OpBytes> bytes;
  {
    Bench bench(3);
    bench.window.set_sizes(table({{12000, 4}}));
    bench.add(traffic.all());
    bytes = *bench.window.bind({0, 0}, 12000);
    CHECK(*bench.window.bind({0, 0}, 12000) == bytes);
    CHECK(bench.window.counters().ops_bound == 1);
    bench.window.abandon({0, 0});
    CHECK(bench.window.memory().in_use_bytes == 12288);
  }
  CHECK(std::memcmp(bytes->data(), traffic.result.data(), 12000) == 0);
}
