#include "common/large_buffer.h"

#include <sys/mman.h>

namespace gradtap {
namespace {

constexpr std::uint64_t kHugePageBytes = std::uint64_t{2} << 20;
constexpr std::uint64_t kBufferBytesMax = std::uint64_t{1} << 46;

}  // namespace

LargeBuffer LargeBuffer::create(std::uint64_t bytes) {
  LargeBuffer buffer;
  if (bytes > kBufferBytesMax) return buffer;
  const bool huge = bytes >= kHugePageBytes;
  const std::uint64_t mapped = huge ? bytes + kHugePageBytes : bytes == 0 ? 1 : bytes;
  void* const mapping = mmap(nullptr, mapped, PROT_READ | PROT_WRITE, MAP_PRIVATE | MAP_ANONYMOUS, -1, 0);
  if (mapping == MAP_FAILED) return buffer;
  auto* address = static_cast<std::uint8_t*>(mapping);
  if (huge) {
    address += (kHugePageBytes - reinterpret_cast<std::uintptr_t>(mapping) % kHugePageBytes) % kHugePageBytes;
    (void)madvise(address, bytes, MADV_HUGEPAGE);  // a wish, not a need
  }
  buffer.mapping_ = mapping;
  buffer.mapped_bytes_ = mapped;
  buffer.data_ = address;
  buffer.size_ = bytes;
  return buffer;
}

LargeBuffer::~LargeBuffer() {
  if (mapping_ != nullptr) munmap(mapping_, mapped_bytes_);
}

}  // namespace gradtap
