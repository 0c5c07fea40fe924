#include "dataplane/frame.h"

#include <bit>
#include <cstring>

#include <arpa/inet.h>

namespace gradtap::dataplane {
namespace {

constexpr std::size_t kEthernetBytes = 14;
constexpr int kMaxVlanTags = 3;
constexpr int kMaxExtensionHeaders = 8;
constexpr std::uint16_t kEtherIpv4 = 0x0800;
constexpr std::uint16_t kEtherIpv6 = 0x86dd;
constexpr std::uint8_t kProtocolTcp = 6;

bool is_vlan(std::uint16_t type) {
  return type == 0x8100 || type == 0x88a8 || type == 0x9100;
}

void store_v4(IpAddress& address, const std::uint8_t* p) {
  address.bytes = {0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0xff, 0xff, p[0], p[1], p[2], p[3]};
}

struct Ip {
  ByteSpan addresses;  // source and target, for the pseudo-header
  ByteSpan tcp;        // header and payload, padding cut
};

FrameDrop parse_ipv4(ByteSpan packet, ChecksumPolicy policy, FrameView& view, Ip& ip) {
  if (packet.size() < 20) return FrameDrop::kTruncated;
  if (packet[0] >> 4 != 4) return FrameDrop::kMalformed;
  const std::size_t header = static_cast<std::size_t>(packet[0] & 15) * 4;
  if (header < 20) return FrameDrop::kMalformed;
  if (header > packet.size()) return FrameDrop::kTruncated;
  std::size_t total = load_be<std::uint16_t>(&packet[2]);
  // Segmentation offload leaves 0 in frames beyond 64 KiB; only a mirror inside one machine shows such frames.
  if (total == 0 && policy == ChecksumPolicy::kOffload) total = packet.size();
  if (total < header) return FrameDrop::kMalformed;
  if (total > packet.size()) return FrameDrop::kTruncated;
  if (ones_complement_sum(packet.first(header)) != 0xffff) return FrameDrop::kBadIpChecksum;
  // More-fragments or a fragment offset.
  if ((load_be<std::uint16_t>(&packet[6]) & 0x3fff) != 0) return FrameDrop::kFragment;
  if (packet[9] != kProtocolTcp) return FrameDrop::kNotTcp;
  store_v4(view.source, &packet[12]);
  store_v4(view.target, &packet[16]);
  ip.addresses = packet.subspan(12, 8);
  ip.tcp = packet.subspan(header, total - header);
  return FrameDrop::kNone;
}

FrameDrop parse_ipv6(ByteSpan packet, ChecksumPolicy policy, FrameView& view, Ip& ip) {
  if (packet.size() < 40) return FrameDrop::kTruncated;
  if (packet[0] >> 4 != 6) return FrameDrop::kMalformed;
  std::size_t length = load_be<std::uint16_t>(&packet[4]);
  if (length == 0 && policy == ChecksumPolicy::kOffload) length = packet.size() - 40;
  if (length > packet.size() - 40) return FrameDrop::kTruncated;
  ByteSpan rest = packet.subspan(40, length);
  std::uint8_t next = packet[6];
  for (int depth = 0; next != kProtocolTcp; ++depth) {
    constexpr std::uint8_t kHopByHop = 0;
    constexpr std::uint8_t kRouting = 43;
    constexpr std::uint8_t kFragmentHeader = 44;
    constexpr std::uint8_t kDestinationOptions = 60;
    if (next == kFragmentHeader) return FrameDrop::kFragment;
    if (next != kHopByHop && next != kRouting && next != kDestinationOptions) {
      return next == 50 || next == 51 ? FrameDrop::kUnsupportedHeader : FrameDrop::kNotTcp;
    }
    if (depth == kMaxExtensionHeaders) return FrameDrop::kUnsupportedHeader;
    if (rest.size() < 8) return FrameDrop::kMalformed;
    const std::size_t bytes = (static_cast<std::size_t>(rest[1]) + 1) * 8;
    if (bytes > rest.size()) return FrameDrop::kMalformed;
    // On its way through a source route the packet names the next hop, not its target.
    if (next == kRouting && rest[3] != 0) return FrameDrop::kUnsupportedHeader;
    next = rest[0];
    rest = rest.subspan(bytes);
  }
  std::memcpy(view.source.bytes.data(), &packet[8], 16);
  std::memcpy(view.target.bytes.data(), &packet[24], 16);
  ip.addresses = packet.subspan(8, 32);
  ip.tcp = rest;
  return FrameDrop::kNone;
}

}  // namespace

bool IpAddress::is_v4() const {
  constexpr std::array<std::uint8_t, 12> kMapped{0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0xff, 0xff};
  return std::memcmp(bytes.data(), kMapped.data(), kMapped.size()) == 0;
}

std::string IpAddress::text() const {
  char buffer[INET6_ADDRSTRLEN] = {};
  const bool v4 = is_v4();
  inet_ntop(v4 ? AF_INET : AF_INET6, bytes.data() + (v4 ? 12 : 0), buffer, sizeof buffer);
  return buffer;
}

Result<IpAddress> parse_ip(std::string_view text) {
  const std::string copy(text);
  IpAddress address;
  std::array<std::uint8_t, 4> v4{};
  if (inet_pton(AF_INET, copy.c_str(), v4.data()) == 1) {
    store_v4(address, v4.data());
    return address;
  }
  if (inet_pton(AF_INET6, copy.c_str(), address.bytes.data()) == 1) return address;
  return fail(ErrorCode::kBadText, "not an IP address", {}, "an IPv4 or IPv6 address", copy.substr(0, 64),
              "write the address of the rank's training interface");
}

std::string_view frame_drop_name(FrameDrop drop) {
  switch (drop) {
    case FrameDrop::kNone:
      return "none";
    case FrameDrop::kNotIp:
      return "not_ip";
    case FrameDrop::kNotTcp:
      return "not_tcp";
    case FrameDrop::kFragment:
      return "fragment";
    case FrameDrop::kTruncated:
      return "truncated";
    case FrameDrop::kMalformed:
      return "malformed";
    case FrameDrop::kUnsupportedHeader:
      return "unsupported_header";
    case FrameDrop::kBadIpChecksum:
      return "bad_ip_checksum";
    case FrameDrop::kBadTcpChecksum:
      return "bad_tcp_checksum";
    case FrameDrop::kCount:
      break;
  }
  return "unknown";
}

std::uint16_t ones_complement_sum(ByteSpan bytes, std::uint64_t start) {
  // The sum may be taken in either byte order and swapped at the end (RFC 1071), so it runs on host-order words, wide.
  const std::uint8_t* p = bytes.data();
  std::size_t left = bytes.size();
  std::uint64_t sum = 0;
  std::uint64_t second = 0;
  for (; left >= 16; left -= 16, p += 16) {
    sum += static_cast<std::uint64_t>(load_le<std::uint32_t>(p)) + load_le<std::uint32_t>(p + 4);
    second += static_cast<std::uint64_t>(load_le<std::uint32_t>(p + 8)) + load_le<std::uint32_t>(p + 12);
  }
  for (; left >= 2; left -= 2, p += 2) sum += load_le<std::uint16_t>(p);
  if (left == 1) sum += *p;
  sum = (sum & 0xffffffff) + (sum >> 32) + (second & 0xffffffff) + (second >> 32);
  while (sum >> 16 != 0) sum = (sum & 0xffff) + (sum >> 16);
  std::uint64_t total = ((sum & 0xff) << 8 | sum >> 8) + start;
  while (total >> 16 != 0) total = (total & 0xffff) + (total >> 16);
  return static_cast<std::uint16_t>(total);
}

FrameDrop parse_frame(ByteSpan bytes, std::uint32_t wire_bytes, ChecksumPolicy policy, FrameView& view) {
  if (wire_bytes > bytes.size()) return FrameDrop::kTruncated;
  if (bytes.size() < kEthernetBytes) return FrameDrop::kMalformed;
  std::size_t offset = kEthernetBytes;
  std::uint16_t type = load_be<std::uint16_t>(&bytes[12]);
  for (int tags = 0; is_vlan(type); ++tags) {
    if (tags == kMaxVlanTags) return FrameDrop::kUnsupportedHeader;
    if (bytes.size() < offset + 4) return FrameDrop::kMalformed;
    type = load_be<std::uint16_t>(&bytes[offset + 2]);
    offset += 4;
  }
  Ip ip;
  FrameDrop drop = FrameDrop::kNotIp;
  if (type == kEtherIpv4) drop = parse_ipv4(bytes.subspan(offset), policy, view, ip);
  if (type == kEtherIpv6) drop = parse_ipv6(bytes.subspan(offset), policy, view, ip);
  if (drop != FrameDrop::kNone) return drop;

  const ByteSpan tcp = ip.tcp;
  if (tcp.size() < 20) return FrameDrop::kMalformed;
  const std::size_t header = static_cast<std::size_t>(tcp[12] >> 4) * 4;
  if (header < 20 || header > tcp.size()) return FrameDrop::kMalformed;
  if (policy == ChecksumPolicy::kRequired) {
    // Pseudo-header: addresses, length, protocol (the same sum for both IP versions).
    const std::uint64_t start =
        std::uint64_t{ones_complement_sum(ip.addresses)} + kProtocolTcp + (tcp.size() & 0xffff) + (tcp.size() >> 16);
    if (ones_complement_sum(tcp, start) != 0xffff) return FrameDrop::kBadTcpChecksum;
  }
  view.source_port = load_be<std::uint16_t>(&tcp[0]);
  view.target_port = load_be<std::uint16_t>(&tcp[2]);
  view.sequence = load_be<std::uint32_t>(&tcp[4]);
  view.acknowledgement = load_be<std::uint32_t>(&tcp[8]);
  view.flags = tcp[13];
  view.payload = tcp.subspan(header);
  return FrameDrop::kNone;
}

}  // namespace gradtap::dataplane
