// RoceFrame: one RoCEv2 packet, from the base transport header to the payload.
//
// Purpose: a bounds-checked reading of BTH, RETH, AETH and immediate by a table of opcodes; everything that is not of a
// reliable connection (datagrams, congestion notifications, vendor frames) is named by its kind and not read further.
// Ownership: none; the payload is a view of the frame, pad bytes cut. Pure; any thread.
// Failure behaviour: a FrameDrop names each refusal; a packet whose ICRC does not verify is never handed out.
#pragma once

#include <cstdint>
#include <string_view>

#include "common/bytes.h"
#include "dataplane/icrc.h"
#include "dataplane/ip_packet.h"

namespace gradtap::dataplane {

inline constexpr std::uint16_t kRocePort = 4791;
inline constexpr std::uint32_t kMaxPathMtuBytes = 4096;
inline constexpr std::uint32_t kPsnCount = 1U << 24;
inline constexpr std::uint8_t kOpcodeWriteOnly = 0x0a;
inline constexpr std::uint8_t kOpcodeCnp = 0x81;

enum class RoceKind : std::uint8_t {
  kUnknown,          // vendor or other transports
  kWrite,            // RDMA write of a reliable connection
  kRequest,          // another request of a reliable connection: send, read, atomic
  kResponse,         // read and atomic responses
  kAcknowledgement,  // ACK or NAK
  kDatagram,         // unreliable datagrams: management (QP 1) and others
  kCongestion,       // CNP
};

struct RoceOpcode {
  RoceKind kind = RoceKind::kUnknown;
  bool begins = false;           // a message: FIRST or ONLY
  bool ends = false;             // LAST or ONLY
  bool address = false;          // has a RETH
  bool acknowledgement = false;  // has an AETH
  bool immediate = false;
};

[[nodiscard]] RoceOpcode roce_opcode(std::uint8_t opcode);

enum class IcrcPolicy : std::uint8_t { kRequired, kIgnored };

struct RoceFrame {
  IpAddress source;
  IpAddress target;
  std::uint16_t source_port = 0;
  std::uint8_t opcode = 0;
  RoceOpcode meaning;
  bool wants_acknowledgement = false;
  std::uint32_t target_qp = 0;
  std::uint32_t psn = 0;
  std::uint64_t address = 0;  // of the RETH
  std::uint32_t key = 0;
  std::uint32_t dma_bytes = 0;
  std::uint32_t immediate = 0;  // as the host that wrote it saw it, if that was little-endian
  std::uint8_t syndrome = 0;    // of the AETH
  std::uint32_t sequence = 0;   // its message number
  ByteSpan payload;
  [[nodiscard]] bool is_nak() const { return (syndrome & 0x60) == 0x60; }
  [[nodiscard]] bool is_ack() const { return (syndrome & 0x60) == 0; }
};

// Whether this is a packet to RoCE's port with room for a transport header; its UDP datagram (ICRC included).
[[nodiscard]] ByteSpan roce_datagram(const IpPacket& ip);
// kNone: `frame` is filled. kNotRoce: something else. kBadIcrc and the rest: a RoCE packet that is not used.
[[nodiscard]] FrameDrop parse_roce(const IpPacket& ip, IcrcPolicy policy, RoceFrame& frame);

// The UDP source port that Linux gives both directions of a QP pair (rdma_flow_label_to_udp_sport).
[[nodiscard]] std::uint16_t roce_source_port(std::uint32_t qp, std::uint32_t peer_qp);

}  // namespace gradtap::dataplane
