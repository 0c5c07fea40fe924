// Encapsulation: from a frame as the mirror delivers it to the packet that was mirrored.
//
// Purpose: mirrors wrap what they copy. This walk takes off VLAN tags (802.1Q, QinQ), GRE with Ethernet or IP inside,
// ERSPAN I, II and III, and VXLAN, in any nesting up to a fixed depth, and says what cannot be used: copies that the
// mirror cut, sampled headers, merged frames. A frame that is not wrapped costs one look at the IP header.
// Ownership: none; the packet is a view of the frame. Pure; any thread. Failure behaviour: a FrameDrop names the
// refusal. A tunnel that is not one of these is handed out as the packet that it is.
#pragma once

#include <cstdint>

#include "common/bytes.h"
#include "dataplane/ip_packet.h"

namespace gradtap::dataplane {

inline constexpr int kMaxVlanTags = 3;  // in a row
inline constexpr int kMaxTunnels = 4;   // around one packet
inline constexpr std::uint16_t kVxlanPort = 4789;
inline constexpr std::uint16_t kSflowPort = 6343;

struct MirroredPacket {
  IpPacket ip;
  std::uint8_t tunnels = 0;  // that were taken off
};

// kNone: `packet` is filled. wire_bytes 0 means unknown.
[[nodiscard]] FrameDrop find_packet(ByteSpan frame, std::uint32_t wire_bytes, ChecksumPolicy policy,
                                    MirroredPacket& packet);

}  // namespace gradtap::dataplane
