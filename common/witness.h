// Witness positions: which 8 elements of a bucket the trainer samples in a step (docs/side-channel.md).
// Pure; any thread. Equal to the trainer's function bit for bit.
#pragma once

#include <array>
#include <cstddef>
#include <cstdint>

#include "common/bytes.h"
#include "common/ids.h"
#include "common/random.h"

namespace gradtap {

inline constexpr std::size_t kWitnessPositions = 8;

// Element offsets inside the bucket; all 0 when the bucket is empty (it has no witness then).
[[nodiscard]] inline std::array<std::uint64_t, kWitnessPositions> witness_positions(const LayoutId& layout,
                                                                                    StepNumber step,
                                                                                    std::uint32_t bucket,
                                                                                    std::uint64_t numel) {
  std::array<std::uint64_t, kWitnessPositions> positions{};
  if (numel == 0) return positions;
  const auto salt = load_be<std::uint64_t>(layout.data());
  for (std::size_t j = 0; j < kWitnessPositions; ++j) {
    const std::uint64_t draw = step * 64 + bucket * 8ULL + j + 1;
    positions[j] = splitmix64_mix(salt + draw * kSplitmix64Increment) % numel;
  }
  return positions;
}

}  // namespace gradtap
