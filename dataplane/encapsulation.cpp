#include "dataplane/encapsulation.h"

namespace gradtap::dataplane {
namespace {

constexpr std::size_t kEthernetBytes = 14;
constexpr std::uint16_t kEtherEthernet = 0x6558;  // transparent bridging: Ethernet inside GRE
constexpr std::uint16_t kErspan1And2 = 0x88be;
constexpr std::uint16_t kErspan3 = 0x22eb;
constexpr std::size_t kErspan2Bytes = 8;
constexpr std::size_t kErspan3Bytes = 12;
constexpr std::size_t kErspan3OptionBytes = 8;
constexpr std::size_t kVxlanBytes = 8;

// What a tunnel carries: bytes that begin at an Ethernet header (type 0) or at the header of `type`.
struct Inside {
  std::uint16_t type = 0;
  ByteSpan bytes;
};

bool is_vlan(std::uint16_t type) {
  return type == 0x8100 || type == 0x88a8 || type == 0x9100;
}

FrameDrop strip_ethernet(Inside& inside) {
  const ByteSpan bytes = inside.bytes;
  if (bytes.size() < kEthernetBytes) return FrameDrop::kMalformed;
  std::size_t offset = kEthernetBytes;
  std::uint16_t type = load_be<std::uint16_t>(&bytes[12]);
  for (int tags = 0; is_vlan(type); ++tags) {
    if (tags == kMaxVlanTags) return FrameDrop::kUnsupportedHeader;
    if (bytes.size() < offset + 4) return FrameDrop::kMalformed;
    type = load_be<std::uint16_t>(&bytes[offset + 2]);
    offset += 4;
  }
  inside = {type, bytes.subspan(offset)};
  return FrameDrop::kNone;
}

// The second and third 16-bit word of both headers: class of service, what the mirror knows of the frame, truncation.
constexpr std::uint8_t kErspanTruncated = 0x04;  // in byte 2

FrameDrop strip_erspan2(Inside& inside) {
  if (inside.bytes.size() < kErspan2Bytes) return FrameDrop::kTruncated;
  if ((inside.bytes[2] & kErspanTruncated) != 0) return FrameDrop::kTruncated;
  inside = {0, inside.bytes.subspan(kErspan2Bytes)};
  return FrameDrop::kNone;
}

FrameDrop strip_erspan3(Inside& inside) {
  const ByteSpan bytes = inside.bytes;
  if (bytes.size() < kErspan3Bytes) return FrameDrop::kTruncated;
  if ((bytes[2] & kErspanTruncated) != 0) return FrameDrop::kTruncated;
  const int integrity = bytes[2] >> 3 & 3;  // 0 good, 1 short, 2 oversized, 3 damaged
  if (integrity == 1 || integrity == 3) return FrameDrop::kMalformed;
  if (integrity == 2) return FrameDrop::kSupersized;
  const std::size_t header = kErspan3Bytes + ((bytes[11] & 1) != 0 ? kErspan3OptionBytes : 0);
  if (header > bytes.size()) return FrameDrop::kTruncated;
  const int frame_type = bytes[10] >> 2 & 0x1f;  // 0 Ethernet, 2 IP
  const ByteSpan rest = bytes.subspan(header);
  if (frame_type == 0) {
    inside = {0, rest};
  } else if (frame_type == 2 && !rest.empty()) {
    inside = {rest[0] >> 4 == 6 ? kEtherIpv6 : kEtherIpv4, rest};
  } else {
    return FrameDrop::kUnsupportedHeader;
  }
  return FrameDrop::kNone;
}

// Whether the payload of `packet` is a tunnel that is known; then `inside` is what it carries, or the drop says why
// not.
bool open_gre(ByteSpan bytes, FrameDrop& drop, Inside& inside) {
  if (bytes.size() < 4) {
    drop = FrameDrop::kMalformed;
    return true;
  }
  constexpr std::uint8_t kChecksum = 0x80, kRouting = 0x40, kKey = 0x20, kSequence = 0x10;
  const std::uint8_t flags = bytes[0];
  const std::uint16_t type = load_be<std::uint16_t>(&bytes[2]);
  const bool erspan = type == kErspan1And2 || type == kErspan3;
  if ((bytes[1] & 7) != 0 || !(erspan || type == kEtherEthernet || type == kEtherIpv4 || type == kEtherIpv6))
    return false;
  if ((flags & kRouting) != 0) {
    drop = FrameDrop::kUnsupportedHeader;
    return true;
  }
  const std::size_t header =
      4 + ((flags & kChecksum) != 0 ? 4U : 0U) + ((flags & kKey) != 0 ? 4U : 0U) + ((flags & kSequence) != 0 ? 4U : 0U);
  if (header > bytes.size()) {
    drop = FrameDrop::kMalformed;
    return true;
  }
  inside = {erspan || type == kEtherEthernet ? std::uint16_t{0} : type, bytes.subspan(header)};
  // Type I has neither a sequence number nor a header of its own.
  if (type == kErspan3)
    drop = strip_erspan3(inside);
  else if (type == kErspan1And2 && (flags & kSequence) != 0)
    drop = strip_erspan2(inside);
  return true;
}

bool open_tunnel(const IpPacket& packet, FrameDrop& drop, Inside& inside) {
  if (packet.protocol == kProtocolGre) return open_gre(packet.payload, drop, inside);
  if (packet.protocol != kProtocolUdp || packet.payload.size() < kUdpBytes) return false;
  const std::uint16_t port = load_be<std::uint16_t>(&packet.payload[2]);
  if (port == kSflowPort) {
    drop = FrameDrop::kSampled;
    return true;
  }
  if (port != kVxlanPort || packet.payload.size() < kUdpBytes + kVxlanBytes) return false;
  if ((packet.payload[kUdpBytes] & 0x08) == 0) return false;  // no network identifier: something else
  inside = {0, packet.payload.subspan(kUdpBytes + kVxlanBytes)};
  return true;
}

}  // namespace

FrameDrop find_packet(ByteSpan frame, std::uint32_t wire_bytes, ChecksumPolicy policy, MirroredPacket& packet) {
  if (wire_bytes > frame.size()) return FrameDrop::kTruncated;
  Inside inside{0, frame};
  for (packet.tunnels = 0;; ++packet.tunnels) {
    if (inside.type == 0) {
      if (const FrameDrop drop = strip_ethernet(inside); drop != FrameDrop::kNone) return drop;
    }
    FrameDrop drop = parse_ip_packet(inside.type, inside.bytes, policy, packet.ip);
    if (drop != FrameDrop::kNone) return drop;
    if (!open_tunnel(packet.ip, drop, inside)) return FrameDrop::kNone;
    if (drop != FrameDrop::kNone) return drop;
    if (packet.tunnels == kMaxTunnels) return FrameDrop::kUnsupportedHeader;
  }
}

}  // namespace gradtap::dataplane
