// Random: randomness as a parameter, and the splitmix64 finaliser that witness and digests are built on.
#pragma once

#include <cstdint>

namespace gradtap {

// The finaliser of splitmix64 (Steele, Lea, Flood 2014): constants of PROTOCOLS 3.8.
[[nodiscard]] constexpr std::uint64_t splitmix64_mix(std::uint64_t z) {
  z = (z ^ (z >> 30)) * 0xBF58476D1CE4E5B9ULL;
  z = (z ^ (z >> 27)) * 0x94D049BB133111EBULL;
  return z ^ (z >> 31);
}

inline constexpr std::uint64_t kSplitmix64Increment = 0x9E3779B97F4A7C15ULL;

class Random {
 public:
  virtual ~Random() = default;
  [[nodiscard]] virtual std::uint64_t next() = 0;
};

// Deterministic; one thread.
class SeededRandom final : public Random {
 public:
  explicit SeededRandom(std::uint64_t seed) : state_(seed) {}
  [[nodiscard]] std::uint64_t next() override {
    state_ += kSplitmix64Increment;
    return splitmix64_mix(state_);
  }
  // Uniform enough for tests: modulo bias is below 2^-32 for bounds under 2^32.
  [[nodiscard]] std::uint64_t below(std::uint64_t bound) { return next() % bound; }

 private:
  std::uint64_t state_;
};

// Reads the kernel's generator. Any thread.
class SystemRandom final : public Random {
 public:
  [[nodiscard]] std::uint64_t next() override;
};

}  // namespace gradtap
