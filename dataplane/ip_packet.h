// IpPacket: one IPv4 or IPv6 packet inside a frame.
//
// Purpose: the bounds-checked walk over an IP header (and IPv6 extension headers) that TCP, RoCE and tunnels share.
// Bytes behind the packet's own length (padding, a frame check sequence) are cut. No allocation, no state, any thread.
// Failure behaviour: every packet is parsed or named by a FrameDrop; nothing in it is trusted.
#pragma once

#include <array>
#include <compare>
#include <cstddef>
#include <cstdint>
#include <string>
#include <string_view>

#include "common/bytes.h"
#include "common/error.h"
#include "dataplane/frame_drop.h"

namespace gradtap::dataplane {

// An IPv4 address is kept in its mapped form ::ffff:a.b.c.d.
struct IpAddress {
  std::array<std::uint8_t, 16> bytes{};
  [[nodiscard]] bool is_v4() const;
  [[nodiscard]] std::string text() const;
  friend auto operator<=>(const IpAddress&, const IpAddress&) = default;
};

[[nodiscard]] Result<IpAddress> parse_ip(std::string_view text);

enum class ChecksumPolicy : std::uint8_t {
  kRequired,  // a TCP checksum that does not verify drops the frame
  kOffload,   // not looked at: mirrors inside one machine see checksums that no card has filled in yet
};

inline constexpr std::uint16_t kEtherIpv4 = 0x0800;
inline constexpr std::uint16_t kEtherIpv6 = 0x86dd;
inline constexpr std::uint8_t kProtocolTcp = 6;
inline constexpr std::uint8_t kProtocolUdp = 17;
inline constexpr std::uint8_t kProtocolGre = 47;
inline constexpr std::size_t kUdpBytes = 8;

struct IpPacket {
  bool v6 = false;
  std::uint8_t protocol = 0;  // of the payload, behind extension headers
  ByteSpan header;            // without extension headers
  ByteSpan payload;
  [[nodiscard]] ByteSpan addresses() const { return v6 ? header.subspan(8, 32) : header.subspan(12, 8); }
  [[nodiscard]] IpAddress source() const;
  [[nodiscard]] IpAddress target() const;
};

// kNone: `packet` is filled. `bytes` begins at the IP header; `type` is the Ethernet type that announced it.
[[nodiscard]] FrameDrop parse_ip_packet(std::uint16_t type, ByteSpan bytes, ChecksumPolicy policy, IpPacket& packet);

// The one's complement sum of RFC 1071 over bytes, added to `start`, folded to 16 bits, in network byte order
// arithmetic: a valid checksummed range sums to 0xffff.
[[nodiscard]] std::uint16_t ones_complement_sum(ByteSpan bytes, std::uint64_t start = 0);

}  // namespace gradtap::dataplane
