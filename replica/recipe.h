// Recipe: which arithmetic the trainer's optimizer uses, and one optimizer step over a range of a tensor with it.
//
// Purpose: the same optimizer rounds differently in torch 1 and torch 2, with and without FMA, and in the tail of
// torch 2's fused kernels. A recipe names one combination; the numerics probe finds it (probe.h), nothing assumes it.
// Pure; any thread. Scalars are formed in double as Python does (pow and sqrt of libm) and rounded once to float32;
// with a float32-tensor lr in float32, as torch does.
#pragma once

#include <cstdint>
#include <optional>
#include <string>
#include <string_view>
#include <vector>

#include "replica/hyper.h"
#include "replica/kernels.h"
#include "replica/schema.h"

namespace gradtap::replica {

struct Recipe {
  bool lerp = false;        // exp_avg by lerp (torch 2) instead of mul and add (torch 1)
  bool fma = false;         // one rounding for a*b+c
  bool fused_tail = false;  // the last numel % 8 elements as in torch 2's fused kernels

  friend bool operator==(const Recipe&, const Recipe&) = default;
};

[[nodiscard]] std::vector<Recipe> all_recipes();
// Recipes with the same formulas for this optimizer count as one: this is the one that stands for them.
[[nodiscard]] Recipe canonical(Recipe recipe, OptimizerClass type, bool momentum);
[[nodiscard]] std::string recipe_name(const Recipe& recipe);  // "lerp+fma+fused-tail"
[[nodiscard]] std::optional<Recipe> recipe_of(std::string_view name);

// torch keeps the step counter as a float32: it stops here.
inline constexpr std::uint64_t kLastStepCounter = 1ULL << 24;

// A range of one tensor and its state. States are in the order of OptimizerSpec::kinds; all point at the first element
// of the range.
struct TensorRange {
  float* param = nullptr;
  float* momentum = nullptr;
  float* exp_avg = nullptr;
  float* exp_avg_sq = nullptr;
  float* max_exp_avg_sq = nullptr;
  std::uint64_t begin = 0;  // in the tensor
  std::uint64_t count = 0;
  std::uint64_t tensor_numel = 0;  // decides where the fused tail is
};

struct StepContext {
  OptimizerClass type = OptimizerClass::kSgd;
  Recipe recipe;
  const Kernels* kernels = nullptr;
};

// One step. `counter` is the parameter's step counter after this step (Adam, AdamW); `momentum_absent` makes SGD's
// buffer a copy of the gradient. Transforms are applied on the way; `gradient` is not changed.
void apply_range(const StepContext& context, const GroupHyper& hyper, std::uint64_t counter, bool momentum_absent,
                 const std::vector<TransformOp>& transforms, const TensorRange& range, const float* gradient);

}  // namespace gradtap::replica
