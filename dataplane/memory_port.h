// MemoryPort: a Port over frames in memory (a test's own, or all records of a capture file).
//
// Purpose: feed a decoder without DPDK. Frames are spread over the queues by a hash that is the same for both
// directions of a connection, as a card does it. Ownership: owns the frames; rx_burst hands out views that stay valid
// while the port lives, release() is only counted. Threads: one per queue. Invariants: as of Port.
#pragma once

#include <atomic>
#include <cstdint>
#include <memory>
#include <string>
#include <vector>

#include "common/error.h"
#include "dataplane/port.h"

namespace gradtap::dataplane {

struct MemoryFrame {
  std::vector<std::uint8_t> bytes;
  std::uint32_t wire_bytes = 0;  // 0: as many as bytes
};

// All records of a classic pcap file, up to max_bytes in total.
[[nodiscard]] Result<std::vector<MemoryFrame>> read_capture(const std::string& path,
                                                            std::uint64_t max_bytes = std::uint64_t{4} << 30);

class MemoryPort final : public Port {
 public:
  MemoryPort(std::vector<MemoryFrame> frames, std::uint16_t queues, std::string name = "memory");

  [[nodiscard]] std::uint16_t queue_count() const override { return static_cast<std::uint16_t>(queues_.size()); }
  [[nodiscard]] std::uint16_t rx_burst(std::uint16_t queue, std::span<Frame> out) override;
  void release(std::span<const Frame> frames) override;
  [[nodiscard]] bool exhausted() const override;
  [[nodiscard]] bool live() const override { return false; }
  [[nodiscard]] PortCounters counters() const override;
  [[nodiscard]] std::string describe() const override;
  [[nodiscard]] std::uint64_t unreleased() const { return out_.load(); }

 private:
  struct Queue {
    std::vector<std::uint32_t> order;
    std::atomic<std::size_t> next{0};
    std::uint64_t bytes = 0;
  };
  std::vector<MemoryFrame> frames_;
  std::vector<std::unique_ptr<Queue>> queues_;
  std::string name_;
  std::uint64_t oversized_ = 0;
  std::atomic<std::uint64_t> out_{0};
};

}  // namespace gradtap::dataplane
