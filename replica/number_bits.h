// Number: a scalar of the side channel, by its bits (docs/side-channel.md, "Numbers as bits").
//
// Purpose: learning rates and flags travel as bit patterns, so that a float32 tensor is never mistaken for a Python
// float. Parsing is strict: exact digit counts, lower-case hex, no sign games. Plain values; any thread.
#pragma once

#include <cstdint>
#include <string>
#include <string_view>

#include "common/error.h"

namespace gradtap::replica {

struct Number {
  enum class Kind : std::uint8_t { kNone, kF64, kF32Tensor, kF32, kInt, kBool };
  Kind kind = Kind::kNone;
  double f64 = 0;        // kF64
  float f32 = 0;         // kF32Tensor, kF32
  std::int64_t i64 = 0;  // kInt; 0 or 1 for kBool

  [[nodiscard]] static Number of_f64(double value) { return {Kind::kF64, value, 0, 0}; }
  [[nodiscard]] static Number of_f32_tensor(float value) { return {Kind::kF32Tensor, 0, value, 0}; }
  [[nodiscard]] static Number of_f32(float value) { return {Kind::kF32, 0, value, 0}; }
  [[nodiscard]] static Number of_int(std::int64_t value) { return {Kind::kInt, 0, 0, value}; }
  [[nodiscard]] static Number of_bool(bool value) { return {Kind::kBool, 0, 0, value ? 1 : 0}; }
};

[[nodiscard]] Result<Number> parse_number(std::string_view text, std::string_view where);
[[nodiscard]] std::string print_number(const Number& number);

}  // namespace gradtap::replica
