#include "dataplane/op_bytes.h"

#include <cstdlib>
#include <utility>

#include <sys/mman.h>

namespace gradtap::dataplane {
namespace {
constexpr std::size_t kGranule = 4096;  // equal buckets of a layout then always find each other's buffers
constexpr std::size_t kLargePage = std::size_t{2} << 20;
constexpr std::size_t kSmallAlignment = 64;

// In huge pages where the kernel has them: each byte is written once and read once, so page faults and misses of the
// address cache are a good part of its cost.
std::uint8_t* allocate(std::size_t capacity) {
  const bool large = capacity >= kLargePage;
  auto* const data = static_cast<std::uint8_t*>(std::aligned_alloc(large ? kLargePage : kSmallAlignment, capacity));
  if (data != nullptr && large) (void)madvise(data, capacity, MADV_HUGEPAGE);  // a wish, not a need
  return data;
}
}  // namespace

PooledBuffer::~PooledBuffer() {
  if (pool_) pool_->give_back(data_, capacity_);
}

std::shared_ptr<OpBufferPool> OpBufferPool::create(std::size_t limit_bytes, std::shared_ptr<MemoryLedger> memory) {
  return std::shared_ptr<OpBufferPool>(new OpBufferPool(limit_bytes, std::move(memory)));
}

OpBufferPool::~OpBufferPool() {
  while (!idle_.empty()) free_idle();
}

void OpBufferPool::free_idle() {
  const Idle oldest = idle_.front();
  idle_.erase(idle_.begin());
  usage_.idle_bytes -= oldest.capacity;
  std::free(oldest.data);
  if (memory_) memory_->give_back(MemoryAccount::kOps, oldest.capacity);
}

PooledBuffer OpBufferPool::acquire(std::size_t bytes) {
  const std::lock_guard lock(mutex_);
  if (bytes == 0 || bytes > usage_.limit_bytes) {
    ++usage_.refused;
    return {};
  }
  const std::size_t capacity = (bytes + kGranule - 1) / kGranule * kGranule;
  for (std::size_t i = idle_.size(); i-- > 0;) {
    // Exact reuse only: a larger one would hide how much memory the window really holds.
    if (idle_[i].capacity != capacity) continue;
    const Idle found = idle_[i];
    idle_[i] = idle_.back();
    idle_.pop_back();
    usage_.idle_bytes -= capacity;
    usage_.in_use_bytes += capacity;
    return {shared_from_this(), found.data, capacity};
  }
  while (!idle_.empty() && usage_.in_use_bytes + usage_.idle_bytes + capacity > usage_.limit_bytes) free_idle();
  if (usage_.in_use_bytes + capacity > usage_.limit_bytes) {
    ++usage_.refused;
    return {};
  }
  while (memory_ && !memory_->take(MemoryAccount::kOps, capacity)) {
    if (idle_.empty()) {
      ++usage_.refused;
      return {};
    }
    free_idle();
  }
  auto* data = allocate(capacity);
  if (data == nullptr) {
    if (memory_) memory_->give_back(MemoryAccount::kOps, capacity);
    ++usage_.refused;
    return {};
  }
  ++usage_.allocations;
  usage_.in_use_bytes += capacity;
  return {shared_from_this(), data, capacity};
}

void OpBufferPool::give_back(std::uint8_t* data, std::size_t capacity) {
  const std::lock_guard lock(mutex_);
  usage_.in_use_bytes -= capacity;
  usage_.idle_bytes += capacity;
  idle_.push_back({data, capacity});
}

OpBufferPool::Usage OpBufferPool::usage() const {
  const std::lock_guard lock(mutex_);
  return usage_;
}

}  // namespace gradtap::dataplane
