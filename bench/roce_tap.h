// What a tap does with bursts of RoCE frames, up to a given depth: nothing, a copy of every payload, decoding and flow
// tracking, or everything up to whole all-reduces in memory.
//
// Ownership: each owns its state from the first frame of a job on. Threads: one. Failure behaviour: what did not come
// out right is said by wrong(), and the run is void.
#pragma once

#include <memory>
#include <string>

#include "bench/roce_traffic.h"
#include "dataplane/port.h"

namespace gradtap::bench {

class RoceTap {
 public:
  virtual ~RoceTap() = default;
  virtual void burst(std::span<const dataplane::Frame> frames) = 0;
  virtual void pass_over() {}
  // Outside of the measured time, after each pass. Empty: all is well.
  [[nodiscard]] virtual std::string wrong() { return {}; }
};

enum class TapDepth { kReceive, kCopy, kDecode, kPlace };

[[nodiscard]] std::unique_ptr<RoceTap> make_roce_tap(TapDepth depth, bool verify_icrc, const RoceTraffic& traffic);

}  // namespace gradtap::bench
