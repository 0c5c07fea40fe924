// Frame parsing: Ethernet to TCP payload.
//
// Purpose: one bounds-checked walk over Ethernet, up to three VLAN tags, IPv4 or IPv6 and TCP; the payload is a view
// into the frame. Trailing Ethernet padding is cut by the IP length. No allocation, no state, any thread.
// Failure behaviour: every frame is either parsed or named by a FrameDrop; nothing in it is trusted.
#pragma once

#include <array>
#include <compare>
#include <cstddef>
#include <cstdint>
#include <string>
#include <string_view>

#include "common/bytes.h"
#include "common/error.h"

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

enum class FrameDrop : std::uint8_t {
  kNone = 0,
  kNotIp,
  kNotTcp,
  kFragment,
  kTruncated,  // the IP length (or the wire length) exceeds the captured bytes
  kMalformed,
  kUnsupportedHeader,  // an IPv6 extension header, or a depth of headers, that is not walked
  kBadIpChecksum,
  kBadTcpChecksum,
  kCount,
};
inline constexpr std::size_t kFrameDropCount = static_cast<std::size_t>(FrameDrop::kCount);
[[nodiscard]] std::string_view frame_drop_name(FrameDrop drop);

inline constexpr std::uint8_t kTcpFin = 0x01;
inline constexpr std::uint8_t kTcpSyn = 0x02;
inline constexpr std::uint8_t kTcpRst = 0x04;
inline constexpr std::uint8_t kTcpAck = 0x10;

struct FrameView {
  IpAddress source;
  IpAddress target;
  std::uint16_t source_port = 0;
  std::uint16_t target_port = 0;
  std::uint32_t sequence = 0;
  std::uint32_t acknowledgement = 0;
  std::uint8_t flags = 0;
  ByteSpan payload;
};

// kNone: `view` is filled. Anything else: `view` is unspecified. wire_bytes 0 means unknown.
[[nodiscard]] FrameDrop parse_frame(ByteSpan bytes, std::uint32_t wire_bytes, ChecksumPolicy policy, FrameView& view);

// The one's complement sum of RFC 1071 over bytes, added to `start`, folded to 16 bits, in network byte order
// arithmetic: a valid checksummed range sums to 0xffff.
[[nodiscard]] std::uint16_t ones_complement_sum(ByteSpan bytes, std::uint64_t start = 0);

}  // namespace gradtap::dataplane
