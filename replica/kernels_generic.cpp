#include "replica/kernel_body.inc"
#include "replica/kernels.h"

namespace gradtap::replica {

const Kernels& generic_kernels() {
  static const Kernels kernels = make_kernels("generic");
  return kernels;
}

}  // namespace gradtap::replica
