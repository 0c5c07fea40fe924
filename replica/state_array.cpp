#include "replica/state_array.h"

namespace gradtap::replica {

StateArray StateArray::create(std::uint64_t elements) {
  StateArray array;
  if (elements <= ~std::uint64_t{0} / sizeof(float)) array.buffer_ = LargeBuffer::create(elements * sizeof(float));
  return array;
}

}  // namespace gradtap::replica
