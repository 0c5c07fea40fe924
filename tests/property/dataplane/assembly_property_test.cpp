// Random traffic of interleaved ring all-reduces against a naive model that marks bytes one by one.
#include <cstring>
#include <map>
#include <vector>

#include <doctest/doctest.h>

#include "dataplane/gloo_ring.h"
#include "dataplane/op_window.h"
#include "tests/unit/dataplane/ring_traffic.h"

using namespace gradtap;
using namespace gradtap::dataplane;
using gradtap::test::RingTraffic;
using gradtap::test::shuffle;

namespace {

// A ring edge is a queue; edges are independent. Order within one edge is kept only roughly (reordering on the mirror).
std::vector<Segment> interleave(std::vector<std::vector<Segment>> queues, SeededRandom& random, bool reorder) {
  std::vector<Segment> out;
  std::vector<std::size_t> at(queues.size(), 0);
  for (;;) {
    std::vector<std::size_t> open;
    for (std::size_t q = 0; q < queues.size(); ++q)
      if (at[q] < queues[q].size()) open.push_back(q);
    if (open.empty()) break;
    const std::size_t q = open[random.below(open.size())];
    for (std::uint64_t n = 1 + random.below(6); n > 0 && at[q] < queues[q].size(); --n)
      out.push_back(queues[q][at[q]++]);
  }
  if (reorder)
    for (std::size_t i = 1; i < out.size(); ++i)
      if (random.below(10) == 0) std::swap(out[i], out[i - 1 - random.below(std::min<std::size_t>(i, 20))]);
  return out;
}

struct Scenario {
  std::uint32_t world;
  std::uint32_t element;
  std::vector<std::uint64_t> sizes;
  std::vector<RingTraffic> ops;
};

Scenario make(SeededRandom& random) {
  Scenario s;
  s.world = 2 + static_cast<std::uint32_t>(random.below(4));
  s.element = random.below(3) == 0 ? 2 : 4;
  // Sizes close to one another are the hard ones: equal message lengths for most of the op.
  const std::uint64_t base = 1 + random.below(random.below(3) == 0 ? 30 : 20000);
  for (int i = 0; i < 5; ++i) s.sizes.push_back((base + random.below(40)) * s.element);
  s.sizes.push_back((1 + random.below(60000)) * s.element);
  for (std::uint32_t tag = 0; tag < 6; ++tag) {
    // One op in four is foreign: no size of the table.
    const std::uint64_t bytes =
        random.below(4) == 0 ? (1 + random.below(20000)) * s.element : s.sizes[random.below(s.sizes.size())];
    s.ops.emplace_back(OpKey{0, tag}, s.world, bytes, s.element, random);
  }
  return s;
}

SizeTable table_of(const Scenario& s) {
  SizeTable table;
  for (const std::uint64_t bytes : s.sizes) REQUIRE(table.add({bytes, s.element}).has_value());
  return table;
}

}  // namespace

TEST_CASE("what is readable is right, what is complete is whole, what arrived is not lost") {
  for (std::uint64_t seed = 1; seed <= 400; ++seed) {
    CAPTURE(seed);
    SeededRandom random(seed);
    const Scenario s = make(random);
    const bool lossy = random.below(2) == 0;
    std::vector<std::vector<Segment>> queues;
    std::map<OpKey, std::vector<bool>> arrived;
    for (const RingTraffic& traffic : s.ops) {
      auto& marks = arrived[traffic.op];
      marks.assign(traffic.result.size(), false);
      for (std::uint32_t edge = 0; edge < s.world; ++edge) {
        if (lossy && random.below(4) == 0) continue;  // this port is not mirrored
        std::vector<Segment> queue;
        for (const Segment& segment : traffic.edge(edge, 1 + static_cast<std::uint32_t>(random.below(1448)))) {
          if (lossy && random.below(50) == 0) continue;
          queue.push_back(segment);
          if (random.below(30) == 0) queue.push_back(segment);
          const auto& message = traffic.by_edge[edge][segment.message_index];
          if (!message.final) continue;
          for (std::uint32_t i = 0; i < segment.bytes; ++i) marks[message.op_offset + segment.offset_bytes + i] = true;
        }
        queues.push_back(std::move(queue));
      }
    }
    const auto segments = interleave(std::move(queues), random, random.below(2) == 0);
    OpWindow window({}, std::make_shared<const GlooRing>(s.world));
    const std::size_t known_at = random.below(3) == 0 ? random.below(segments.size() + 1) : 0;
    for (std::size_t i = 0; i < segments.size(); ++i) {
      if (i == known_at) window.set_sizes(table_of(s));
      window.add(segments[i]);
    }
    if (known_at >= segments.size()) window.set_sizes(table_of(s));
    CHECK(window.counters().conflicts == 0);
    for (const RingTraffic& traffic : s.ops) {
      const std::uint64_t bytes = traffic.result.size();
      const bool in_table = std::count(s.sizes.begin(), s.sizes.end(), bytes) > 0;
      const auto summary = window.summary(traffic.op);
      if (!summary) continue;
      if (in_table) CHECK(std::count(summary->lengths.begin(), summary->lengths.end(), bytes) == 1);
      const bool all = std::count(arrived[traffic.op].begin(), arrived[traffic.op].end(), false) == 0;
      for (const std::uint64_t length : summary->lengths) {
        if (length == bytes) continue;
        // Another length is still possible. It must not be complete unless a foreign or truncated view forces nothing:
        // completeness needs every message of that length, and then the messages of the true one would contradict it.
        if (all) CHECK_FALSE((summary->complete && summary->lengths.size() == 1));
      }
      if (!in_table) continue;
      for (std::uint64_t at = 0; at < bytes; ++at) {
        std::uint32_t value = 0;
        if (at + 4 > bytes) break;
        const auto read = window.read(traffic.op, bytes, at);
        if (!read) continue;
        std::memcpy(&value, traffic.result.data() + at, 4);
        if (*read != value) FAIL("wrong byte at " << at << " of op " << traffic.op.tag);
      }
      const auto bound = window.bind(traffic.op, bytes);
      CHECK(bound.has_value() == all);
      if (bound) CHECK(std::memcmp((*bound)->data(), traffic.result.data(), bytes) == 0);
      if (!bound)
        for (const Interval& hole : window.missing(traffic.op, bytes))
          for (std::uint64_t at = hole.begin; at < hole.end; ++at)
            if (arrived[traffic.op][at]) FAIL("byte " << at << " arrived and is called missing");
    }
  }
}

