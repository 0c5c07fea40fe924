#include "dataplane/roce_frame.h"

#include <fstream>
#include <map>
#include <string>
#include <vector>

#include <doctest/doctest.h>
#include <nlohmann/json.hpp>

#include "common/ids.h"
#include "common/random.h"
#include "dataplane/capture_file.h"
#include "dataplane/crc32.h"
#include "dataplane/encapsulation.h"
#include "tests/test_files.h"

namespace gradtap::dataplane {
namespace {

using Bytes = std::vector<std::uint8_t>;

Bytes bytes_of(std::string_view hex) {
  Bytes bytes(hex.size() / 2);
  REQUIRE(from_hex(hex, bytes.data(), bytes.size()));
  return bytes;
}

// Made by scapy 2.5 (layer BTH of its RoCE contribution, which computes the ICRC of IPv4): a write of 64 bytes with
// congestion bits, type of service and time to live set, and an acknowledgement.
constexpr std::string_view kScapyWrite =
    "02000000000102000000000208004562007c123440001111d2c5c000020bc000020ac6e112b70068f67e0a40ffff8012"
    "345680abcdef112233445566778899aabbcc00000040000102030405060708090a0b0c0d0e0f10111213141516171819"
    "1a1b1c1d1e1f202122232425262728292a2b2c2d2e2f303132333435363738393a3b3c3d3e3f4e550447";
constexpr std::string_view kScapyAck =
    "020000000001020000000002080045020030000100004011f6a4c000020bc000020ac6e112b7001cff431100ffff0000"
    "00070000000900000005c2c2ceeb";

FrameDrop parse_roce_bytes(const Bytes& bytes, RoceFrame& frame, IcrcPolicy policy = IcrcPolicy::kRequired) {
  MirroredPacket packet;
  if (const FrameDrop drop = find_packet(bytes, 0, ChecksumPolicy::kRequired, packet); drop != FrameDrop::kNone)
    return drop;
  return parse_roce(packet.ip, policy, frame);
}

TEST_CASE(
    "CRC-32: the check value of the standard, tables equal folding of both widths at every length and alignment") {
  const std::string_view check = "123456789";
  const ByteSpan digits(reinterpret_cast<const std::uint8_t*>(check.data()), check.size());
  CHECK(~crc32_update(kCrc32Start, digits) == 0xcbf43926);
  SeededRandom random(4);
  Bytes bytes(4500);
  for (auto& byte : bytes) byte = static_cast<std::uint8_t>(random.next());
  // Bit by bit, written apart.
  const auto plain = [](std::uint32_t state, ByteSpan of) {
    for (const std::uint8_t byte : of) {
      state ^= byte;
      for (int bit = 0; bit < 8; ++bit) state = (state >> 1) ^ (0xedb88320U & (0U - (state & 1)));
    }
    return state;
  };
  for (std::size_t length = 0; length < 300; ++length) {
    const ByteSpan part = ByteSpan(bytes).subspan(length % 17, length);
    const std::uint32_t expected = plain(0x12345678, part);
    REQUIRE(crc32_update(0x12345678, part) == expected);
    for (const Crc32Way way : {Crc32Way::kTables, Crc32Way::kFolding, Crc32Way::kWideFolding})
      REQUIRE(crc32_update_by(way, 0x12345678, part).value_or(expected) == expected);
  }
  REQUIRE(crc32_update_by(Crc32Way::kTables, kCrc32Start, digits));
  for (const std::size_t length : {1024UL, 1087UL, 4096UL, 4111UL, 4400UL}) {
    const ByteSpan part = ByteSpan(bytes).first(length);
    const std::uint32_t expected = plain(kCrc32Start, part);
    REQUIRE(crc32_update(kCrc32Start, part) == expected);
    for (const Crc32Way way : {Crc32Way::kTables, Crc32Way::kFolding, Crc32Way::kWideFolding})
      REQUIRE(crc32_update_by(way, kCrc32Start, part).value_or(expected) == expected);
  }
}

TEST_CASE("scapy's IPv4 packets: fields and ICRC; masked fields may change, others not") {
  const Bytes write = bytes_of(kScapyWrite);
  RoceFrame frame;
  REQUIRE(parse_roce_bytes(write, frame) == FrameDrop::kNone);
  CHECK(frame.source.text() == "192.0.2.11");
  CHECK(frame.target.text() == "192.0.2.10");
  CHECK(frame.source_port == 50913);
  CHECK(frame.meaning.kind == RoceKind::kWrite);
  CHECK(frame.meaning.begins);
  CHECK(frame.meaning.ends);
  CHECK(!frame.meaning.immediate);
  CHECK(frame.target_qp == 0x123456);
  CHECK(frame.psn == 0xabcdef);
  CHECK(frame.wants_acknowledgement);
  CHECK(frame.address == 0x1122334455667788);
  CHECK(frame.key == 0x99aabbcc);
  CHECK(frame.dma_bytes == 64);
  REQUIRE(frame.payload.size() == 64);
  CHECK(frame.payload[63] == 63);
  for (std::size_t at = 14; at < write.size(); ++at) {
    for (int bit = 0; bit < 8; ++bit) {
      Bytes changed = write;
      changed[at] = static_cast<std::uint8_t>(changed[at] ^ 1 << bit);
      const std::size_t in_ip = at - 14;
      const bool masked =
          in_ip == 1 || in_ip == 8 || in_ip == 10 || in_ip == 11 || in_ip == 26 || in_ip == 27 || in_ip == 32;
      MirroredPacket packet;
      // The header's own checksum is looked at first, so it is left out here.
      packet.ip = {false, kProtocolUdp, ByteSpan(changed).subspan(14, 20), ByteSpan(changed).subspan(34)};
      const FrameDrop drop = parse_roce(packet.ip, IcrcPolicy::kRequired, frame);
      REQUIRE((drop == FrameDrop::kNone) == masked);
    }
  }
  const Bytes ack = bytes_of(kScapyAck);
  REQUIRE(parse_roce_bytes(ack, frame) == FrameDrop::kNone);
  CHECK(frame.meaning.kind == RoceKind::kAcknowledgement);
  CHECK(frame.is_ack());
  CHECK(frame.sequence == 5);
  CHECK(frame.psn == 9);
}

TEST_CASE("hostile packets are refused by name, at every length") {
  for (const std::string_view text : {kScapyWrite, kScapyAck}) {
    Bytes bytes = bytes_of(text);
    RoceFrame frame;
    while (!bytes.empty()) {
      bytes.pop_back();
      bytes.shrink_to_fit();
      REQUIRE(parse_roce_bytes(bytes, frame, IcrcPolicy::kIgnored) != FrameDrop::kNone);
    }
  }
  const auto with = [](std::size_t at, std::uint8_t value) {
    Bytes bytes = bytes_of(kScapyAck);
    bytes[at] = value;
    RoceFrame frame;
    return parse_roce_bytes(bytes, frame, IcrcPolicy::kIgnored);
  };
  constexpr std::size_t kUdp = 34, kBth = 42;
  CHECK(with(kUdp + 3, 0) == FrameDrop::kNotRoce);
  CHECK(with(kUdp + 5, 23) == FrameDrop::kNotRoce);              // UDP length below the headers
  CHECK(with(kUdp + 5, 29) == FrameDrop::kNotRoce);              // and beyond the packet
  CHECK(with(kBth + 1, 0x01) == FrameDrop::kUnsupportedHeader);  // transport version
  CHECK(with(kBth + 1, 0x10) == FrameDrop::kMalformed);          // pad without payload
  CHECK(with(kBth, 0x0a) == FrameDrop::kMalformed);              // a write without room for its RETH
}

TEST_CASE("source port rule: pairs known from captures") {
  CHECK(roce_source_port(1820, 2102) == 57282);
  CHECK(roce_source_port(2104, 1823) == 50913);
  CHECK(roce_source_port(906, 713) == 56189);
  CHECK(roce_source_port(1299, 3225) == 60519);
}

TEST_CASE("every frame of the recorded captures: RoCE frames, opcodes and ICRC as known") {
  const std::string truth = gradtap::testing::capture_path("expected.json", "roce_frame");
  if (truth.empty()) return;
  const auto known = nlohmann::json::parse(std::ifstream(truth));
  REQUIRE(known["captures"].size() == 5);
  for (const auto& capture : known["captures"]) {
    const std::string path = gradtap::testing::capture_path(capture["file"], "roce_frame");
    if (path.empty()) continue;
    CAPTURE(path);
    const auto file = CaptureFile::open(path);
    auto walker = file->walk();
    CaptureRecord record;
    std::map<std::uint8_t, std::pair<std::uint64_t, std::uint64_t>> seen;  // opcode -> good, bad
    while (walker->next(record).value()) {
      MirroredPacket packet;
      if (find_packet(record.bytes, record.wire_bytes, ChecksumPolicy::kRequired, packet) != FrameDrop::kNone) continue;
      const ByteSpan udp = roce_datagram(packet.ip);
      if (udp.empty()) continue;
      RoceFrame frame;
      const FrameDrop drop = parse_roce(packet.ip, IcrcPolicy::kRequired, frame);
      REQUIRE((drop == FrameDrop::kNone || drop == FrameDrop::kBadIcrc));
      auto& counts = seen[udp[kUdpBytes]];
      ++(drop == FrameDrop::kNone ? counts.first : counts.second);
    }
    const auto& by_opcode = capture["icrc"]["by_opcode"];
    CHECK(seen.size() == by_opcode.size());
    for (const auto& [name, counts] : by_opcode.items()) {
      CAPTURE(name);
      const auto code = static_cast<std::uint8_t>(std::stoul(name.substr(2, 2), nullptr, 16));
      CHECK(seen[code].first == counts["ok"].get<std::uint64_t>());
      CHECK(seen[code].second == counts["bad"].get<std::uint64_t>());
    }
  }
}

}  // namespace
}  // namespace gradtap::dataplane
