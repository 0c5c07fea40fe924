// TransformChain: the ordered elementwise operations between the reduced gradient and the optimizer.
//
// Purpose: unscale, clip by norm and clip by value, bit for bit as torch does them on the CPU: mul rounds once to
// float32; clamp is min(max(x, lower), upper) where a NaN passes through and a zero keeps its sign. The wire's
// gradient is never changed: results go to the caller's buffer. Immutable after parsing; any thread.
#pragma once

#include <cstdint>
#include <vector>

#include "common/error.h"

namespace gradtap::replica {

struct TransformOp {
  enum class Kind : std::uint8_t { kMul, kClamp };
  Kind kind = Kind::kMul;
  float factor = 1;            // kMul
  float lower = 0, upper = 0;  // kClamp; an absent bound is an infinity
};

[[nodiscard]] float apply_op(const TransformOp& op, float value);

struct Transform {
  TransformOp op;
  bool all = true;
  std::vector<std::uint32_t> parameters;  // sorted, unique; used when !all
};

class TransformChain {
 public:
  TransformChain() = default;
  // Refuses NaN bounds: torch answers them by filling with NaN, which no training run survives anyway.
  [[nodiscard]] static Result<TransformChain> create(std::vector<Transform> transforms);

  [[nodiscard]] float apply(float value, std::uint32_t parameter) const;
  // The operations that concern one parameter, in order.
  [[nodiscard]] std::vector<TransformOp> for_parameter(std::uint32_t parameter) const;
  [[nodiscard]] const std::vector<Transform>& transforms() const { return transforms_; }
  [[nodiscard]] bool empty() const { return transforms_.empty(); }

 private:
  std::vector<Transform> transforms_;
};

}  // namespace gradtap::replica
