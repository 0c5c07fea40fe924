// The decoder around its flows: admission, checksums, handshakes, lineages, counters.
#include "dataplane/gloo_decoder.h"

#include <doctest/doctest.h>

#include "dataplane/impairment.h"
#include "tests/unit/dataplane/decode_harness.h"

namespace gradtap::dataplane {
namespace {

using namespace testing;

std::vector<std::uint8_t> op_stream(std::uint32_t first_tag, int ops, std::uint64_t length = 300) {
  std::vector<std::uint8_t> stream;
  for (int i = 0; i < ops; ++i) put_message(stream, 4, first_tag + static_cast<std::uint32_t>(i), 1, length);
  return stream;
}

struct Talk {
  FrameSpec spec;
  std::uint32_t next = 1000;

  MemoryFrame flags(std::uint8_t flags, std::uint32_t ack = 0) {
    spec.flags = flags;
    spec.sequence = next;
    spec.acknowledgement = ack;
    spec.payload.clear();
    next += (flags & (kTcpSyn | kTcpFin)) != 0 ? 1 : 0;
    return {make_frame(spec), 0};
  }
  std::vector<MemoryFrame> data(const std::vector<std::uint8_t>& stream, std::size_t size = 500) {
    std::vector<MemoryFrame> frames;
    for (std::size_t at = 0; at < stream.size(); at += size) {
      const std::size_t end = std::min(at + size, stream.size());
      spec.flags = kTcpAck;
      spec.sequence = next;
      spec.payload.assign(stream.begin() + static_cast<std::ptrdiff_t>(at),
                          stream.begin() + static_cast<std::ptrdiff_t>(end));
      next += static_cast<std::uint32_t>(end - at);
      frames.push_back({make_frame(spec), 0});
    }
    return frames;
  }
};

GlooDecoderConfig strict() {
  return {};
}

TEST_CASE("endpoints outside the job are counted and cost nothing else") {
  SingleQueue run(strict());
  Talk talk;
  talk.spec.source = "10.77.0.99";
  run.run(talk.data(op_stream(1, 3)));
  talk.spec.source = "10.77.0.10";  // to itself
  run.run(talk.data(op_stream(1, 3)));
  CHECK(run.decoder.counters().foreign_endpoint == 6);
  CHECK(run.sink.messages.empty());
  CHECK(run.directory.connections() == 0);
}

TEST_CASE("a changed byte: dropped under required, and the message has a hole; a right copy fills it") {
  SingleQueue run(strict());
  Talk talk;
  std::vector<MemoryFrame> frames{talk.flags(kTcpSyn)};
  for (auto& frame : talk.data(op_stream(1, 3))) frames.push_back(std::move(frame));
  auto bad = frames;
  bad[2].bytes.back() ^= 1;
  run.run(bad);
  CHECK(run.decoder.counters().drops[static_cast<std::size_t>(FrameDrop::kBadTcpChecksum)] == 1);
  const auto incomplete = [&] {
    return std::ranges::count_if(run.sink.messages, [](const auto& entry) {
      return !std::ranges::all_of(entry.second.seen, [](bool b) { return b; });
    });
  };
  const bool hole = incomplete() > 0 || run.sink.messages.size() < 3;
  CHECK(hole);
  run.run({frames[2]});
  CHECK(incomplete() == 0);
  CHECK(run.sink.messages.size() == 3);
  CHECK(run.sink.conflicts == 0);
}

TEST_CASE("a frame that is longer on the wire than captured is never used (N4)") {
  SingleQueue run(strict());
  Talk talk;
  auto frames = talk.data(op_stream(1, 1));
  frames[0].wire_bytes = static_cast<std::uint32_t>(frames[0].bytes.size() + 1);
  run.run(frames);
  auto cut = talk.data(op_stream(2, 1));
  for (int i = 0; i < 10; ++i) cut[0].bytes.pop_back();
  run.run(cut);
  CHECK(run.decoder.counters().drops[static_cast<std::size_t>(FrameDrop::kTruncated)] == 2);
  CHECK(run.sink.messages.empty());
}

TEST_CASE("the answer to a SYN anchors the other side too") {
  SingleQueue run(strict());
  Talk client;
  Talk server;
  server.spec.source = client.spec.target;
  server.spec.target = client.spec.source;
  server.spec.source_port = client.spec.target_port;
  server.spec.target_port = client.spec.source_port;
  server.next = 77;
  client.next += 1;  // its SYN was lost on the mirror
  run.run({server.flags(kTcpSyn | kTcpAck, client.next)});
  run.run(client.data(op_stream(1, 2)));
  run.run(server.data(op_stream(1, 2)));
  CHECK(run.sink.messages.size() == 4);
  CHECK(run.sink.provisional == 0);
  for (const FlowReport& flow : run.decoder.report()) CHECK(!flow.provisional);
}

TEST_CASE("a 4-tuple used again is another connection with its own comm") {
  SingleQueue run(strict());
  Talk talk;
  run.run({talk.flags(kTcpSyn)});
  run.run(talk.data(op_stream(1, 2)));
  run.run({talk.flags(kTcpFin | kTcpAck)});
  CHECK(run.decoder.report()[0].state == FlowState::kClosed);
  talk.next = 0x80000000U;
  run.run({talk.flags(kTcpSyn)});
  run.run(talk.data(op_stream(1, 2)));
  CHECK(run.decoder.counters().renewed_connections == 1);
  CHECK(run.sink.messages.contains({1, 0, 0, 1, 4, 0}));
  CHECK(run.sink.messages.contains({1, 0, 1, 1, 4, 0}));
  CHECK(run.sink.messages.size() == 4);
  CHECK(run.decoder.report()[0].identity.flow == 2);
}

TEST_CASE("reset drops the flows of the old lineage") {
  SingleQueue run(strict());
  Talk old;
  run.run({old.flags(kTcpSyn)});
  run.run(old.data(op_stream(1, 2)));
  const std::uint32_t mark = run.directory.next_flow();
  Talk fresh;
  fresh.spec.source_port = 41000;
  run.run({fresh.flags(kTcpSyn)});
  run.run(fresh.data(op_stream(1, 1)));
  run.directory.reset(mark);
  run.run(fresh.data(op_stream(2, 1)));
  const auto report = run.decoder.report();
  REQUIRE(report.size() == 2);
  CHECK(report[0].key.source_port == 41000);
  CHECK(report[0].comm == 1);
  CHECK(run.sink.provisional == 0);
}

TEST_CASE("op_closed and forget reach the flow, tick and flush the waiting bytes") {
  GlooDecoderConfig config;
  config.flow.quiescent_tags = 1;
  SingleQueue run(config);
  Talk talk;
  (void)talk.data(op_stream(1, 1, 301));
  run.run(talk.data(op_stream(5, 4)));  // in mid-stream
  CHECK(run.decoder.waiting_bytes() == 0);
  CHECK(run.decoder.report()[0].provisional);
  run.decoder.op_closed(0, 6, true);
  CHECK(!run.decoder.report()[0].provisional);
  run.run(talk.data(op_stream(9, 1)));
  CHECK(run.sink.messages.contains({1, 0, 0, 9, 4, 0}));
  CHECK(!run.sink.messages.at({1, 0, 0, 9, 4, 0}).provisional);
  run.decoder.forget_tags_below(0, 20);
  run.run(talk.data(op_stream(10, 1)));
  CHECK(run.decoder.counters().flow.unplaceable_messages == 1);

  auto later = talk.data(op_stream(21, 6), 100);
  later.erase(later.begin());
  run.run(later);
  CHECK(run.decoder.waiting_bytes() > 0);
  run.decoder.flush_holes(run.sink);
  CHECK(run.decoder.waiting_bytes() == 0);
  CHECK(run.sink.messages.contains({1, 0, 0, 26, 4, 0}));
}

TEST_CASE("tables are bounded") {
  GlooDecoderConfig config;
  config.max_connections = 3;
  SingleQueue run(config);
  for (std::uint16_t port = 1; port <= 5; ++port) {
    Talk talk;
    talk.spec.source_port = port;
    run.run({talk.flags(kTcpSyn)});
  }
  CHECK(run.decoder.counters().refused_connections == 2);
  CHECK(run.decoder.report().size() == 6);
}

TEST_CASE("random bytes as frames are all counted") {
  SingleQueue run(strict());
  SeededRandom random(5);
  std::vector<MemoryFrame> frames(2000);
  for (auto& frame : frames) {
    frame.bytes.resize(random.below(200));
    for (auto& byte : frame.bytes) byte = static_cast<std::uint8_t>(random.next());
  }
  run.run(frames);
  std::uint64_t drops = 0;
  for (const std::uint64_t count : run.decoder.counters().drops) drops += count;
  CHECK(drops == 2000);
  CHECK(run.decoder.counters().frames == 2000);
}

}  // namespace
}  // namespace gradtap::dataplane
