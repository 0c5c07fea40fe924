#include "dataplane/roce_frame.h"

#include <array>

namespace gradtap::dataplane {
namespace {

constexpr std::size_t kRethBytes = 16;
constexpr std::size_t kAethBytes = 4;
constexpr std::size_t kImmediateBytes = 4;

constexpr std::array<RoceOpcode, 256> make_opcodes() {
  std::array<RoceOpcode, 256> table{};
  const auto set = [&](std::size_t code, RoceKind kind, bool begins, bool ends) {
    table[code].kind = kind;
    table[code].begins = begins;
    table[code].ends = ends;
  };
  // Reliable connection. Sends 0x00-0x05, writes 0x06-0x0b: FIRST, MIDDLE, LAST, LAST+imm, ONLY, ONLY+imm.
  for (std::size_t i = 0; i < 12; ++i) {
    const std::size_t place = i % 6;
    set(i, i < 6 ? RoceKind::kRequest : RoceKind::kWrite, place == 0 || place >= 4, place >= 2);
    table[i].immediate = place == 3 || place == 5;
    table[i].address = i >= 6 && table[i].begins;
  }
  set(0x0c, RoceKind::kRequest, true, true);  // read request
  table[0x0c].address = true;
  for (std::size_t i = 0x0d; i <= 0x10; ++i) set(i, RoceKind::kResponse, i == 0x0d || i == 0x10, i >= 0x0f);
  table[0x0d].acknowledgement = table[0x0f].acknowledgement = table[0x10].acknowledgement = true;
  set(0x11, RoceKind::kAcknowledgement, true, true);
  table[0x11].acknowledgement = true;
  set(0x12, RoceKind::kResponse, true, true);  // atomic
  table[0x12].acknowledgement = true;
  set(0x13, RoceKind::kRequest, true, true);   // compare and swap
  set(0x14, RoceKind::kRequest, true, true);   // fetch and add
  set(0x16, RoceKind::kRequest, false, true);  // send, invalidating
  set(0x17, RoceKind::kRequest, true, true);
  set(0x64, RoceKind::kDatagram, true, true);
  set(0x65, RoceKind::kDatagram, true, true);
  set(kOpcodeCnp, RoceKind::kCongestion, true, true);
  return table;
}

constexpr auto kOpcodes = make_opcodes();

std::uint32_t load_be24(const std::uint8_t* p) {
  return static_cast<std::uint32_t>(p[0]) << 16 | static_cast<std::uint32_t>(p[1]) << 8 | p[2];
}

}  // namespace

RoceOpcode roce_opcode(std::uint8_t opcode) {
  return kOpcodes[opcode];
}

ByteSpan roce_datagram(const IpPacket& ip) {
  if (ip.protocol != kProtocolUdp || ip.payload.size() < kUdpBytes + kBthBytes + kIcrcBytes) return {};
  if (load_be<std::uint16_t>(&ip.payload[2]) != kRocePort) return {};
  const std::size_t length = load_be<std::uint16_t>(&ip.payload[4]);
  if (length < kUdpBytes + kBthBytes + kIcrcBytes || length > ip.payload.size()) return {};
  return ip.payload.first(length);
}

FrameDrop parse_roce(const IpPacket& ip, IcrcPolicy policy, RoceFrame& frame) {
  const ByteSpan udp = roce_datagram(ip);
  if (udp.empty()) return FrameDrop::kNotRoce;
  // An extension header between IP and UDP: what the check value then covers is not defined.
  if (ip.header.data() + ip.header.size() != udp.data()) return FrameDrop::kUnsupportedHeader;
  if (policy == IcrcPolicy::kRequired && !icrc_verifies(ip, udp)) return FrameDrop::kBadIcrc;
  const std::uint8_t* const bth = &udp[kUdpBytes];
  if ((bth[1] & 0x0f) != 0) return FrameDrop::kUnsupportedHeader;  // transport version
  frame.source = ip.source();
  frame.target = ip.target();
  frame.source_port = load_be<std::uint16_t>(udp.data());
  frame.opcode = bth[0];
  frame.meaning = kOpcodes[bth[0]];
  frame.target_qp = load_be24(bth + 5);
  frame.wants_acknowledgement = (bth[8] & 0x80) != 0;
  frame.psn = load_be24(bth + 9);
  ByteSpan rest = udp.subspan(kUdpBytes + kBthBytes, udp.size() - kUdpBytes - kBthBytes - kIcrcBytes);
  const std::size_t headers = (frame.meaning.address ? kRethBytes : 0) +
                              (frame.meaning.acknowledgement ? kAethBytes : 0) +
                              (frame.meaning.immediate ? kImmediateBytes : 0);
  const std::size_t pad = bth[1] >> 4 & 3;
  if (rest.size() < headers + pad) return FrameDrop::kMalformed;
  if (frame.meaning.address) {
    frame.address = load_be<std::uint64_t>(rest.data());
    frame.key = load_be<std::uint32_t>(&rest[8]);
    frame.dma_bytes = load_be<std::uint32_t>(&rest[12]);
    rest = rest.subspan(kRethBytes);
  }
  if (frame.meaning.acknowledgement) {
    frame.syndrome = rest[0];
    frame.sequence = load_be24(&rest[1]);
    rest = rest.subspan(kAethBytes);
  }
  if (frame.meaning.immediate) {
    frame.immediate = load_le<std::uint32_t>(rest.data());
    rest = rest.subspan(kImmediateBytes);
  }
  frame.payload = rest.first(rest.size() - pad);
  if (frame.payload.size() > kMaxPathMtuBytes) return FrameDrop::kSupersized;
  return FrameDrop::kNone;
}

std::uint16_t roce_source_port(std::uint32_t qp, std::uint32_t peer_qp) {
  std::uint64_t v = std::uint64_t{qp} * peer_qp;
  v ^= v >> 20;
  v ^= v >> 40;
  const auto label = static_cast<std::uint32_t>(v & 0xfffff);
  return static_cast<std::uint16_t>(((label & 0x3fff) ^ label >> 14) | 0xc000);
}

}  // namespace gradtap::dataplane
