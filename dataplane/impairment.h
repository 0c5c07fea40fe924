// Impairment: what a mirror does to frames, on purpose and reproducibly.
//
// Purpose: a seeded injector for tests and for the simulator: loss (random, every k-th, bursts), duplicates, reordering
// within a distance, flipped payload bytes (with the checksum left wrong, or made right again), VLAN tags on half of
// the frames. Ownership: works on copies. Threads: one. Invariants: the same seed and input give the same output.
#pragma once

#include <cstdint>
#include <vector>

#include "common/random.h"
#include "dataplane/memory_port.h"

namespace gradtap::dataplane {

struct ImpairmentConfig {
  double drop_probability = 0;
  std::uint64_t drop_every = 0;  // each k-th frame starts a burst of drop_burst lost frames; 0: off
  std::uint64_t drop_burst = 1;
  double duplicate_probability = 0;
  double reorder_probability = 0;  // the frame is delayed
  std::uint32_t reorder_distance = 16;
  double flip_probability = 0;  // of frames with TCP payload
  bool flip_fixes_checksum = false;
  bool vlan_half = false;
};

struct ImpairmentReport {
  std::uint64_t dropped = 0;
  std::uint64_t duplicated = 0;
  std::uint64_t reordered = 0;
  std::uint64_t flipped = 0;
  std::uint64_t tagged = 0;
};

class Impairment {
 public:
  Impairment(const ImpairmentConfig& config, std::uint64_t seed) : config_(config), random_(seed) {}
  [[nodiscard]] std::vector<MemoryFrame> apply(const std::vector<MemoryFrame>& frames);
  [[nodiscard]] const ImpairmentReport& report() const { return report_; }

 private:
  [[nodiscard]] bool happens(double probability);
  void flip(MemoryFrame& frame);

  ImpairmentConfig config_;
  SeededRandom random_;
  ImpairmentReport report_;
};

}  // namespace gradtap::dataplane
