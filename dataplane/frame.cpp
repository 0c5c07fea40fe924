#include "dataplane/frame.h"

#include "dataplane/encapsulation.h"

namespace gradtap::dataplane {

FrameDrop parse_frame(ByteSpan bytes, std::uint32_t wire_bytes, ChecksumPolicy policy, FrameView& view) {
  MirroredPacket packet;
  if (const FrameDrop drop = find_packet(bytes, wire_bytes, policy, packet); drop != FrameDrop::kNone) return drop;
  return parse_tcp(packet.ip, policy, view);
}

FrameDrop parse_tcp(const IpPacket& ip, ChecksumPolicy policy, FrameView& view) {
  if (ip.protocol != kProtocolTcp) return FrameDrop::kNotTcp;
  const ByteSpan tcp = ip.payload;
  if (tcp.size() < 20) return FrameDrop::kMalformed;
  const std::size_t header = static_cast<std::size_t>(tcp[12] >> 4) * 4;
  if (header < 20 || header > tcp.size()) return FrameDrop::kMalformed;
  if (policy == ChecksumPolicy::kRequired) {
    // Pseudo-header: addresses, length, protocol (the same sum for both IP versions).
    const std::uint64_t start =
        std::uint64_t{ones_complement_sum(ip.addresses())} + kProtocolTcp + (tcp.size() & 0xffff) + (tcp.size() >> 16);
    if (ones_complement_sum(tcp, start) != 0xffff) return FrameDrop::kBadTcpChecksum;
  }
  view.source = ip.source();
  view.target = ip.target();
  view.source_port = load_be<std::uint16_t>(&tcp[0]);
  view.target_port = load_be<std::uint16_t>(&tcp[2]);
  view.sequence = load_be<std::uint32_t>(&tcp[4]);
  view.acknowledgement = load_be<std::uint32_t>(&tcp[8]);
  view.flags = tcp[13];
  view.payload = tcp.subspan(header);
  return FrameDrop::kNone;
}

}  // namespace gradtap::dataplane
