#include "replica/state_array.h"

#include <sys/mman.h>

namespace gradtap::replica {
namespace {

constexpr std::uint64_t kHugePage = 2U << 20;
constexpr std::uint64_t kMaxBytes = 1ULL << 46;

}  // namespace

StateArray StateArray::create(std::uint64_t elements) {
  StateArray array;
  if (elements > kMaxBytes / sizeof(float)) return array;
  const std::uint64_t bytes = elements == 0 ? sizeof(float) : elements * sizeof(float);
  const bool huge = bytes >= kHugePage;
  const std::uint64_t mapped = huge ? bytes + kHugePage : bytes;
  void* const mapping = mmap(nullptr, mapped, PROT_READ | PROT_WRITE, MAP_PRIVATE | MAP_ANONYMOUS, -1, 0);
  if (mapping == MAP_FAILED) return array;
  auto* address = static_cast<std::uint8_t*>(mapping);
  if (huge) {
    address += (kHugePage - reinterpret_cast<std::uintptr_t>(mapping) % kHugePage) % kHugePage;
    (void)madvise(address, bytes, MADV_HUGEPAGE);  // a wish, not a need
  }
  array.mapping_ = mapping;
  array.mapped_bytes_ = mapped;
  array.data_ = reinterpret_cast<float*>(address);
  return array;
}

StateArray::~StateArray() {
  if (mapping_ != nullptr) munmap(mapping_, mapped_bytes_);
}

}  // namespace gradtap::replica
