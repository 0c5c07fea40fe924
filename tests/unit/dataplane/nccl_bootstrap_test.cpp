#include "dataplane/nccl_bootstrap.h"

#include <fstream>
#include <map>
#include <string>

#include <doctest/doctest.h>
#include <nlohmann/json.hpp>

#include "common/ids.h"
#include "dataplane/capture_file.h"
#include "tests/test_files.h"

namespace gradtap::dataplane {
namespace {

using nlohmann::json;

TEST_CASE("every queue pair exchange of the recorded captures, with communicator, channel, sender and receiver") {
  const std::string truth = gradtap::testing::capture_path("expected.json", "nccl_bootstrap");
  if (truth.empty()) return;
  const json known = json::parse(std::ifstream(truth));
  std::size_t named = 0;
  for (const json& capture : known["captures"]) {
    const std::string path = gradtap::testing::capture_path(capture["file"], "nccl_bootstrap");
    if (path.empty()) continue;
    CAPTURE(path);
    const auto file = CaptureFile::open(path);
    NcclBootstrap bootstrap;
    REQUIRE(file->each_record([&](const CaptureRecord& record) {
                  FrameView view;
                  if (parse_frame(record.bytes, record.wire_bytes, ChecksumPolicy::kOffload, view) == FrameDrop::kNone)
                    bootstrap.segment(view);
                })
                .has_value());
    std::map<std::pair<std::string, std::uint32_t>, NcclExchange> by_receiver;
    for (const NcclExchange& exchange : bootstrap.exchanges())
      by_receiver[{to_hex(exchange.receiver.gid.bytes), exchange.receiver.qp}] = exchange;
    CHECK(bootstrap.refused() == 0);
    std::map<std::string, std::uint32_t> ranks;
    for (const json& comm : capture["bootstrap"]["comms"]) ranks[comm["magic"]] = comm["nranks"];
    const json& expected = capture["bootstrap"]["ib_qp_exchanges"];
    REQUIRE(by_receiver.size() == expected.size());
    for (const json& exchange : expected) {
      const json &connector = exchange["connector"], &acceptor = exchange["acceptor"];
      const auto found = by_receiver.find({acceptor["gid"], acceptor["qpn0"]});
      REQUIRE(found != by_receiver.end());
      const NcclExchange& seen = found->second;
      CHECK(to_hex(seen.sender.gid.bytes) == connector["gid"].get<std::string>());
      CHECK(seen.sender.qp == connector["qpn0"].get<std::uint32_t>());
      CHECK(seen.sender.mtu_bytes == connector["mtu"].get<std::uint32_t>());
      CHECK(seen.sender.fifo_address == std::stoull(connector["fifo_addr"].get<std::string>(), nullptr, 16));
      CHECK(seen.sender.fifo_key == std::stoull(connector["fifo_rkey"].get<std::string>(), nullptr, 16));
      REQUIRE(seen.name.has_value());
      ++named;
      const std::uint32_t world = ranks.at(exchange["comm"]);
      CHECK(seen.name->comm == std::stoull(exchange["comm"].get<std::string>(), nullptr, 16));
      CHECK(seen.name->ranks == world);
      CHECK(seen.name->receiver == exchange["from_rank"].get<std::uint32_t>());
      CHECK(seen.name->sender == 1 - exchange["from_rank"].get<std::uint32_t>());
      CHECK(seen.name->ring == (exchange["tag"] == "0x101"));
      CHECK(seen.name->channel == exchange["channel"].get<std::uint32_t>());
    }
  }
  MESSAGE("exchanges named: " << named);
}

FrameView view_of(std::uint16_t from, std::uint16_t to, std::uint32_t sequence, ByteSpan payload,
                  std::uint8_t flags = 0) {
  FrameView view;
  view.source_port = from;
  view.target_port = to;
  view.sequence = sequence;
  view.flags = flags;
  view.payload = payload;
  return view;
}

TEST_CASE("memory is bounded, and streams of others say nothing") {
  NcclBootstrapConfig config;
  config.max_streams = 4;
  config.max_stream_bytes = 1000;
  NcclBootstrap bootstrap(config);
  const std::vector<std::uint8_t> noise(1400, 0x5a);
  for (std::uint16_t port = 1; port < 10; ++port)
    for (std::uint32_t at = 0; at < 100'000; at += 1400) bootstrap.segment(view_of(port, 1, at, noise));
  CHECK(bootstrap.refused() > 0);
  CHECK(bootstrap.exchanges().empty());
}

TEST_CASE("an exchange in pieces, out of order and with repetition, in either layout") {
  for (const std::size_t size : {kNcclQpInfoBytes, kNcclOldQpInfoBytes}) {
    std::vector<std::uint8_t> info(size, 0);
    info[5] = 2;
    info[8] = 0x34;
    info[9] = 0x12;
    info[size - 32] = 0xfe;
    info[size - 16] = 3;
    REQUIRE(read_nccl_qp_info(info).has_value());
    std::vector<std::uint8_t> stream{0x6c, 0x9d, 0x4b, 0xfc, 0xf2, 0xb9, 0x4a, 0x56, 4, 0, 0, 0};
    stream.insert(stream.end(), info.begin(), info.end());
    stream.insert(stream.end(), {1, 0, 0, 0});
    NcclBootstrap bootstrap;
    const std::uint32_t first = 0xffffff00;  // the sequence wraps on the way
    bootstrap.segment(view_of(1, 2, first - 1, {}, kTcpSyn));
    const ByteSpan bytes(stream);
    bootstrap.segment(view_of(1, 2, first + 400, bytes.subspan(400)));
    bootstrap.segment(view_of(1, 2, first + 400, bytes.subspan(400)));
    CHECK(bootstrap.exchanges().empty());
    bootstrap.segment(view_of(2, 1, 500, info));
    bootstrap.segment(view_of(1, 2, first, bytes.first(401)));
    REQUIRE(bootstrap.exchanges().size() == 1);
    CHECK(bootstrap.exchanges()[0].sender.qp == 0x1234);
    CHECK(bootstrap.exchanges()[0].receiver.mtu_bytes == 1024);
    CHECK(!bootstrap.exchanges()[0].name.has_value());
  }
}

}  // namespace
}  // namespace gradtap::dataplane
