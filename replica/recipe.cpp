#include "replica/recipe.h"

#include <algorithm>
#include <cmath>

namespace gradtap::replica {
namespace {

constexpr std::size_t kChunkElements = 1024;  // the transformed gradient stays in the first-level cache
constexpr std::uint64_t kVectorElements = 8;  // torch's CPU kernels are always AVX2 wide

AdamScalars adam_scalars(const GroupHyper& hyper, std::uint64_t counter) {
  const double t = static_cast<double>(counter);
  const double correction1 = 1 - std::pow(hyper.beta1, t);
  const double correction2 = 1 - std::pow(hyper.beta2, t);
  AdamScalars scalars{};
  scalars.beta1 = static_cast<float>(hyper.beta1);
  scalars.one_minus_beta1 = static_cast<float>(1 - hyper.beta1);
  scalars.beta2 = static_cast<float>(hyper.beta2);
  scalars.one_minus_beta2 = static_cast<float>(1 - hyper.beta2);
  scalars.lerp_from_end = !(std::fabs(scalars.one_minus_beta1) < 0.5F);
  scalars.lerp_weight = scalars.lerp_from_end ? scalars.one_minus_beta1 - 1 : scalars.one_minus_beta1;
  scalars.sqrt_correction2 = static_cast<float>(std::sqrt(correction2));
  scalars.eps = static_cast<float>(hyper.eps);
  scalars.weight_decay = static_cast<float>(hyper.weight_decay);
  scalars.maximize = hyper.maximize;
  // The fused kernels read a tensor lr as a double; elsewhere the arithmetic happens between float32 tensors.
  if (hyper.lr.f32_tensor && !hyper.fused.value_or(false)) {
    const float lr = static_cast<float>(hyper.lr.value);
    scalars.negative_step = -(lr / static_cast<float>(correction1));
    scalars.decay = 1.0F - lr * scalars.weight_decay;
  } else {
    scalars.negative_step = static_cast<float>(-(hyper.lr.value / correction1));
    scalars.decay = static_cast<float>(1 - hyper.lr.value * hyper.weight_decay);
  }
  return scalars;
}

SgdScalars sgd_scalars(const GroupHyper& hyper) {
  SgdScalars scalars{};
  scalars.momentum = static_cast<float>(hyper.momentum);
  scalars.one_minus_dampening = static_cast<float>(1 - hyper.dampening);
  scalars.negative_lr = static_cast<float>(-hyper.lr.value);
  scalars.weight_decay = static_cast<float>(hyper.weight_decay);
  scalars.maximize = hyper.maximize;
  return scalars;
}

unsigned adam_flags(const StepContext& context, const GroupHyper& hyper) {
  unsigned flags = 0;
  if (context.type == OptimizerClass::kAdamW)
    flags |= kAdamDecoupled;
  else if (hyper.weight_decay != 0)
    flags |= kAdamL2;
  if (context.recipe.lerp) flags |= kAdamLerp;
  if (context.recipe.fma) flags |= kAdamFma;
  if (hyper.amsgrad) flags |= kAdamAmsgrad;
  return flags;
}

unsigned sgd_flags(const StepContext& context, const GroupHyper& hyper, bool momentum_absent) {
  unsigned flags = 0;
  if (hyper.weight_decay != 0) flags |= kSgdL2;
  if (hyper.momentum != 0) flags |= kSgdMomentum;
  if (hyper.momentum != 0 && momentum_absent) flags |= kSgdFirst;
  if (hyper.nesterov) flags |= kSgdNesterov;
  if (context.recipe.fma) flags |= kSgdFma;
  return flags;
}

// Calls run(offset, count, gradient) for consecutive parts of [begin, end) with the transformed gradient.
template <class F>
void for_chunks(const StepContext& context, const std::vector<KernelOp>& ops, const float* gradient,
                std::uint64_t begin, std::uint64_t end, F run) {
  if (begin >= end) return;
  if (ops.empty()) {
    run(begin, end - begin, gradient + begin);
    return;
  }
  alignas(64) float transformed[kChunkElements];
  for (std::uint64_t at = begin; at < end; at += kChunkElements) {
    const std::uint64_t count = std::min<std::uint64_t>(kChunkElements, end - at);
    context.kernels->transform(ops.data(), ops.size(), gradient + at, transformed, count);
    run(at, count, transformed);
  }
}

float* shifted(float* array, std::uint64_t offset) {
  return array == nullptr ? nullptr : array + offset;
}

}  // namespace

std::vector<Recipe> all_recipes() {
  std::vector<Recipe> recipes;
  for (const bool lerp : {false, true})
    for (const bool fma : {true, false})
      for (const bool tail : {false, true}) recipes.push_back({lerp, fma, tail});
  return recipes;
}

Recipe canonical(Recipe recipe, OptimizerClass type, bool momentum) {
  if (!recipe.fma) recipe.fused_tail = false;  // without fma both tails are the same two roundings
  if (type == OptimizerClass::kSgd) {
    recipe.lerp = false;
    if (!momentum) recipe.fused_tail = false;
  }
  return recipe;
}

std::string recipe_name(const Recipe& recipe) {
  std::string name = recipe.lerp ? "lerp" : "torch1";
  name += recipe.fma ? "+fma" : "+nofma";
  if (recipe.fused_tail) name += "+fused-tail";
  return name;
}

std::optional<Recipe> recipe_of(std::string_view name) {
  for (const Recipe& recipe : all_recipes())
    if (recipe_name(recipe) == name) return recipe;
  return std::nullopt;
}

void apply_range(const StepContext& context, const GroupHyper& hyper, std::uint64_t counter, bool momentum_absent,
                 const std::vector<TransformOp>& transforms, const TensorRange& range, const float* gradient) {
  std::vector<KernelOp> ops;
  ops.reserve(transforms.size());
  for (const TransformOp& op : transforms)
    ops.push_back({op.kind == TransformOp::Kind::kClamp, op.factor, op.lower, op.upper});

  const bool split = context.recipe.fused_tail && context.recipe.fma;
  const std::uint64_t tail_begin =
      split ? range.tensor_numel - range.tensor_numel % kVectorElements : range.tensor_numel;
  const std::uint64_t body =
      tail_begin <= range.begin ? 0 : std::min<std::uint64_t>(range.count, tail_begin - range.begin);

  if (context.type == OptimizerClass::kSgd) {
    const SgdScalars scalars = sgd_scalars(hyper);
    const unsigned flags = sgd_flags(context, hyper, momentum_absent);
    const auto run = [&](unsigned kernel) {
      return [&, kernel](std::uint64_t at, std::uint64_t count, const float* part) {
        context.kernels->sgd[kernel](scalars, range.param + at, shifted(range.momentum, at), part, count);
      };
    };
    for_chunks(context, ops, gradient, 0, body, run(flags));
    for_chunks(context, ops, gradient, body, range.count, run(flags | kSgdFusedTail));
    return;
  }
  const AdamScalars scalars = adam_scalars(hyper, counter);
  const unsigned flags = adam_flags(context, hyper);
  const auto run = [&](unsigned kernel) {
    return [&, kernel](std::uint64_t at, std::uint64_t count, const float* part) {
      context.kernels->adam[kernel](scalars, range.param + at, range.exp_avg + at, range.exp_avg_sq + at,
                                    shifted(range.max_exp_avg_sq, at), part, count);
    };
  };
  for_chunks(context, ops, gradient, 0, body, run(flags));
  for_chunks(context, ops, gradient, body, range.count, run(flags | kAdamFusedTail));
}

}  // namespace gradtap::replica
