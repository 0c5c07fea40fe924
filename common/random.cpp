#include "common/random.h"

#include <cstdlib>

#include <sys/random.h>

namespace gradtap {

std::uint64_t SystemRandom::next() {
  std::uint64_t value = 0;
  // Reads of up to 256 bytes are never short once the pool is initialised (getrandom(2)).
  if (getrandom(&value, sizeof value, 0) != static_cast<ssize_t>(sizeof value)) std::abort();
  return value;
}

}  // namespace gradtap
