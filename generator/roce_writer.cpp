#include "generator/roce_writer.h"

#include <cstring>

#include "dataplane/icrc.h"
#include "dataplane/roce_frame.h"
#include "generator/byte_writer.h"

namespace gradtap::generator {
namespace {

constexpr std::size_t kEthernetBytes = 14;
constexpr std::size_t kIpv4Bytes = 20;
constexpr std::size_t kIpv6Bytes = 40;

}  // namespace

void write_roce_frame(const RocePath& path, const RocePacket& packet, std::vector<std::uint8_t>& frame) {
  const bool four = path.source.is_v4();
  const std::size_t pad = (4 - packet.payload.size() % 4) % 4;
  const std::size_t udp_bytes = dataplane::kUdpBytes + dataplane::kBthBytes + (packet.reth ? 16 : 0) +
                                (packet.aeth ? 4 : 0) + (packet.immediate ? 4 : 0) + packet.payload.size() + pad +
                                dataplane::kIcrcBytes;
  frame.clear();
  frame.reserve(kEthernetBytes + kIpv6Bytes + udp_bytes);
  put_bytes(frame, path.target_mac);
  put_bytes(frame, path.source_mac);
  put<std::uint16_t>(frame, four ? dataplane::kEtherIpv4 : dataplane::kEtherIpv6);
  if (four) {
    put<std::uint8_t>(frame, 0x45);
    put(frame, path.traffic_class);
    put(frame, static_cast<std::uint16_t>(kIpv4Bytes + udp_bytes));
    put<std::uint16_t>(frame, 0);
    put<std::uint16_t>(frame, 0x4000);  // may not be cut
    put(frame, path.hop_limit);
    put(frame, dataplane::kProtocolUdp);
    put<std::uint16_t>(frame, 0);
    frame.insert(frame.end(), path.source.bytes.begin() + 12, path.source.bytes.end());
    frame.insert(frame.end(), path.target.bytes.begin() + 12, path.target.bytes.end());
    const auto sum = dataplane::ones_complement_sum({frame.data() + kEthernetBytes, kIpv4Bytes});
    store_be(frame.data() + kEthernetBytes + 10, static_cast<std::uint16_t>(~sum));
  } else {
    put(frame,
        static_cast<std::uint32_t>(6U << 28 | std::uint32_t{path.traffic_class} << 20 | (path.flow_label & 0xfffff)));
    put(frame, static_cast<std::uint16_t>(udp_bytes));
    put(frame, dataplane::kProtocolUdp);
    put(frame, path.hop_limit);
    put_bytes(frame, path.source.bytes);
    put_bytes(frame, path.target.bytes);
  }
  put(frame, path.udp_source_port);
  put(frame, dataplane::kRocePort);
  put(frame, static_cast<std::uint16_t>(udp_bytes));
  put<std::uint16_t>(frame, 0);
  put(frame, static_cast<std::uint8_t>(packet.opcode));
  put(frame, static_cast<std::uint8_t>((path.migration_request ? 0x40U : 0U) | static_cast<unsigned>(pad) << 4));
  put(frame, path.partition_key);
  put<std::uint8_t>(frame, 0);
  put24(frame, path.target_qpn);
  put<std::uint8_t>(frame, packet.acknowledge ? 0x80 : 0);
  put24(frame, packet.psn);
  if (packet.reth) {
    put(frame, packet.reth->address);
    put(frame, packet.reth->rkey);
    put(frame, packet.reth->dma_bytes);
  }
  if (packet.aeth) {
    put(frame, packet.aeth->syndrome);
    put24(frame, packet.aeth->message_sequence);
  }
  if (packet.immediate) put_bytes(frame, *packet.immediate);
  put_bytes(frame, packet.payload);
  frame.resize(frame.size() + pad);
  const std::size_t ip_bytes = four ? kIpv4Bytes : kIpv6Bytes;
  frame.resize(frame.size() + dataplane::kIcrcBytes);
  dataplane::IpPacket ip;
  ip.v6 = !four;
  ip.header = ByteSpan(frame).subspan(kEthernetBytes, ip_bytes);
  const std::uint32_t crc = dataplane::icrc_of(ip, ByteSpan(frame).subspan(kEthernetBytes + ip_bytes));
  std::memcpy(frame.data() + frame.size() - dataplane::kIcrcBytes, &crc, dataplane::kIcrcBytes);
}

}  // namespace gradtap::generator
