// SideTraffic: what else runs over the fabric of a training job.
//
// Frames that a decoder must pass by: congestion notifications, management datagrams of QP 1, vendor frames whose ICRC
// does not verify, reads and sends of other applications, TCP, ARP, PTP. Drawn from a seed; one frame a call.
// Ownership: one scratch frame. Threads: one.
#pragma once

#include <cstdint>
#include <vector>

#include "common/random.h"
#include "generator/fabric_frame.h"
#include "generator/roce_writer.h"

namespace gradtap::generator {

class SideTraffic {
 public:
  // `paths` are some of the fabric's; congestion notifications and probes run on them.
  SideTraffic(std::vector<RocePath> paths, std::uint64_t seed) : paths_(std::move(paths)), random_(seed) {}
  void write(std::uint64_t time_ns, FrameSink& sink);

 private:
  void write_ethernet(std::uint16_t type, std::size_t bytes);

  std::vector<RocePath> paths_;
  SeededRandom random_;
  std::vector<std::uint8_t> frame_;
};

// Passes frames on and writes side traffic between them.
class WithSideTraffic final : public FrameSink {
 public:
  WithSideTraffic(SideTraffic side, double frames_per_frame, std::uint64_t seed, FrameSink& next)
      : side_(std::move(side)), frames_per_frame_(frames_per_frame), random_(seed), next_(next) {}
  void frame(std::uint64_t time_ns, ByteSpan bytes, const FrameNote& note) override;

 private:
  SideTraffic side_;
  double frames_per_frame_;
  SeededRandom random_;
  FrameSink& next_;
};

}  // namespace gradtap::generator
