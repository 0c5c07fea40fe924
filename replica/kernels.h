// Kernels: the elementwise arithmetic of the optimizers, one function per formula.
//
// Purpose: bit-exact loops over float32 arrays, compiled once for AVX2+FMA and once for any CPU; both give the same
// bits (fma is correctly rounded in both). Pure functions; any thread. Arrays must not overlap. This header is included
// by translation units built with special flags: only plain data here, nothing inline from the standard library.
#pragma once

#include <cstddef>
#include <cstdint>

namespace gradtap::replica {

// Everything already rounded to float32 the way torch rounds it (recipe.cpp).
struct AdamScalars {
  float beta1, one_minus_beta1;
  float beta2, one_minus_beta2;
  float lerp_weight;  // of the fma: w, or w - 1 when lerp works from the end
  bool lerp_from_end;
  float sqrt_correction2;  // sqrt(1 - beta2^t)
  float eps;
  float negative_step;  // -(lr / (1 - beta1^t))
  float decay;          // AdamW: 1 - lr*wd
  float weight_decay;   // Adam: L2, used by the l2 kernels only
  bool maximize;
};

struct SgdScalars {
  float momentum, one_minus_dampening;
  float negative_lr;
  float weight_decay;
  bool maximize;
};

struct KernelOp {
  bool clamp;
  float factor, lower, upper;
};

using AdamKernel = void (*)(const AdamScalars&, float* param, float* exp_avg, float* exp_avg_sq, float* max_exp_avg_sq,
                            const float* gradient, std::size_t count);
using SgdKernel = void (*)(const SgdScalars&, float* param, float* momentum, const float* gradient, std::size_t count);

enum AdamFlags : unsigned {
  kAdamDecoupled = 1,  // AdamW
  kAdamL2 = 2,         // Adam with weight decay
  kAdamLerp = 4,
  kAdamFma = 8,
  kAdamAmsgrad = 16,
  kAdamFusedTail = 32,  // tail of torch 2's fused kernel
  kAdamKernelCount = 64,
};

enum SgdFlags : unsigned {
  kSgdL2 = 1,
  kSgdMomentum = 2,
  kSgdFirst = 4,  // no momentum buffer yet: it becomes the gradient
  kSgdNesterov = 8,
  kSgdFma = 16,
  kSgdFusedTail = 32,
  kSgdKernelCount = 64,
};

struct Kernels {
  const char* name;
  AdamKernel adam[kAdamKernelCount];
  SgdKernel sgd[kSgdKernelCount];
  // At least one operation.
  void (*transform)(const KernelOp* ops, std::size_t op_count, const float* in, float* out, std::size_t count);
  // sums[2*s], sums[2*s+1] += the two-sum digest of stream s (1 to 4 streams of equal length, at most one block).
  // keys holds K_0(j), K_1(j) interleaved.
  void (*two_sum)(const std::uint32_t* const* streams, std::size_t stream_count, const std::uint64_t* keys,
                  std::size_t count, std::uint64_t* sums);
};

[[nodiscard]] const Kernels& generic_kernels();
[[nodiscard]] const Kernels* avx2_kernels();  // null when this CPU or build has none
[[nodiscard]] const Kernels& best_kernels();

}  // namespace gradtap::replica
