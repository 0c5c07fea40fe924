// RoceTraffic: frames of NCCL all-reduces that can be played again and again as if the job went on.
//
// Purpose: one pass is some all-reduces of a ring with everything that a mirror of all links sees of them: data, clear
// to send, acknowledgements. number() gives frames the packet sequence numbers that they have in a pass.
// Ownership: owns the frames. Threads: one.
#pragma once

#include <cstdint>
#include <vector>

#include "common/bytes.h"
#include "dataplane/nccl_schedule.h"
#include "generator/nccl_job.h"

namespace gradtap::bench {

struct RoceTrafficConfig {
  dataplane::NcclProtocol protocol = dataplane::NcclProtocol::kSimple;
  std::uint32_t path_mtu_bytes = 1024;
  std::uint32_t ranks = 4;
  std::uint32_t channels = 2;
  std::vector<std::uint64_t> elements;  // of each all-reduce of a pass
};

class RoceTraffic {
 public:
  explicit RoceTraffic(const RoceTrafficConfig& config);

  // Frames [begin, end) as of pass number `pass`, counted from 0 where the connections begin; with new check values,
  // if asked for.
  void number(std::size_t begin, std::size_t end, std::uint32_t pass, bool check_values);

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
    std::uint16_t psn_at = 0;  // where in the frame its number stands
    std::uint32_t first = 0;   // its number in the first pass
    std::uint32_t stride = 0;  // what that grows by in a pass
  };
  void find_numbers();

  generator::JobConfig job_;
  std::vector<std::vector<std::uint8_t>> reduced_;
  std::vector<std::uint8_t> bytes_;
  std::vector<Numbered> numbered_;
  std::vector<ByteSpan> views_;
  std::uint64_t payload_bytes_ = 0;
};

}  // namespace gradtap::bench
