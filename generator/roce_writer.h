// RoCE frames from their header fields: Ethernet, IPv4 or IPv6, UDP, BTH, RETH, AETH, immediate, payload, ICRC.
//
// Pure: appends nothing but what it is told. Payloads whose length is no multiple of four are padded (BTH PadCnt).
// Ownership: `frame` is the caller's and is reused. Failure behaviour: none; fields are cut to their width.
#pragma once

#include <array>
#include <cstdint>
#include <optional>
#include <vector>

#include "common/bytes.h"
#include "dataplane/ip_packet.h"

namespace gradtap::generator {

using MacAddress = std::array<std::uint8_t, 6>;

inline constexpr std::uint32_t kPsnMask = 0xffffff;

enum class WireOpcode : std::uint8_t {
  kSendOnly = 0x04,
  kWriteFirst = 0x06,
  kWriteMiddle = 0x07,
  kWriteLast = 0x08,
  kWriteLastImmediate = 0x09,
  kWriteOnly = 0x0a,
  kWriteOnlyImmediate = 0x0b,
  kReadRequest = 0x0c,
  kReadResponseOnly = 0x10,
  kAcknowledge = 0x11,
  kUdSendOnly = 0x64,
  kCongestionNotification = 0x81,
};

// One direction of a QP pair.
struct RocePath {
  MacAddress source_mac{};
  MacAddress target_mac{};
  dataplane::IpAddress source;  // both of the same family
  dataplane::IpAddress target;
  std::uint16_t udp_source_port = 0;
  std::uint32_t target_qpn = 0;
  std::uint8_t traffic_class = 0x02;  // ECT(0), as RoCE with congestion control sends
  std::uint32_t flow_label = 0;       // IPv6
  std::uint8_t hop_limit = 64;
  std::uint16_t partition_key = 0xffff;
  bool migration_request = true;
};

struct Reth {
  std::uint64_t address = 0;
  std::uint32_t rkey = 0;
  std::uint32_t dma_bytes = 0;
};
struct Aeth {
  std::uint8_t syndrome = 0;
  std::uint32_t message_sequence = 0;
};

struct RocePacket {
  WireOpcode opcode{};
  std::uint32_t psn = 0;
  bool acknowledge = false;  // AckReq
  std::optional<Reth> reth;
  std::optional<Aeth> aeth;
  std::optional<std::array<std::uint8_t, 4>> immediate;  // as on the wire
  ByteSpan payload;
};

// Replaces `frame` by the packet's bytes.
void write_roce_frame(const RocePath& path, const RocePacket& packet, std::vector<std::uint8_t>& frame);

}  // namespace gradtap::generator
