// Clock: time as a parameter, so that tests and simulators drive it.
//
// monotonic_ns is the only clock that decisions use; wall_ms is for people. Any thread.
#pragma once

#include <cstdint>

namespace gradtap {

inline constexpr std::uint64_t kNsPerSecond = 1'000'000'000;

class Clock {
 public:
  virtual ~Clock() = default;
  [[nodiscard]] virtual std::uint64_t monotonic_ns() const = 0;
  [[nodiscard]] virtual std::uint64_t wall_ms() const = 0;
};

class SystemClock final : public Clock {
 public:
  [[nodiscard]] std::uint64_t monotonic_ns() const override;
  [[nodiscard]] std::uint64_t wall_ms() const override;
};

// Advances only when told to. One thread.
class ManualClock final : public Clock {
 public:
  [[nodiscard]] std::uint64_t monotonic_ns() const override { return now_ns_; }
  [[nodiscard]] std::uint64_t wall_ms() const override { return now_ns_ / 1'000'000; }
  void advance_ns(std::uint64_t delta_ns) { now_ns_ += delta_ns; }
  void advance_ms(std::uint64_t delta_ms) { now_ns_ += delta_ms * 1'000'000; }

 private:
  std::uint64_t now_ns_ = 1;
};

}  // namespace gradtap
