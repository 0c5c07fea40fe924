// What the tests of the generator share: frames kept as they come, and values with exact sums.
#pragma once

#include <cstring>
#include <vector>

#include "common/random.h"
#include "generator/fabric_faults.h"
#include "generator/fabric_frame.h"

namespace gradtap::generator {

class Collector final : public FrameSink {
 public:
  void frame(std::uint64_t time_ns, ByteSpan bytes, const FrameNote& note) override {
    frames.push_back({time_ns, {bytes.begin(), bytes.end()}, note});
  }
  std::vector<HeldFrame> frames;
};

inline std::vector<std::uint8_t> floats(std::size_t count, SeededRandom& random) {
  std::vector<std::uint8_t> bytes(count * 4);
  for (std::size_t i = 0; i < count; ++i) {
    const float value = (static_cast<float>(random.below(2'000'001)) - 1'000'000.0F) / 65536.0F;
    std::memcpy(bytes.data() + 4 * i, &value, 4);
  }
  return bytes;
}

}  // namespace gradtap::generator
