// DPDK ports: a monitor interface (net_af_packet), a capture file (net_pcap) or a ring in memory (net_ring) behind the
// Port interface.
//
// Purpose: receive without naming a DPDK type. Ownership: the caller owns the port and closes it before the Eal; frames
// are mbufs of the port's own pool. Threads: rx_burst of one queue by one thread (which called Eal::register_thread);
// release() from any thread. Invariants: a frame is handed out whole or counted as oversized; every record of a file
// is delivered exactly once (the driver drops records when the pool is empty, so it is never asked for more than fit).
// Failure behaviour: an interface whose frames could be cut is refused at open; what is cut later all the same
// (segmentation offload, a raised MTU) shows as FrameDrop::kTruncated in the decoder. The drivers' own drop counters
// stay 0 whatever happens: loss shows as holes only.
#pragma once

#include <cstdint>
#include <memory>
#include <span>
#include <string>

#include "common/bytes.h"
#include "common/error.h"
#include "dataplane/dpdk/eal.h"
#include "dataplane/port.h"

namespace gradtap::dataplane {

// Of frame_bytes this much is taken by the kernel's record in front of each frame.
inline constexpr std::uint32_t kAfPacketOverhead = 66;

struct AfPacketConfig {
  std::string interface;
  std::uint16_t queues = 1;
  std::uint32_t frame_bytes = 2048;   // slot of the ring, a power of two from 2048 to 32768
  std::uint32_t ring_frames = 16384;  // slots per queue; the kernel locks 2 * ring_frames * frame_bytes per queue
  std::uint32_t pool_frames = 32768;  // buffers; those not in the ring's hands are the credits of the receivers
};

struct PcapConfig {
  std::string file;
  std::uint32_t pool_frames = 4096;
};

struct RingConfig {
  std::uint32_t frame_bytes = 4608;  // the longest frame
  std::uint32_t pool_frames = 2048;
};

// The other end of a ring port. Threads: one, registered with the Eal.
class RingFeed {
 public:
  virtual ~RingFeed() = default;
  // Copies frames into buffers of the pool and passes them to the port, in order. Returns how many: the rest found no
  // buffer or no room (a ring holds kRingFrames), or is too long.
  [[nodiscard]] virtual std::size_t offer(std::span<const ByteSpan> frames) = 0;
};
inline constexpr std::size_t kRingFrames = 1023;

struct Ring {
  std::unique_ptr<Port> port;
  std::unique_ptr<RingFeed> feed;  // ends before the port
};

[[nodiscard]] Result<std::unique_ptr<Port>> open_af_packet_port(Eal& eal, const AfPacketConfig& config);
[[nodiscard]] Result<std::unique_ptr<Port>> open_pcap_port(Eal& eal, const PcapConfig& config);
// Frames that the program itself offers, through a driver all the same: for benchmarks and tests.
[[nodiscard]] Result<Ring> open_ring_port(Eal& eal, const RingConfig& config);

}  // namespace gradtap::dataplane
