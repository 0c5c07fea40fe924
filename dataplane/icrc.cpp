#include "dataplane/icrc.h"

#include <array>
#include <cstring>

namespace gradtap::dataplane {
namespace {

constexpr std::size_t kSlices = 16;
constexpr std::uint32_t kPolynomial = 0xEDB88320;

constexpr std::array<std::array<std::uint32_t, 256>, kSlices> make_tables() {
  std::array<std::array<std::uint32_t, 256>, kSlices> tables{};
  for (std::uint32_t byte = 0; byte < 256; ++byte) {
    std::uint32_t crc = byte;
    for (int bit = 0; bit < 8; ++bit) crc = (crc >> 1) ^ ((crc & 1) != 0 ? kPolynomial : 0);
    tables[0][byte] = crc;
  }
  for (std::size_t slice = 1; slice < kSlices; ++slice)
    for (std::size_t byte = 0; byte < 256; ++byte)
      tables[slice][byte] = (tables[slice - 1][byte] >> 8) ^ tables[0][tables[slice - 1][byte] & 0xff];
  return tables;
}
constexpr auto kTables = make_tables();

constexpr std::size_t kIpv4HeaderBytes = 20;
constexpr std::size_t kIpv4MaxHeaderBytes = 60;
constexpr std::size_t kIpv6HeaderBytes = 40;
constexpr std::size_t kUdpHeaderBytes = 8;
constexpr std::size_t kBthBytes = 12;
constexpr std::size_t kBthCongestionByte = 4;
constexpr std::uint8_t kProtocolUdp = 17;

}  // namespace

// Sixteen bytes a round, one table look-up a byte, all of them independent.
std::uint32_t crc32(std::uint32_t crc, ByteSpan bytes) {
  crc = ~crc;
  const std::uint8_t* p = bytes.data();
  std::size_t left = bytes.size();
  for (; left >= 16; left -= 16, p += 16) {
    const auto word = [&](std::size_t i) { return load_le<std::uint32_t>(p + 4 * i); };
    const std::uint32_t a = word(0) ^ crc, b = word(1), c = word(2), d = word(3);
    crc = kTables[15][a & 0xff] ^ kTables[14][a >> 8 & 0xff] ^ kTables[13][a >> 16 & 0xff] ^ kTables[12][a >> 24] ^
          kTables[11][b & 0xff] ^ kTables[10][b >> 8 & 0xff] ^ kTables[9][b >> 16 & 0xff] ^ kTables[8][b >> 24] ^
          kTables[7][c & 0xff] ^ kTables[6][c >> 8 & 0xff] ^ kTables[5][c >> 16 & 0xff] ^ kTables[4][c >> 24] ^
          kTables[3][d & 0xff] ^ kTables[2][d >> 8 & 0xff] ^ kTables[1][d >> 16 & 0xff] ^ kTables[0][d >> 24];
  }
  for (; left > 0; --left, ++p) crc = (crc >> 8) ^ kTables[0][(crc ^ *p) & 0xff];
  return ~crc;
}

std::optional<std::uint32_t> icrc(ByteSpan packet) {
  if (packet.empty()) return std::nullopt;
  const unsigned version = packet[0] >> 4;
  std::size_t ip_bytes = kIpv6HeaderBytes;
  if (version == 4) ip_bytes = (packet[0] & 0x0fU) * 4U;
  if ((version != 4 && version != 6) || ip_bytes < kIpv4HeaderBytes) return std::nullopt;
  const std::size_t head_bytes = ip_bytes + kUdpHeaderBytes + kBthBytes;
  if (packet.size() < head_bytes || packet[version == 4 ? 9 : 6] != kProtocolUdp) return std::nullopt;

  constexpr std::size_t kOnes = 8;
  std::array<std::uint8_t, kOnes + kIpv4MaxHeaderBytes + kUdpHeaderBytes + kBthBytes> head;
  std::memset(head.data(), 0xff, kOnes);
  std::uint8_t* ip = head.data() + kOnes;
  std::memcpy(ip, packet.data(), head_bytes);
  if (version == 4) {
    ip[1] = 0xff;   // TOS
    ip[8] = 0xff;   // TTL
    ip[10] = 0xff;  // header checksum
    ip[11] = 0xff;
  } else {
    ip[0] |= 0x0f;  // traffic class, flow label
    ip[1] = ip[2] = ip[3] = 0xff;
    ip[7] = 0xff;  // hop limit
  }
  std::uint8_t* udp = ip + ip_bytes;
  udp[6] = udp[7] = 0xff;
  udp[kUdpHeaderBytes + kBthCongestionByte] = 0xff;
  return crc32(crc32(0, {head.data(), kOnes + head_bytes}), packet.subspan(head_bytes));
}

}  // namespace gradtap::dataplane
