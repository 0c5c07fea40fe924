// ICRC: the invariant CRC of a RoCEv2 packet (InfiniBand specification, annex A17).
//
// Purpose: the one check that covers payload and headers of a RoCE frame end to end; a frame whose ICRC does not verify
// is not believed. CRC-32 of Ethernet over 8 bytes of ones and the packet from its IP header on, with what routers
// may change (traffic class, flow label, hop limit; TOS, TTL, header checksum; UDP checksum; the byte of the BTH that
// holds FECN and BECN) set to ones. The four bytes behind the packet hold it, least significant byte first.
// Pure; any thread; no allocation. Failure behaviour: bytes that are no IP, UDP and BTH in full have no ICRC (nullopt).
#pragma once

#include <cstddef>
#include <cstdint>
#include <optional>

#include "common/bytes.h"

namespace gradtap::dataplane {

inline constexpr std::size_t kIcrcBytes = 4;

// `packet` begins with the IPv4 or IPv6 header (no extension headers) and ends before the ICRC.
[[nodiscard]] std::optional<std::uint32_t> icrc(ByteSpan packet);

// CRC-32 of Ethernet and zlib, continued: crc32(0, all) == crc32(crc32(0, head), tail).
[[nodiscard]] std::uint32_t crc32(std::uint32_t crc, ByteSpan bytes);

}  // namespace gradtap::dataplane
