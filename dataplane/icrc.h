// ICRC: the invariant check value at the end of every RoCEv2 packet.
//
// CRC-32 over eight bytes of ones, the IP header, the UDP header, the base transport header and what follows, with the
// fields that change on the way taken as ones: of IPv4 type of service, time to live and checksum; of IPv6 traffic
// class, flow label and hop limit; UDP's checksum; the congestion byte of the transport header. Pure; any thread.
#pragma once

#include <cstdint>

#include "dataplane/ip_packet.h"

namespace gradtap::dataplane {

inline constexpr std::size_t kIcrcBytes = 4;
inline constexpr std::size_t kBthBytes = 12;

// `udp` begins at the UDP header and ends behind the ICRC: at least kUdpBytes + kBthBytes + kIcrcBytes.
[[nodiscard]] std::uint32_t icrc_of(const IpPacket& ip, ByteSpan udp);
[[nodiscard]] bool icrc_verifies(const IpPacket& ip, ByteSpan udp);

}  // namespace gradtap::dataplane
