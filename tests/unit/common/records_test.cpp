// metrics, event_ring, log.
#include <thread>
#include <vector>

#include <doctest/doctest.h>

#include "common/event_ring.h"
#include "common/log.h"
#include "common/metrics.h"

using namespace gradtap;

TEST_CASE("counters: one name one cell, no update lost between threads") {
  MetricsRegistry registry;
  Counter& frames = registry.counter("ingress.frames");
  for (int i = 0; i < 1000; ++i) (void)registry.counter("filler." + std::to_string(i));
  CHECK(&registry.counter("ingress.frames") == &frames);
  std::vector<std::thread> threads;
  for (int t = 0; t < 4; ++t)
    threads.emplace_back([&frames] {
      for (int i = 0; i < 50000; ++i) frames.add();
    });
  for (auto& thread : threads) thread.join();
  CHECK(frames.read() == 200000);
  Counter& depth = registry.counter("a.depth_max");
  depth.raise_to(5);
  depth.raise_to(3);
  const auto values = registry.snapshot();
  REQUIRE(values.size() == 1002);
  CHECK(values.front() == MetricValue{"a.depth_max", 5});
  CHECK(values.back() == MetricValue{"ingress.frames", 200000});
}

TEST_CASE("event ring: newest kept, oldest dropped and counted, numbers never reused") {
  ManualClock clock;
  EventRing ring(3, clock);
  CHECK(ring.since(0).empty());
  for (int i = 1; i <= 5; ++i) {
    clock.advance_ms(10);
    CHECK(ring.add(LogLevel::kInfo, "event " + std::to_string(i), {{"i", i}}) == static_cast<std::uint64_t>(i));
  }
  CHECK(ring.dropped() == 2);
  CHECK(ring.next_seq() == 6);
  const auto all = ring.since(0);
  REQUIRE(all.size() == 3);
  CHECK(all[0].seq == 3);
  CHECK(all[0].text == "event 3");
  CHECK(all[0].wall_ms == 30);
  CHECK(all[2].fields.at(0).value == "5");
  REQUIRE(ring.since(5).size() == 1);
  CHECK(ring.since(5)[0].text == "event 5");
  CHECK(ring.since(6).empty());
  CHECK(ring.since(~std::uint64_t{0}).empty());
  CHECK(ring.since(0, 2).size() == 2);
  ring.add(LogLevel::kError, std::string(5000, 'x'), std::vector<LogField>(40, LogField("k", std::string(5000, 'y'))));
  const auto cut = ring.since(6).at(0);
  CHECK(cut.text.size() == EventRing::kEventTextMax);
  CHECK(cut.fields.size() == EventRing::kEventFieldsMax);
  CHECK(cut.fields[0].value.size() == EventRing::kEventTextMax);
}

TEST_CASE("a log line cannot be forged by a value") {
  CHECK(log_text("step durable", {{"job", "gpt"}, {"lineage", 1}, {"step", 17U}, {"ok", true}}) ==
        "step durable job=gpt lineage=1 step=17 ok=true");
  CHECK(log_text("x", {{"name", "a b"}, {"empty", ""}, {"quote", "a\"b\\"}, {"line", "a\nb=1 c"}}) ==
        "x name=\"a b\" empty=\"\" quote=\"a\\\"b\\\\\" line=\"a\\x0ab=1 c\"");
  log_init(LogLevel::kError, "node %v");
  log_info("not shown {}", {{"k", "{}"}});
}
