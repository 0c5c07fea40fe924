// Frames built by the test's own builder, with checksums from its own plain sum.
#include "dataplane/frame.h"

#include <doctest/doctest.h>

#include "tests/unit/dataplane/decode_harness.h"

namespace gradtap::dataplane {
namespace {

using namespace testing;

FrameSpec spec_with(std::size_t payload) {
  FrameSpec spec;
  spec.sequence = 0x11223344;
  spec.acknowledgement = 0x55667788;
  for (std::size_t i = 0; i < payload; ++i) spec.payload.push_back(static_cast<std::uint8_t>(i * 31 + 7));
  return spec;
}

FrameDrop parse_bytes(const std::vector<std::uint8_t>& bytes, FrameView& view,
                      ChecksumPolicy policy = ChecksumPolicy::kRequired, std::uint32_t wire = 0) {
  return parse_frame(bytes, wire, policy, view);
}

void check_parsed(const FrameSpec& spec) {
  const auto frame = make_frame(spec);
  FrameView view;
  REQUIRE(parse_bytes(frame, view) == FrameDrop::kNone);
  CHECK(view.source == parse_ip(spec.source).value());
  CHECK(view.target == parse_ip(spec.target).value());
  CHECK(view.source_port == spec.source_port);
  CHECK(view.target_port == spec.target_port);
  CHECK(view.sequence == spec.sequence);
  CHECK(view.acknowledgement == spec.acknowledgement);
  CHECK(view.flags == spec.flags);
  CHECK(std::vector<std::uint8_t>(view.payload.begin(), view.payload.end()) == spec.payload);
}

TEST_CASE("fields, payload of every length, padding is cut") {
  for (std::size_t length = 0; length < 70; ++length) {
    FrameSpec spec = spec_with(length);
    spec.padding = length < 6 ? 6 - length : length % 5;
    check_parsed(spec);
  }
  check_parsed(spec_with(1448));
  check_parsed(spec_with(8948));
}

TEST_CASE("options, VLAN tags, IPv6") {
  FrameSpec spec = spec_with(33);
  spec.ip_options = {1, 1, 1, 0};
  check_parsed(spec);
  spec.tcp_options = {1, 1, 8, 10, 0, 0, 0, 1, 0, 0, 0, 2};
  check_parsed(spec);
  spec.vlan_types = {0x8100};
  check_parsed(spec);
  spec.vlan_types = {0x88a8, 0x8100};
  check_parsed(spec);
  spec.vlan_types = {0x9100, 0x8100, 0x8100};
  check_parsed(spec);
  FrameView view;
  spec.vlan_types = {0x8100, 0x8100, 0x8100, 0x8100};
  CHECK(parse_bytes(make_frame(spec), view) == FrameDrop::kUnsupportedHeader);

  FrameSpec v6 = spec_with(99);
  v6.source = "fd00::11";
  v6.target = "fd00:1::ffff:10";
  check_parsed(v6);
  v6.ipv6_hop_by_hop = true;
  v6.vlan_types = {0x8100};
  check_parsed(v6);
  auto fragment = make_frame(v6);
  fragment[18 + 6] = 44;
  CHECK(parse_bytes(fragment, view) == FrameDrop::kFragment);
}

TEST_CASE("any single changed bit of addresses, TCP header or payload fails the checksum") {
  for (const bool v6 : {false, true}) {
    FrameSpec spec = spec_with(37);
    if (v6) spec.source = "fd00::11", spec.target = "fd00::10";
    const auto good = make_frame(spec);
    const std::size_t addresses = v6 ? 14 + 8 : 14 + 12;
    for (std::size_t at = addresses; at < good.size(); ++at) {
      for (int bit = 0; bit < 8; ++bit) {
        auto bad = good;
        bad[at] = static_cast<std::uint8_t>(bad[at] ^ 1 << bit);
        FrameView view;
        const FrameDrop drop = parse_bytes(bad, view);
        const bool found =
            drop == FrameDrop::kBadTcpChecksum || drop == FrameDrop::kBadIpChecksum || drop == FrameDrop::kMalformed;
        REQUIRE(found);
      }
    }
  }
  auto unfilled = make_frame(spec_with(10));
  unfilled[14 + 20 + 16] ^= 0x55;
  FrameView view;
  CHECK(parse_bytes(unfilled, view) == FrameDrop::kBadTcpChecksum);
  CHECK(parse_bytes(unfilled, view, ChecksumPolicy::kOffload) == FrameDrop::kNone);
  CHECK(view.payload.size() == 10);
}

TEST_CASE("refusals") {
  FrameView view;
  const auto good = make_frame(spec_with(100));
  CHECK(parse_bytes(good, view, ChecksumPolicy::kRequired, static_cast<std::uint32_t>(good.size() + 1)) ==
        FrameDrop::kTruncated);
  auto cut = good;
  cut.pop_back();
  CHECK(parse_bytes(cut, view) == FrameDrop::kTruncated);
  // Every prefix is refused, none is read beyond its end (the sanitizer build watches).
  for (std::size_t length = 0; length < good.size(); ++length) {
    const std::vector<std::uint8_t> prefix(good.begin(), good.begin() + static_cast<std::ptrdiff_t>(length));
    REQUIRE(parse_bytes(prefix, view) != FrameDrop::kNone);
  }
  auto arp = good;
  arp[12] = 0x08, arp[13] = 0x06;
  CHECK(parse_bytes(arp, view) == FrameDrop::kNotIp);
  auto bad_ip = good;
  bad_ip[14 + 8] ^= 1;
  CHECK(parse_bytes(bad_ip, view) == FrameDrop::kBadIpChecksum);
  const auto with_ip_byte = [&](std::size_t at, std::uint8_t value) {
    auto frame = good;
    frame[14 + at] = value;
    frame[14 + 10] = frame[14 + 11] = 0;
    const std::uint16_t sum = naive_checksum({frame.begin() + 14, frame.begin() + 34});
    frame[14 + 10] = static_cast<std::uint8_t>(sum >> 8);
    frame[14 + 11] = static_cast<std::uint8_t>(sum);
    return frame;
  };
  CHECK(parse_bytes(with_ip_byte(9, 17), view) == FrameDrop::kNotTcp);
  CHECK(parse_bytes(with_ip_byte(6, 0x20), view) == FrameDrop::kFragment);
  CHECK(parse_bytes(with_ip_byte(7, 0x10), view) == FrameDrop::kFragment);
  CHECK(parse_bytes(with_ip_byte(0, 0x44), view) == FrameDrop::kMalformed);
  auto short_header = good;
  short_header[14 + 20 + 12] = 0x40;
  CHECK(parse_bytes(short_header, view) == FrameDrop::kMalformed);
  auto long_header = make_frame(spec_with(4));
  long_header[14 + 20 + 12] = 0xf0;
  CHECK(parse_bytes(long_header, view) == FrameDrop::kMalformed);
}

TEST_CASE("the sum equals a plain one on all lengths and alignments") {
  SeededRandom random(3);
  std::vector<std::uint8_t> bytes(4096);
  for (auto& byte : bytes) byte = static_cast<std::uint8_t>(random.next());
  for (std::size_t length = 0; length < 200; ++length) {
    for (std::size_t offset = 0; offset < 9; ++offset) {
      const std::vector<std::uint8_t> part(bytes.begin() + static_cast<std::ptrdiff_t>(offset),
                                           bytes.begin() + static_cast<std::ptrdiff_t>(offset + length));
      const auto plain = static_cast<std::uint16_t>(~naive_checksum(part));
      const std::uint16_t sum = ones_complement_sum(ByteSpan(bytes).subspan(offset, length));
      // 0 and 0xffff are the same number in this arithmetic.
      REQUIRE(sum % 0xffff == plain % 0xffff);
    }
  }
  const std::vector<std::uint8_t> ones(65535, 0xff);
  CHECK(ones_complement_sum(ones) % 0xffff == static_cast<std::uint16_t>(~naive_checksum(ones)) % 0xffff);
}

TEST_CASE("captured frames: checksums that a card filled in verify, addresses print") {
  CHECK(parse_ip("10.0.0.1").value().text() == "10.0.0.1");
  CHECK(parse_ip("fd00::1").value().text() == "fd00::1");
  CHECK(parse_ip("::ffff:10.0.0.1").value() == parse_ip("10.0.0.1").value());
  CHECK(!parse_ip("10.0.0").has_value());
  CHECK(!parse_ip("").has_value());
}

}  // namespace
}  // namespace gradtap::dataplane
