#include "dataplane/icrc.h"

#include <array>
#include <cstring>

#include "dataplane/crc32.h"

namespace gradtap::dataplane {

std::uint32_t icrc_of(const IpPacket& ip, ByteSpan udp) {
  constexpr std::size_t kOnes = 8, kMaxIpHeader = 60;
  std::array<std::uint8_t, kOnes + kMaxIpHeader + kUdpBytes + kBthBytes> masked;
  std::memset(masked.data(), 0xff, kOnes);
  std::uint8_t* const header = masked.data() + kOnes;
  std::memcpy(header, ip.header.data(), ip.header.size());
  if (ip.v6) {
    header[0] |= 0x0f;
    header[1] = header[2] = header[3] = 0xff;
    header[7] = 0xff;
  } else {
    header[1] = header[8] = 0xff;
    header[10] = header[11] = 0xff;
  }
  std::uint8_t* const transport = header + ip.header.size();
  std::memcpy(transport, udp.data(), kUdpBytes + kBthBytes);
  transport[6] = transport[7] = 0xff;
  transport[kUdpBytes + 4] = 0xff;
  const std::size_t prefix = kOnes + ip.header.size() + kUdpBytes + kBthBytes;
  const std::uint32_t state = crc32_update(kCrc32Start, {masked.data(), prefix});
  return ~crc32_update(state, udp.subspan(kUdpBytes + kBthBytes, udp.size() - kUdpBytes - kBthBytes - kIcrcBytes));
}

bool icrc_verifies(const IpPacket& ip, ByteSpan udp) {
  return icrc_of(ip, udp) == load_le<std::uint32_t>(&udp[udp.size() - kIcrcBytes]);
}

}  // namespace gradtap::dataplane
