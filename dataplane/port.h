// Port: where mirrored frames come from, behind one small interface.
//
// Purpose: hide DPDK (and every test source) from the decoder. Ownership: a Frame belongs to the caller from rx_burst
// until release; its bytes do not move. Threads: rx_burst of one queue is called by one thread at a time; release may
// be called from any thread. Invariants: a frame that was cut (frame_bytes < wire_bytes) is never handed out; it is
// counted in PortCounters::oversized. Failure behaviour: drivers' own drop counters are not trusted for anything.
#pragma once

#include <cstdint>
#include <span>
#include <string>

namespace gradtap::dataplane {

struct Frame {
  const std::uint8_t* data = nullptr;
  std::uint32_t bytes = 0;       // captured bytes, starting at the Ethernet header
  std::uint32_t wire_bytes = 0;  // bytes on the wire, 0 when the source does not know
  void* handle = nullptr;        // the port's own (an rte_mbuf), opaque to everybody else
};

struct PortCounters {
  std::uint64_t frames = 0;
  std::uint64_t bytes = 0;
  std::uint64_t oversized = 0;   // refused: larger than the buffer, or captured shorter than on the wire
  std::uint64_t no_buffers = 0;  // polls that found nothing, while no packet buffer was free
};

class Port {
 public:
  virtual ~Port() = default;
  [[nodiscard]] virtual std::uint16_t queue_count() const = 0;
  // Fills out with up to out.size() frames; returns their number. 0 means nothing is there now.
  [[nodiscard]] virtual std::uint16_t rx_burst(std::uint16_t queue, std::span<Frame> out) = 0;
  virtual void release(std::span<const Frame> frames) = 0;
  // True when no frame will ever come again (a file that has been read to its end).
  [[nodiscard]] virtual bool exhausted() const = 0;
  // A live port loses what is not read in time: with credits exhausted its frames are dropped and counted. A port
  // that is not live (a file) is simply not polled meanwhile.
  [[nodiscard]] virtual bool live() const = 0;
  [[nodiscard]] virtual PortCounters counters() const = 0;
  [[nodiscard]] virtual std::string describe() const = 0;
};

}  // namespace gradtap::dataplane
