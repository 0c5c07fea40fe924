// The decoder against real jobs: every data message of every flow, with its bytes, must be what an independent decoder
// in Python (data/expected_messages.py) finds in the same file.
#include <cstdio>
#include <sstream>

#include <doctest/doctest.h>

#include "common/sha256.h"
#include "tests/unit/dataplane/decode_harness.h"

namespace gradtap::dataplane {
namespace {

using namespace testing;

struct Expected {
  std::uint64_t length = 0;
  std::string digest;
};

std::map<MessageName, Expected> expected_messages(const std::string& path) {
  const std::string command =
      "python3 '" GRADTAP_SOURCE_DIR "/tests/unit/dataplane/data/expected_messages.py' '" + path + "'";
  std::FILE* const pipe = popen(command.c_str(), "r");
  REQUIRE(pipe != nullptr);
  std::map<MessageName, Expected> result;
  char line[256];
  while (std::fgets(line, sizeof line, pipe) != nullptr) {
    std::istringstream in(line);
    int source = 0, target = 0, type = 0;
    std::uint32_t tag = 0, index = 0;
    Expected expected;
    in >> source >> target >> tag >> type >> index >> expected.length >> expected.digest;
    REQUIRE(in);
    result[{source, target, 0, tag, type, index}] = expected;
  }
  REQUIRE(pclose(pipe) == 0);
  return result;
}

void check_equal(const CollectingSink& sink, const std::map<MessageName, Expected>& expected) {
  CHECK(sink.conflicts == 0);
  CHECK(sink.provisional == 0);
  REQUIRE(sink.messages.size() == expected.size());
  for (const auto& [name, message] : sink.messages) {
    const auto found = expected.find(name);
    REQUIRE(found != expected.end());
    REQUIRE(message.length == found->second.length);
    REQUIRE(to_hex(sha256(message.bytes)) == found->second.digest);
  }
}

void check_capture(const std::string& name, std::uint64_t hellos) {
  const std::string path = capture_path(name, "capture_decode");
  if (path.empty()) return;
  const auto expected = expected_messages(path);
  REQUIRE(expected.size() > 300);
  const auto frames = read_capture(path);
  REQUIRE(frames.has_value());

  SUBCASE("one queue") {
    SingleQueue run(rig_config());
    run.run(*frames);
    check_equal(run.sink, expected);
    CHECK(run.decoder.counters().flow.hellos == hellos);
    CHECK(run.decoder.counters().flow.framing_errors == 0);
    CHECK(run.decoder.counters().flow.resyncs == 0);
    CHECK(run.decoder.counters().flow.notifications > expected.size());
    int proven = 0;
    for (const FlowReport& flow : run.decoder.report()) {
      if (flow.proven) {
        ++proven;
        CHECK(flow.comm == 0);
        CHECK(!flow.provisional);
      } else if (flow.key.source_port == 29500 || flow.key.target_port == 29500) {
        // Decided by content; a direction of a few bytes only never shows enough of it.
        const bool foreign = flow.state == FlowState::kForeign || flow.stream_bytes < 56;
        CHECK(foreign);
      }
    }
    CHECK(proven == 12);
  }
  SUBCASE("two queues, every frame on a random one") {
    ManualClock clock;
    FlowDirectory directory;
    REQUIRE(directory.set_endpoints(rig_endpoints(4)).has_value());
    GlooDecoder decoders[2] = {{rig_config(), directory, clock, 0}, {rig_config(), directory, clock, 1}};
    SeededRandom random(7);
    CollectingSink sink;
    std::uint64_t handed = 0;
    for (const Frame& frame : views(*frames)) {
      const auto queue = static_cast<std::uint16_t>(random.below(2));
      decoders[queue].decode(std::span(&frame, 1), sink);
      for (const auto& [owner, indices] : sink.handed) {
        REQUIRE(owner != queue);
        decoders[owner].decode(std::span(&frame, 1), indices, sink);
        ++handed;
      }
      sink.handed.clear();
    }
    CHECK(handed > frames->size() / 4);
    check_equal(sink, expected);
  }
}

TEST_CASE("capture gloo-n4 (torch 1.13): all messages and their bytes") {
  check_capture("gloo-n4/mon.pcap", 0);
}
TEST_CASE("capture gloo-torch2/f32 (torch 2.6, hello): all messages and their bytes") {
  check_capture("gloo-torch2/f32/mon.pcap", 6);
}
TEST_CASE("capture gloo-torch2/bf16: headers at offsets of 2 mod 4") {
  check_capture("gloo-torch2/bf16/mon.pcap", 6);
}

}  // namespace
}  // namespace gradtap::dataplane
