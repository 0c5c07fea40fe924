#include "dataplane/impairment.h"

#include <doctest/doctest.h>

#include "tests/unit/dataplane/decode_harness.h"

namespace gradtap::dataplane {
namespace {

using namespace testing;

std::vector<MemoryFrame> numbered(int count) {
  std::vector<MemoryFrame> frames;
  for (int i = 0; i < count; ++i) {
    FrameSpec spec;
    spec.sequence = static_cast<std::uint32_t>(i);
    spec.payload.assign(static_cast<std::size_t>(1 + i % 50), static_cast<std::uint8_t>(i));
    frames.push_back({make_frame(spec), 0});
  }
  return frames;
}

std::vector<std::uint32_t> sequences(const std::vector<MemoryFrame>& frames) {
  std::vector<std::uint32_t> result;
  for (const auto& frame : frames) {
    FrameView view;
    if (parse_frame(frame.bytes, 0, ChecksumPolicy::kOffload, view) == FrameDrop::kNone)
      result.push_back(view.sequence);
  }
  return result;
}

TEST_CASE("reproducible by seed; each kind does what it says and is counted (N12)") {
  const auto frames = numbered(2000);
  ImpairmentConfig config;
  config.drop_probability = 0.1;
  config.duplicate_probability = 0.1;
  config.reorder_probability = 0.1;
  Impairment a(config, 4), b(config, 4), c(config, 5);
  const auto first = sequences(a.apply(frames));
  CHECK(first == sequences(b.apply(frames)));
  CHECK(first != sequences(c.apply(frames)));
  CHECK(first.size() == 2000 - a.report().dropped + a.report().duplicated);
  CHECK(a.report().dropped > 120);
  CHECK(a.report().dropped < 280);
  CHECK(!std::ranges::is_sorted(first));
}

TEST_CASE("every k-th, in bursts") {
  ImpairmentConfig config;
  config.drop_every = 10;
  config.drop_burst = 3;
  Impairment injector(config, 1);
  const auto left = sequences(injector.apply(numbered(25)));
  // Lost: 9 10 11, 19 20 21 (counted from 0).
  CHECK(left == std::vector<std::uint32_t>{0, 1, 2, 3, 4, 5, 6, 7, 8, 12, 13, 14, 15, 16, 17, 18, 22, 23, 24});
}

TEST_CASE("a delayed frame comes at most so much later") {
  ImpairmentConfig config;
  config.reorder_probability = 0.3;
  config.reorder_distance = 8;
  Impairment injector(config, 1);
  const auto order = sequences(injector.apply(numbered(1000)));
  REQUIRE(order.size() == 1000);
  std::uint32_t highest = 0;
  for (const std::uint32_t sequence : order) {
    highest = std::max(highest, sequence);
    REQUIRE(highest - sequence <= 9);
  }
}

TEST_CASE("a flipped byte fails the checksum, unless it is made right again") {
  const auto frames = numbered(300);
  for (const bool fixed : {false, true}) {
    ImpairmentConfig config;
    config.flip_probability = 1;
    config.flip_fixes_checksum = fixed;
    Impairment injector(config, 9);
    const auto flipped = injector.apply(frames);
    CHECK(injector.report().flipped == 300);
    for (std::size_t i = 0; i < flipped.size(); ++i) {
      CHECK(flipped[i].bytes != frames[i].bytes);
      FrameView view;
      REQUIRE(parse_frame(flipped[i].bytes, 0, ChecksumPolicy::kRequired, view) ==
              (fixed ? FrameDrop::kNone : FrameDrop::kBadTcpChecksum));
    }
  }
}

TEST_CASE("VLAN tags on half of the frames change nothing else") {
  ImpairmentConfig config;
  config.vlan_half = true;
  Impairment injector(config, 1);
  const auto frames = numbered(100);
  const auto tagged = injector.apply(frames);
  CHECK(injector.report().tagged == 50);
  CHECK(sequences(tagged) == sequences(frames));
  CHECK(tagged[0].bytes.size() == frames[0].bytes.size() + 4);
}

}  // namespace
}  // namespace gradtap::dataplane
