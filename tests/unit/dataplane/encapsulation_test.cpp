// The wrapped frames are bytes that scapy 2.5 made of one TCP frame (layers IP, GRE, ERSPAN_I/II/III, VXLAN, Dot1Q,
// Dot1AD), so that their reading is checked against another implementation of the same formats.
#include "dataplane/encapsulation.h"

#include <array>
#include <string>
#include <string_view>
#include <vector>

#include <doctest/doctest.h>

#include "common/ids.h"
#include "dataplane/frame.h"
#include "tests/unit/dataplane/decode_harness.h"

namespace gradtap::dataplane {
namespace {

using Bytes = std::vector<std::uint8_t>;

struct Wrapped {
  const char* name;
  const char* hex;
  [[nodiscard]] Bytes bytes() const {
    const std::string_view text(hex);
    Bytes result(text.size() / 2);
    REQUIRE(from_hex(text, result.data(), result.size()));
    return result;
  }
};

// clang-format off
const std::array kWrapped = std::to_array<Wrapped>({
    {"plain",
     "02000000000102000000000208004500003000010000400666190a4d000b0a4d000a9c40138811223344556677885010"
     "2000195000006772616469656e74"},
    {"vlan",
     "0200000000030200000000048100000708004500003000010000400666190a4d000b0a4d000a9c401388112233445566"
     "778850102000195000006772616469656e74"},
    {"qinq",
     "02000000000302000000000488a800078100000808004500003000010000400666190a4d000b0a4d000a9c4013881122"
     "33445566778850102000195000006772616469656e74"},
    {"gre ethernet",
     "02000000000302000000000408004500005600010000402ff674c0000201c00002020000655802000000000102000000"
     "000208004500003000010000400666190a4d000b0a4d000a9c4013881122334455667788501020001950000067726164"
     "69656e74"},
    {"gre with key and checksum",
     "02000000000302000000000408004500005e00010000402ff66cc0000201c0000202a0006558036e0000000000070200"
     "0000000102000000000208004500003000010000400666190a4d000b0a4d000a9c401388112233445566778850102000"
     "195000006772616469656e74"},
    {"gre ip",
     "02000000000302000000000408004500004800010000402ff682c0000201c00002020000080045000030000100004006"
     "66190a4d000b0a4d000a9c401388112233445566778850102000195000006772616469656e74"},
    {"erspan 1",
     "02000000000302000000000408004500005600010000402ff674c0000201c0000202000088be02000000000102000000"
     "000208004500003000010000400666190a4d000b0a4d000a9c4013881122334455667788501020001950000067726164"
     "69656e74"},
    {"erspan 2",
     "02000000000302000000000408004500006200010000402ff668c0000201c0000202100088be00000005000300090000"
     "000002000000000102000000000208004500003000010000400666190a4d000b0a4d000a9c4013881122334455667788"
     "50102000195000006772616469656e74"},
    {"erspan 2 over ipv6",
     "02000000000302000000000486dd60000000004e2f4020010db800000000000000000000000120010db8000000000000"
     "000000000002100088be0000000500030009000000000200000000010200000000020800450000300001000040066619"
     "0a4d000b0a4d000a9c401388112233445566778850102000195000006772616469656e74"},
    {"erspan 3",
     "02000000000302000000000408004500006600010000402ff664c0000201c0000202100022eb00000005200300090000"
     "004d0000000002000000000102000000000208004500003000010000400666190a4d000b0a4d000a9c40138811223344"
     "5566778850102000195000006772616469656e74"},
    {"erspan 3 with options",
     "02000000000302000000000408004500006e00010000402ff65cc0000201c0000202100022eb00000005200300090000"
     "0000000000010c0000010000000202000000000102000000000208004500003000010000400666190a4d000b0a4d000a"
     "9c401388112233445566778850102000195000006772616469656e74"},
    {"vxlan",
     "020000000003020000000004080045000062000100004011f686c0000201c0000202c35012b5004e3f130c0000030000"
     "630002000000000102000000000208004500003000010000400666190a4d000b0a4d000a9c4013881122334455667788"
     "50102000195000006772616469656e74"},
    {"vxlan in vlan over ipv6",
     "0200000000030200000000048100000786dd60000000004e114020010db800000000000000000000000120010db80000"
     "00000000000000000002c35012b5004e67a20c0000030000630002000000000102000000000208004500003000010000"
     "400666190a4d000b0a4d000a9c401388112233445566778850102000195000006772616469656e74"},
});
// clang-format on

Bytes wrapped(std::string_view name) {
  for (const Wrapped& frame : kWrapped)
    if (frame.name == name) return frame.bytes();
  FAIL("no such frame");
  return {};
}

FrameDrop strip(const Bytes& frame, FrameView& view) {
  return parse_frame(frame, 0, ChecksumPolicy::kRequired, view);
}

FrameDrop drop_of(const Bytes& frame) {
  FrameView view;
  return strip(frame, view);
}

TEST_CASE("the same payload inside every encapsulation (N3)") {
  for (const Wrapped& frame : kWrapped) {
    CAPTURE(frame.name);
    FrameView view;
    Bytes bytes = frame.bytes();
    REQUIRE(strip(bytes, view) == FrameDrop::kNone);
    CHECK(view.source.text() == "10.77.0.11");
    CHECK(view.target.text() == "10.77.0.10");
    CHECK(view.source_port == 40000);
    CHECK(view.sequence == 0x11223344);
    CHECK(std::string(view.payload.begin(), view.payload.end()) == "gradient");
    MirroredPacket packet;
    REQUIRE(find_packet(bytes, 0, ChecksumPolicy::kRequired, packet) == FrameDrop::kNone);
    const bool bare = std::string_view(frame.name) == "plain" || std::string_view(frame.name) == "vlan" ||
                      std::string_view(frame.name) == "qinq";
    CHECK(packet.tunnels == (bare ? 0 : 1));
    // Every prefix is refused, none is read beyond its end.
    while (!bytes.empty()) {
      bytes.pop_back();
      bytes.shrink_to_fit();
      REQUIRE(strip(bytes, view) != FrameDrop::kNone);
    }
  }
}

TEST_CASE("what the mirror says of a copy is believed (N3)") {
  Bytes erspan2 = wrapped("erspan 2");
  constexpr std::size_t kHeader = 14 + 20 + 8;
  erspan2[kHeader + 2] |= 0x04;
  CHECK(drop_of(erspan2) == FrameDrop::kTruncated);
  const auto erspan3 = [](std::uint8_t bits) {
    Bytes frame = wrapped("erspan 3");
    frame[kHeader + 2] |= bits;
    return drop_of(frame);
  };
  CHECK(erspan3(0x04) == FrameDrop::kTruncated);
  CHECK(erspan3(1 << 3) == FrameDrop::kMalformed);
  CHECK(erspan3(2 << 3) == FrameDrop::kSupersized);
  CHECK(erspan3(3 << 3) == FrameDrop::kMalformed);
  Bytes other_type = wrapped("erspan 3");
  other_type[kHeader + 10] |= 3 << 2;
  CHECK(drop_of(other_type) == FrameDrop::kUnsupportedHeader);
}

TEST_CASE("a copy cut by the mirror shows by the inner length, though the outer lengths agree (N4)") {
  Bytes frame = wrapped("vxlan in vlan over ipv6");
  frame.resize(frame.size() - 4);
  frame[18 + 4 + 1] = static_cast<std::uint8_t>(frame[18 + 4 + 1] - 4);
  CHECK(drop_of(frame) == FrameDrop::kTruncated);
}

TEST_CASE("sampled headers, other tunnels, too many tunnels") {
  Bytes vxlan = wrapped("vxlan");
  constexpr std::size_t kPort = 14 + 20 + 2;
  Bytes sflow = vxlan;
  sflow[kPort] = 6343 >> 8;
  sflow[kPort + 1] = 6343 & 0xff;
  CHECK(drop_of(sflow) == FrameDrop::kSampled);
  Bytes plain_udp = vxlan;
  plain_udp[14 + 20 + 8] = 0;  // no network identifier
  CHECK(drop_of(plain_udp) == FrameDrop::kNotTcp);
  Bytes pptp = wrapped("gre ethernet");
  pptp[14 + 20 + 1] = 1;
  CHECK(drop_of(pptp) == FrameDrop::kNotTcp);
  Bytes routed = wrapped("gre ethernet");
  routed[14 + 20] = 0x40;
  CHECK(drop_of(routed) == FrameDrop::kUnsupportedHeader);

  // GRE around GRE around ... the frame; the outer header's checksum is the builder's own.
  Bytes nested = wrapped("plain");
  for (int tunnels = 1; tunnels <= kMaxTunnels + 1; ++tunnels) {
    Bytes outer{2, 0, 0, 0, 0, 3, 2, 0, 0, 0, 0, 4, 0x08, 0x00};
    Bytes ip{0x45, 0, 0, 0, 0, 0, 0, 0, 64, 47, 0, 0, 192, 0, 2, 1, 192, 0, 2, 2};
    const std::size_t total = 20 + 4 + nested.size();
    ip[2] = static_cast<std::uint8_t>(total >> 8);
    ip[3] = static_cast<std::uint8_t>(total);
    const std::uint16_t sum = testing::naive_checksum(ip);
    ip[10] = static_cast<std::uint8_t>(sum >> 8);
    ip[11] = static_cast<std::uint8_t>(sum);
    outer.insert(outer.end(), ip.begin(), ip.end());
    outer.insert(outer.end(), {0, 0, 0x65, 0x58});
    outer.insert(outer.end(), nested.begin(), nested.end());
    nested = outer;
    CHECK(drop_of(nested) == (tunnels <= kMaxTunnels ? FrameDrop::kNone : FrameDrop::kUnsupportedHeader));
  }
}

TEST_CASE("a merged frame without a length is named, and read where one machine's own mirror is declared") {
  for (const bool v6 : {false, true}) {
    testing::FrameSpec spec;
    spec.payload.assign(100, 7);
    if (v6) spec.source = "fd00::11", spec.target = "fd00::10";
    Bytes frame = testing::make_frame(spec);
    if (v6) {
      frame[14 + 4] = frame[14 + 5] = 0;
    } else {
      frame[14 + 2] = frame[14 + 3] = 0;
      frame[14 + 10] = frame[14 + 11] = 0;
      const std::uint16_t sum = testing::naive_checksum({frame.begin() + 14, frame.begin() + 34});
      frame[14 + 10] = static_cast<std::uint8_t>(sum >> 8);
      frame[14 + 11] = static_cast<std::uint8_t>(sum);
    }
    FrameView view;
    CHECK(parse_frame(frame, 0, ChecksumPolicy::kRequired, view) == FrameDrop::kSupersized);
    REQUIRE(parse_frame(frame, 0, ChecksumPolicy::kOffload, view) == FrameDrop::kNone);
    CHECK(view.payload.size() == 100);
  }
}

}  // namespace
}  // namespace gradtap::dataplane
