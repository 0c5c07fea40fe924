#include "replica/kernels.h"

namespace gradtap::replica {

const Kernels& best_kernels() {
  const Kernels* const avx2 = avx2_kernels();
  return avx2 != nullptr ? *avx2 : generic_kernels();
}

}  // namespace gradtap::replica
