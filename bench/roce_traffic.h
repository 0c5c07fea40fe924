// RoceTraffic: frames of NCCL all-reduces that can be played again and again as if the job went on.
//
// Purpose: one pass is some all-reduces of a ring with everything that a mirror of all links sees of them: data, clear
// to send, acknowledgements. advance() gives every frame the packet sequence number that it has in the next pass.
// Ownership: owns the frames. Threads: one.
#pragma once

#include <cstdint>
#include <unordered_map>
#include <vector>

#include "dataplane/icrc.h"
#include "dataplane/nccl_schedule.h"
#include "generator/nccl_job.h"

namespace gradtap::bench {

struct RoceTrafficConfig {
  dataplane::NcclProtocol protocol = dataplane::NcclProtocol::kSimple;
  std::uint32_t path_mtu_bytes = 1024;
  std::uint32_t ranks = 4;
  std::uint32_t channels = 2;
  std::uint32_t all_reduces = 1;
  std::uint64_t elements = 0;  // of each
};

class RoceTraffic {
 public:
  explicit RoceTraffic(const RoceTrafficConfig& config);

  // The next numbers for frames [begin, end); their check values too, if asked for.
  void advance(std::size_t begin, std::size_t end, bool check_values);

  [[nodiscard]] const std::vector<ByteSpan>& frames() const { return views_; }
  // Bytes of data in a pass: what writes carry.
  [[nodiscard]] std::uint64_t payload_bytes() const { return payload_bytes_; }
  [[nodiscard]] const std::vector<std::vector<std::uint8_t>>& reduced() const { return reduced_; }
  [[nodiscard]] const generator::JobConfig& job() const { return job_; }

 private:
  class Recorder;
  struct Numbered {
    std::size_t offset = 0;  // of the frame in bytes_
    std::uint16_t size = 0;
    std::uint16_t psn = 0;     // where in the frame it stands
    std::uint32_t stride = 0;  // what it grows by in a pass
  };
  void measure_strides();

  generator::JobConfig job_;
  std::vector<std::vector<std::uint8_t>> reduced_;
  std::vector<std::uint8_t> bytes_;
  std::vector<Numbered> numbered_;
  std::vector<ByteSpan> views_;
  std::uint64_t payload_bytes_ = 0;
};

}  // namespace gradtap::bench
