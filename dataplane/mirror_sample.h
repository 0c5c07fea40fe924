// MirrorSample: what a mirror port delivers in some seconds, against what a job's node must see there.
//
// Purpose: answers for `gradtap doctor`, before a job runs: does the mirror deliver at all, whole frames, with
// checksums, from which of the job's hosts. Ownership: none; frames are looked at and not kept. One thread. Invariants:
// every frame is counted once in `drops` (kNone: usable). Failure behaviour: none; whatever a frame is, it is counted.
#pragma once

#include <array>
#include <cstdint>
#include <vector>

#include "common/bytes.h"
#include "dataplane/frame_drop.h"
#include "dataplane/ip_packet.h"

namespace gradtap::dataplane {

enum class SampledTraffic : std::uint8_t { kTcp, kRoce };

class MirrorSample {
 public:
  // endpoints: the job's hosts, in rank order.
  MirrorSample(std::vector<IpAddress> endpoints, SampledTraffic traffic);

  // wire_bytes: how long the frame was before the kernel or the mirror cut it; 0: unknown.
  void frame(ByteSpan bytes, std::uint32_t wire_bytes);

  std::uint64_t frames = 0;
  std::uint64_t tunnelled = 0;   // VLAN tags are no tunnel
  std::uint64_t job_frames = 0;  // usable, between two of the job's hosts
  std::uint32_t longest_bytes = 0;
  std::array<std::uint64_t, kFrameDropCount> drops{};  // by FrameDrop; of wrong checksums only the job's count as such
  std::vector<std::uint64_t> sent;                     // payload bytes of the job from each endpoint

  [[nodiscard]] std::uint64_t dropped(FrameDrop drop) const { return drops[static_cast<std::size_t>(drop)]; }

 private:
  [[nodiscard]] std::size_t index_of(const IpAddress& address) const;
  FrameDrop judge(ByteSpan bytes, std::uint32_t wire_bytes);

  std::vector<IpAddress> endpoints_;
  SampledTraffic traffic_;
};

}  // namespace gradtap::dataplane
