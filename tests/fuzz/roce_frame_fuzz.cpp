// RoCE packets from anywhere, past Ethernet and IP: the first byte chooses the IP version, the rest is the datagram.
#include <array>
#include <cstdint>
#include <cstdlib>
#include <vector>

#include "dataplane/roce_frame.h"

extern "C" int LLVMFuzzerTestOneInput(const std::uint8_t* data, std::size_t size) {
  using namespace gradtap;
  using namespace gradtap::dataplane;
  if (size < 1) return 0;
  const bool v6 = (data[0] & 1) != 0;
  const std::size_t header = v6 ? 40 : 20;
  std::vector<std::uint8_t> bytes(header, 0);
  bytes.insert(bytes.end(), data + 1, data + size);
  if (bytes.size() >= header + kUdpBytes) {  // the port and the length that let it pass
    bytes[header + 2] = kRocePort >> 8;
    bytes[header + 3] = kRocePort & 0xff;
    if ((data[0] & 2) != 0) {
      bytes[header + 4] = static_cast<std::uint8_t>((bytes.size() - header) >> 8);
      bytes[header + 5] = static_cast<std::uint8_t>(bytes.size() - header);
    }
  }
  const IpPacket ip{v6, kProtocolUdp, ByteSpan(bytes).first(header), ByteSpan(bytes).subspan(header)};
  RoceFrame frame;
  if (parse_roce(ip, IcrcPolicy::kIgnored, frame) != FrameDrop::kNone) return 0;
  const std::uint8_t* const end = bytes.data() + bytes.size();
  if (frame.payload.data() < bytes.data() || frame.payload.data() + frame.payload.size() > end) std::abort();
  if (frame.psn >= kPsnCount || frame.target_qp >= kPsnCount) std::abort();
  return 0;
}
