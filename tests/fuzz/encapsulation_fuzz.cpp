// Mirrored frames from anywhere: what is found lies inside the frame.
#include <cstdint>
#include <cstdlib>

#include "dataplane/encapsulation.h"
#include "dataplane/roce_frame.h"

extern "C" int LLVMFuzzerTestOneInput(const std::uint8_t* data, std::size_t size) {
  using namespace gradtap;
  using namespace gradtap::dataplane;
  const auto inside = [&](ByteSpan part) { return part.data() >= data && part.data() + part.size() <= data + size; };
  for (const ChecksumPolicy policy : {ChecksumPolicy::kRequired, ChecksumPolicy::kOffload}) {
    MirroredPacket packet;
    if (find_packet({data, size}, 0, policy, packet) != FrameDrop::kNone) continue;
    if (!inside(packet.ip.header) || !inside(packet.ip.payload) || packet.tunnels > kMaxTunnels) std::abort();
    RoceFrame frame;
    (void)parse_roce(packet.ip, IcrcPolicy::kRequired, frame);
    if (parse_roce(packet.ip, IcrcPolicy::kIgnored, frame) != FrameDrop::kNone) continue;
    if (!inside(frame.payload) || frame.payload.size() > kMaxPathMtuBytes) std::abort();
  }
  return 0;
}
