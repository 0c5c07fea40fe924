// Frame parsing: from a mirrored frame to its TCP payload.
//
// Purpose: one bounds-checked walk over what the mirror put around the packet (encapsulation.h), IPv4 or IPv6 and TCP;
// the payload is a view into the frame. Trailing Ethernet padding is cut by the IP length. No allocation, no state, any
// thread. Failure behaviour: every frame is either parsed or named by a FrameDrop; nothing in it is trusted.
#pragma once

#include <cstdint>

#include "common/bytes.h"
#include "dataplane/frame_drop.h"
#include "dataplane/ip_packet.h"

namespace gradtap::dataplane {

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

[[nodiscard]] FrameDrop parse_tcp(const IpPacket& ip, ChecksumPolicy policy, FrameView& view);
// find_packet() and parse_tcp(). kNone: `view` is filled. Anything else: `view` is unspecified. wire_bytes 0 means
// unknown.
[[nodiscard]] FrameDrop parse_frame(ByteSpan bytes, std::uint32_t wire_bytes, ChecksumPolicy policy, FrameView& view);

}  // namespace gradtap::dataplane