TEST_CASE("provisional flows that entered anywhere never bring a wrong byte") {
  std::uint64_t proven = 0;
  for (std::uint64_t seed = 1; seed <= 400; ++seed) {
    CAPTURE(seed);
    SeededRandom random(seed * 77);
    const Scenario s = make(random);
    std::vector<std::vector<Segment>> queues;
    for (const RingTraffic& traffic : s.ops) {
      for (std::uint32_t edge = 0; edge < s.world; ++edge) {
        const auto& messages = traffic.by_edge[edge];
        const bool provisional = random.below(3) != 0;
        const auto skipped =
            provisional && random.below(2) == 0 ? static_cast<std::uint32_t>(random.below(messages.size() + 1)) : 0;
        std::vector<Segment> queue;
        for (const auto& message : messages)
          if (message.index >= skipped) traffic.cut(message, 1448, queue, provisional, skipped);
        queues.push_back(std::move(queue));
      }
    }
    OpWindow window({}, std::make_shared<const GlooRing>(s.world));
    window.set_sizes(table_of(s));
    for (const Segment& segment : interleave(std::move(queues), random, false)) window.add(segment);
    proven += window.counters().proven_flows;
    CHECK(window.counters().conflicts == 0);
    for (const RingTraffic& traffic : s.ops) {
      if (std::count(s.sizes.begin(), s.sizes.end(), traffic.result.size()) == 0) continue;
      const auto bound = window.bind(traffic.op, traffic.result.size());
      if (bound) CHECK(std::memcmp((*bound)->data(), traffic.result.data(), traffic.result.size()) == 0);
    }
  }
  CHECK(proven > 400);
}

TEST_CASE("in a small window memory stays inside its bounds and survivors are right") {
  for (std::uint64_t seed = 1; seed <= 100; ++seed) {
    CAPTURE(seed);
    SeededRandom random(seed * 1001);
    const Scenario s = make(random);
    OpWindowConfig config;
    config.window_bytes = 4096 * (1 + random.below(60));
    config.window_ops = 1 + static_cast<std::uint32_t>(random.below(5));
    config.limbo_bytes = 1 + random.below(400'000);
    config.closed_ops = static_cast<std::uint32_t>(random.below(4));
    config.op.max_intervals = 4 + static_cast<std::uint32_t>(random.below(40));
    OpWindow window(config, std::make_shared<const GlooRing>(s.world));
    std::vector<std::vector<Segment>> queues;
    for (const RingTraffic& traffic : s.ops)
      for (std::uint32_t edge = 0; edge < s.world; ++edge) queues.push_back(traffic.edge(edge));
    const auto segments = interleave(std::move(queues), random, true);
    const std::size_t known_at = random.below(segments.size());
    for (std::size_t i = 0; i < segments.size(); ++i) {
      if (i == known_at) window.set_sizes(table_of(s));
      window.add(segments[i]);
      if (window.limbo().used() > config.limbo_bytes || window.open_count() > config.window_ops ||
          window.memory().in_use_bytes + window.memory().idle_bytes > config.window_bytes)
        FAIL("a bound was crossed at segment " << i);
    }
    for (const RingTraffic& traffic : s.ops) {
      const auto bound = window.bind(traffic.op, traffic.result.size());
      if (bound) CHECK(std::memcmp((*bound)->data(), traffic.result.data(), traffic.result.size()) == 0);
    }
    (void)window.summaries_changed();
    (void)window.take_shed();
  }
}
