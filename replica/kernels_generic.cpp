#include "replica/kernel_body.inc"

namespace gradtap::replica {

const Kernels& generic_kernels() {
  static const Kernels kernels = make_kernels("generic");
  return kernels;
}

}  // namespace gradtap::replica
