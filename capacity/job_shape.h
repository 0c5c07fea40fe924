// JobShape: what a job brings, as far as capacity asks.
//
// Plain values, any thread. Zero means not known where zero makes no sense (step_time_s, shards).
#pragma once

#include <cstdint>
#include <string>
#include <string_view>
#include <utility>
#include <vector>

#include "common/error.h"

namespace gradtap::capacity {

// Which bytes a node takes off the mirror: `each` node the whole gradient, or every node its part, which it hands on to
// the owners over the node link.
enum class TapMode : std::uint8_t { kEach, kSpread };

// The frames of a transport: `payload_bytes` of the collective in `frame_bytes` of layer 2 with its check sequence.
struct FrameShape {
  std::string name = "roce-1024";
  double payload_bytes = 1024;
  double frame_bytes = 1086;
};
// roce-1024, roce-2048, roce-4096, tcp-1500, tcp-9000.
[[nodiscard]] Result<FrameShape> frame_shape(std::string_view name);
// Bytes that the mirror adds to a frame: none, vlan, qinq, erspan1, erspan2, erspan3, gre, vxlan.
[[nodiscard]] Result<double> encapsulation_bytes(std::string_view name);
// Bytes of an element: float32, bfloat16, float16, float64.
[[nodiscard]] Result<double> dtype_bytes(std::string_view name);

struct JobShape {
  double parameters = 0;
  double gradient_bytes = 4;                                           // of one parameter on the wire
  std::vector<std::pair<std::string, double>> state = {{"param", 4}};  // kinds of state, bytes of one parameter
  std::uint32_t ranks = 2;
  double step_time_s = 0;
  std::uint32_t mirrored_edges = 2;  // directed edges of the ring that the mirror shows
  FrameShape frame;
  double encapsulation_bytes = 0;
  TapMode tap = TapMode::kEach;
  std::uint32_t replicas = 2;
  std::uint64_t shards = 0;  // 0: as finely cut as one likes
  std::uint64_t publish_interval_steps = 1;
  std::uint64_t full_every_steps = 64;
  std::uint64_t keep_fulls = 2;
  double window_steps = 4;  // of op buffers at a tap
  double hold_steps = 16;   // kept for owners that are away

  [[nodiscard]] double state_bytes() const {  // of one parameter
    double sum = 0;
    for (const auto& [kind, bytes] : state) sum += bytes;
    return sum;
  }
};

}  // namespace gradtap::capacity
