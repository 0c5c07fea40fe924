#include "dataplane/inspect.h"

#include <cstdio>
#include <filesystem>
#include <fstream>
#include <iterator>

#include <doctest/doctest.h>

#include "common/sha256.h"
#include "dataplane/gloo_ring.h"
#include "tests/unit/dataplane/ring_traffic.h"

using namespace gradtap;
using namespace gradtap::dataplane;
using gradtap::test::RingTraffic;

TEST_CASE("complete ops: length, hash and copies, in order of the tag, counted by size") {
  SeededRandom random(1);
  CaptureInspector inspector(InspectConfig{}, std::make_shared<const GlooRing>(4));
  std::vector<RingTraffic> ops;
  for (const std::uint32_t tag : {7U, 3U, 5U}) ops.emplace_back(OpKey{0, tag}, 4, tag == 5 ? 40000 : 19232, 4, random);
  for (const RingTraffic& traffic : ops)
    for (const Segment& segment : traffic.all()) inspector.add(segment);
  Segment broadcast;
  broadcast.op = {0, 4};
  broadcast.type = CollectiveType::kBroadcast;
  broadcast.target_rank = 2;
  broadcast.message_bytes = 28;
  inspector.add(broadcast);
  inspector.add(broadcast);
  const InspectReport report = inspector.report();
  REQUIRE(report.ops.size() == 3);
  const std::size_t order[] = {1, 2, 0};
  const std::uint32_t index[] = {1, 1, 2};
  for (std::size_t i = 0; i < 3; ++i) {
    const RingTraffic& traffic = ops[order[i]];
    CHECK(report.ops[i].op == traffic.op);
    CHECK(report.ops[i].bytes == traffic.result.size());
    CHECK(report.ops[i].complete);
    CHECK(report.ops[i].index == index[i]);
    CHECK(report.ops[i].sha256 == sha256(traffic.result));
    CHECK(report.ops[i].copies.max == 4);
  }
  REQUIRE(report.other_ops.size() == 1);
  CHECK(report.other_ops[0].messages == 2);
  CHECK(report.other_ops[0].bytes == 56);
  CHECK(collective_name(report.other_ops[0].type) == "broadcast");
  CHECK(report.flows.size() == 5);
}

TEST_CASE("one mirrored direction: the op is incomplete, its missing range is the one chunk") {
  SeededRandom random(2);
  CaptureInspector inspector(InspectConfig{}, std::make_shared<const GlooRing>(4));
  const RingTraffic traffic({0, 3}, 4, 8192, 4, random);
  for (const Segment& segment : traffic.edge(2)) inspector.add(segment);
  const InspectReport report = inspector.report();
  REQUIRE(report.ops.size() == 1);
  CHECK(report.ops[0].bytes == 8192);
  CHECK_FALSE(report.ops[0].complete);
  CHECK_FALSE(report.ops[0].sha256.has_value());
  CHECK(report.ops[0].missing == std::vector<Interval>{{2048, 4096}});
}

TEST_CASE("an op with holes on every edge takes the only length of the capture that fits") {
  SeededRandom random(3);
  CaptureInspector inspector(InspectConfig{}, std::make_shared<const GlooRing>(4));
  const RingTraffic whole({0, 2}, 4, 8192, 4, random), other({0, 3}, 4, 12288, 4, random);
  const RingTraffic holey({0, 1}, 4, 8192, 4, random), strange({0, 4}, 4, 9216, 4, random);
  for (const RingTraffic* traffic : {&holey, &strange})
    for (std::uint32_t edge = 0; edge < 4; ++edge)
      for (const auto& message : traffic->by_edge[edge]) {
        std::vector<Segment> segments;
        if (message.index % 5 != edge) traffic->cut(message, 1448, segments);
        for (const Segment& segment : segments) inspector.add(segment);
      }
  for (const RingTraffic* traffic : {&whole, &other})
    for (const Segment& segment : traffic->all()) inspector.add(segment);
  const InspectReport report = inspector.report();
  REQUIRE(report.ops.size() == 4);
  CHECK(report.ops[0].bytes == 8192);
  CHECK(report.ops[0].index == 1);
  CHECK(report.ops[1].index == 2);
  CHECK_FALSE(report.ops[3].bytes.has_value());
  CHECK(report.ops[3].index == 0);
}

TEST_CASE("a long capture is inspected in little memory") {
  SeededRandom random(4);
  InspectConfig config;
  config.window.limbo_bytes = 4 << 20;
  config.window.window_bytes = 1 << 20;
  CaptureInspector inspector(config, std::make_shared<const GlooRing>(3));
  std::vector<Sha256> hashes;
  for (std::uint32_t tag = 0; tag < 500; ++tag) {
    const RingTraffic traffic({0, tag}, 3, 30000, 4, random);
    hashes.push_back(sha256(traffic.result));
    for (const Segment& segment : traffic.all()) inspector.add(segment);
  }
  const InspectReport report = inspector.report();
  REQUIRE(report.ops.size() == 500);
  for (std::uint32_t tag = 0; tag < 500; ++tag) CHECK(report.ops[tag].sha256 == hashes[tag]);
  CHECK(report.counters.shed_limbo == 0);
}

TEST_CASE("dump: the bytes of every op in a file of its own") {
  SeededRandom random(5);
  const auto folder = std::filesystem::temp_directory_path() / "gradtap-inspect-test";
  std::filesystem::create_directories(folder);
  InspectConfig config;
  config.dump_dir = folder.string();
  const RingTraffic traffic({0, 3}, 2, 5000, 2, random);
  CaptureInspector inspector(config, std::make_shared<const GlooRing>(2));
  for (const Segment& segment : traffic.all()) inspector.add(segment);
  const InspectReport report = inspector.report();
  REQUIRE(report.ops.size() == 1);
  std::ifstream file(folder / report.ops[0].dump_file, std::ios::binary);
  const std::vector<std::uint8_t> bytes{std::istreambuf_iterator<char>(file), {}};
  CHECK(bytes == traffic.result);
  CHECK(report.dump_errors.empty());
  std::filesystem::remove_all(folder);

  CaptureInspector nowhere(config, std::make_shared<const GlooRing>(2));
  for (const Segment& segment : traffic.all()) nowhere.add(segment);
  CHECK(nowhere.report().dump_errors.size() == 1);
}
