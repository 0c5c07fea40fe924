// Division and rounding upwards, as the cutting rules of collectives use them. Pure; b > 0.
#pragma once

#include <cstdint>

namespace gradtap::dataplane {

constexpr std::uint64_t divide_up(std::uint64_t a, std::uint64_t b) {
  return (a + b - 1) / b;
}
constexpr std::uint64_t round_up(std::uint64_t a, std::uint64_t b) {
  return divide_up(a, b) * b;
}

}  // namespace gradtap::dataplane
