#include "dataplane/mirror_sample.h"

#include <algorithm>
#include <utility>

#include "dataplane/encapsulation.h"
#include "dataplane/frame.h"
#include "dataplane/roce_frame.h"

namespace gradtap::dataplane {

MirrorSample::MirrorSample(std::vector<IpAddress> endpoints, SampledTraffic traffic)
    : sent(endpoints.size()), endpoints_(std::move(endpoints)), traffic_(traffic) {}

std::size_t MirrorSample::index_of(const IpAddress& address) const {
  return static_cast<std::size_t>(std::find(endpoints_.begin(), endpoints_.end(), address) - endpoints_.begin());
}

void MirrorSample::frame(ByteSpan bytes, std::uint32_t wire_bytes) {
  ++frames;
  longest_bytes = std::max({longest_bytes, wire_bytes, static_cast<std::uint32_t>(bytes.size())});
  ++drops[static_cast<std::size_t>(judge(bytes, wire_bytes))];
}

FrameDrop MirrorSample::judge(ByteSpan bytes, std::uint32_t wire_bytes) {
  MirroredPacket packet;
  if (const FrameDrop drop = find_packet(bytes, wire_bytes, ChecksumPolicy::kRequired, packet);
      drop != FrameDrop::kNone)
    return drop;
  if (packet.tunnels > 0) ++tunnelled;
  const std::size_t from = index_of(packet.ip.source());
  const bool of_job = from < endpoints_.size() && index_of(packet.ip.target()) < endpoints_.size();
  std::size_t payload = 0;
  if (traffic_ == SampledTraffic::kRoce) {
    RoceFrame roce;
    if (const FrameDrop drop = parse_roce(packet.ip, IcrcPolicy::kRequired, roce); drop != FrameDrop::kNone)
      return drop;
    payload = roce.payload.size();
  } else {
    FrameView view;
    const FrameDrop drop = parse_tcp(packet.ip, ChecksumPolicy::kRequired, view);
    // This machine's own traffic on the interface may have checksums that its card fills in later.
    if (drop == FrameDrop::kBadTcpChecksum && !of_job) return FrameDrop::kNone;
    if (drop != FrameDrop::kNone) return drop;
    payload = view.payload.size();
  }
  if (of_job) {
    ++job_frames;
    sent[from] += payload;
  }
  return FrameDrop::kNone;
}

}  // namespace gradtap::dataplane
