#if defined(__AVX2__) && defined(__FMA__)
#include "replica/kernel_body.inc"

namespace gradtap::replica {

const Kernels* avx2_kernels() {
  static const bool supported = __builtin_cpu_supports("avx2") && __builtin_cpu_supports("fma");
  if (!supported) return nullptr;
  static const Kernels kernels = make_kernels("avx2");
  return &kernels;
}

}  // namespace gradtap::replica
#else
#include "replica/kernels.h"

namespace gradtap::replica {

const Kernels* avx2_kernels() {
  return nullptr;
}

}  // namespace gradtap::replica
#endif
