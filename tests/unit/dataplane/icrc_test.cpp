// The ICRC against published check values and against a packet computed with Python's zlib.
#include "dataplane/icrc.h"

#include <string_view>
#include <vector>

#include <doctest/doctest.h>

using namespace gradtap;
using namespace gradtap::dataplane;

namespace {

// Of a packet whose last four bytes, the ICRC, are missing.
std::uint32_t icrc(ByteSpan packet, bool v6) {
  std::vector<std::uint8_t> whole(packet.begin(), packet.end());
  whole.resize(whole.size() + kIcrcBytes);
  IpPacket ip;
  ip.v6 = v6;
  ip.header = ByteSpan(whole).first(v6 ? 40 : 20);
  return icrc_of(ip, ByteSpan(whole).subspan(ip.header.size()));
}

std::vector<std::uint8_t> from_hex(std::string_view text) {
  std::vector<std::uint8_t> bytes;
  const auto digit = [](char c) { return static_cast<std::uint8_t>(c <= '9' ? c - '0' : c - 'a' + 10); };
  for (std::size_t i = 0; i + 1 < text.size(); i += 2)
    bytes.push_back(static_cast<std::uint8_t>(digit(text[i]) << 4 | digit(text[i + 1])));
  return bytes;
}

}  // namespace

namespace {

// Written by scapy 2.5's RoCE layer: RDMA WRITE ONLY from 10.1.2.3 to 10.1.2.200; the last four bytes are its ICRC.
constexpr std::string_view kIpv4Packet =
    "45680064123440003d1112210a0102030a0102c8d00d12b7005000000a40ffff0000012380fffffe112233445566778800abcdef000000"
    "280102030405060708090a0b0c0d0e0f101112131415161718191a1b1c1d1e1f2021222324252627284f2a2b4a";
// RDMA WRITE ONLY with immediate over IPv6; its ICRC by zlib.crc32 over the masked packet.
constexpr std::string_view kIpv6Packet =
    "61a0beef00541137fe800000000000000ac0ebfffe8c282cfe800000000000000e42a1fffe9f58f8c12312b7005400000b40ffff000004"
    "5680000007112233445566778800abcdef00000028280000000102030405060708090a0b0c0d0e0f101112131415161718191a1b1c1d1e"
    "1f202122232425262728";
constexpr std::uint32_t kIpv6Icrc = 0x8961e8b1;

}  // namespace

TEST_CASE("ICRC: a packet over IPv4 as scapy writes it") {
  const auto bytes = from_hex(kIpv4Packet);
  const ByteSpan packet = ByteSpan(bytes).first(bytes.size() - kIcrcBytes);
  CHECK(icrc(packet, false) == load_le<std::uint32_t>(bytes.data() + packet.size()));
}

TEST_CASE("ICRC: what routers change does not matter, everything else does") {
  for (const bool six : {false, true}) {
    CAPTURE(six);
    auto bytes = from_hex(six ? kIpv6Packet : kIpv4Packet);
    if (!six) bytes.resize(bytes.size() - kIcrcBytes);
    const std::uint32_t right = icrc(bytes, six);
    if (six) CHECK(right == kIpv6Icrc);
    const std::size_t ip_bytes = six ? 40 : 20;
    for (std::size_t i = 0; i < bytes.size(); ++i) {
      std::uint8_t variant_mask = 0;  // bits that may change
      if (six && i == 0) variant_mask = 0x0f;
      if (six && ((i >= 1 && i <= 3) || i == 7)) variant_mask = 0xff;
      if (!six && (i == 1 || i == 8 || i == 10 || i == 11)) variant_mask = 0xff;
      if (i == ip_bytes + 6 || i == ip_bytes + 7 || i == ip_bytes + 12) variant_mask = 0xff;
      for (unsigned bit = 0; bit < 8; ++bit) {
        auto changed = bytes;
        changed[i] = static_cast<std::uint8_t>(changed[i] ^ 1U << bit);
        CAPTURE(i);
        CAPTURE(bit);
        CHECK((icrc(changed, six) == right) == ((variant_mask >> bit & 1) != 0));
      }
    }
  }
}
