#include "dataplane/ip_packet.h"

#include <cstring>

#include <arpa/inet.h>

namespace gradtap::dataplane {
namespace {

constexpr int kMaxExtensionHeaders = 8;
constexpr std::uint8_t kHopByHop = 0;
constexpr std::uint8_t kRouting = 43;
constexpr std::uint8_t kFragmentHeader = 44;
constexpr std::uint8_t kEncrypted = 50;
constexpr std::uint8_t kAuthenticated = 51;
constexpr std::uint8_t kDestinationOptions = 60;

void store_v4(IpAddress& address, const std::uint8_t* p) {
  address.bytes = {0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0xff, 0xff, p[0], p[1], p[2], p[3]};
}

// A length of 0 is what segmentation offload leaves in frames beyond 64 KiB; only a mirror inside one machine shows
// such frames.
FrameDrop parse_ipv4(ByteSpan bytes, ChecksumPolicy policy, IpPacket& packet) {
  if (bytes.size() < 20) return FrameDrop::kTruncated;
  if (bytes[0] >> 4 != 4) return FrameDrop::kMalformed;
  const std::size_t header = static_cast<std::size_t>(bytes[0] & 15) * 4;
  if (header < 20) return FrameDrop::kMalformed;
  if (header > bytes.size()) return FrameDrop::kTruncated;
  std::size_t total = load_be<std::uint16_t>(&bytes[2]);
  if (total == 0 && policy == ChecksumPolicy::kRequired) return FrameDrop::kSupersized;
  if (total == 0) total = bytes.size();
  if (total < header) return FrameDrop::kMalformed;
  if (total > bytes.size()) return FrameDrop::kTruncated;
  if (ones_complement_sum(bytes.first(header)) != 0xffff) return FrameDrop::kBadIpChecksum;
  // More-fragments or a fragment offset.
  if ((load_be<std::uint16_t>(&bytes[6]) & 0x3fff) != 0) return FrameDrop::kFragment;
  packet = {false, bytes[9], bytes.first(header), bytes.subspan(header, total - header)};
  return FrameDrop::kNone;
}

FrameDrop parse_ipv6(ByteSpan bytes, ChecksumPolicy policy, IpPacket& packet) {
  if (bytes.size() < 40) return FrameDrop::kTruncated;
  if (bytes[0] >> 4 != 6) return FrameDrop::kMalformed;
  std::size_t length = load_be<std::uint16_t>(&bytes[4]);
  if (length == 0 && policy == ChecksumPolicy::kRequired) return FrameDrop::kSupersized;
  if (length == 0) length = bytes.size() - 40;
  if (length > bytes.size() - 40) return FrameDrop::kTruncated;
  ByteSpan rest = bytes.subspan(40, length);
  std::uint8_t next = bytes[6];
  for (int depth = 0; next == kHopByHop || next == kRouting || next == kDestinationOptions; ++depth) {
    if (depth == kMaxExtensionHeaders) return FrameDrop::kUnsupportedHeader;
    if (rest.size() < 8) return FrameDrop::kMalformed;
    const std::size_t header = (static_cast<std::size_t>(rest[1]) + 1) * 8;
    if (header > rest.size()) return FrameDrop::kMalformed;
    // On its way through a source route the packet names the next hop, not its target.
    if (next == kRouting && rest[3] != 0) return FrameDrop::kUnsupportedHeader;
    next = rest[0];
    rest = rest.subspan(header);
  }
  if (next == kFragmentHeader) return FrameDrop::kFragment;
  if (next == kEncrypted || next == kAuthenticated) return FrameDrop::kUnsupportedHeader;
  packet = {true, next, bytes.first(40), rest};
  return FrameDrop::kNone;
}

constexpr std::size_t kVectorWords = 16;  // of a header alone the loop's preparation would cost more

inline std::uint64_t plain_sum(const std::uint8_t* p, std::size_t words) {
  std::uint64_t sum = 0;
  for (std::size_t i = 0; i < words; ++i) sum += load_le<std::uint32_t>(p + i * sizeof(std::uint32_t));
  return sum;
}

// The same in the widest vectors of the processor. Sanitizers start after such choices are made.
#if defined(__x86_64__) && defined(__GNUC__) && !defined(__clang__) && !defined(__SANITIZE_ADDRESS__) && \
    !defined(__SANITIZE_THREAD__)
__attribute__((target_clones("arch=x86-64-v4", "arch=x86-64-v3", "default")))
#endif
std::uint64_t
vector_sum(const std::uint8_t* p, std::size_t words) {
  std::uint64_t sum = 0;
  for (std::size_t i = 0; i < words; ++i) sum += load_le<std::uint32_t>(p + i * sizeof(std::uint32_t));
  return sum;
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

IpAddress IpPacket::source() const {
  IpAddress address;
  if (v6)
    std::memcpy(address.bytes.data(), &header[8], 16);
  else
    store_v4(address, &header[12]);
  return address;
}

IpAddress IpPacket::target() const {
  IpAddress address;
  if (v6)
    std::memcpy(address.bytes.data(), &header[24], 16);
  else
    store_v4(address, &header[16]);
  return address;
}

FrameDrop parse_ip_packet(std::uint16_t type, ByteSpan bytes, ChecksumPolicy policy, IpPacket& packet) {
  if (type == kEtherIpv4) return parse_ipv4(bytes, policy, packet);
  if (type == kEtherIpv6) return parse_ipv6(bytes, policy, packet);
  return FrameDrop::kNotIp;
}

std::uint16_t ones_complement_sum(ByteSpan bytes, std::uint64_t start) {
  // The sum may be taken in either byte order and swapped at the end (RFC 1071), so it runs on host-order words, wide.
  const std::size_t words = bytes.size() / sizeof(std::uint32_t);
  std::uint64_t sum = words < kVectorWords ? plain_sum(bytes.data(), words) : vector_sum(bytes.data(), words);
  const std::uint8_t* p = bytes.data() + words * sizeof(std::uint32_t);
  std::size_t left = bytes.size() % sizeof(std::uint32_t);
  for (; left >= 2; left -= 2, p += 2) sum += load_le<std::uint16_t>(p);
  if (left == 1) sum += *p;
  sum = (sum & 0xffffffff) + (sum >> 32);
  while (sum >> 16 != 0) sum = (sum & 0xffff) + (sum >> 16);
  std::uint64_t total = ((sum & 0xff) << 8 | sum >> 8) + start;
  while (total >> 16 != 0) total = (total & 0xffff) + (total >> 16);
  return static_cast<std::uint16_t>(total);
}

}  // namespace gradtap::dataplane
