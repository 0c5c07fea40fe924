// OpBytes: the final bytes of one op, immutable, handed from assembly to whoever needs them; OpBufferPool: the memory
// they live in.
//
// Purpose: memory for op buffers is taken from one limit, and from the node's ledger, before it is allocated, and
// reused. Ownership: the pool is shared; a PooledBuffer returns to it when it dies. Threads: a buffer may die on any
// thread (the last owner of an OpBytes lets go), so the pool locks, once per op, never per packet. Failure behaviour:
// at the limit acquire() gives an empty buffer and counts it; nothing throws.
#pragma once

#include <cstddef>
#include <cstdint>
#include <memory>
#include <mutex>
#include <span>
#include <utility>
#include <vector>

#include "common/memory_ledger.h"

namespace gradtap::dataplane {

class OpBufferPool;

class PooledBuffer {
 public:
  PooledBuffer() = default;
  PooledBuffer(std::shared_ptr<OpBufferPool> pool, std::uint8_t* data, std::size_t capacity)
      : pool_(std::move(pool)), data_(data), capacity_(capacity) {}
  PooledBuffer(PooledBuffer&& other) noexcept { swap(other); }
  PooledBuffer& operator=(PooledBuffer&& other) noexcept {
    PooledBuffer taken(std::move(other));
    swap(taken);
    return *this;
  }
  ~PooledBuffer();

  [[nodiscard]] explicit operator bool() const { return data_ != nullptr; }
  [[nodiscard]] std::uint8_t* data() const { return data_; }
  [[nodiscard]] std::size_t capacity() const { return capacity_; }

 private:
  void swap(PooledBuffer& other) noexcept {
    std::swap(pool_, other.pool_);
    std::swap(data_, other.data_);
    std::swap(capacity_, other.capacity_);
  }
  std::shared_ptr<OpBufferPool> pool_;
  std::uint8_t* data_ = nullptr;
  std::size_t capacity_ = 0;
};

class OpBufferPool : public std::enable_shared_from_this<OpBufferPool> {
 public:
  // `memory` may be null: the limit alone counts.
  [[nodiscard]] static std::shared_ptr<OpBufferPool> create(std::size_t limit_bytes,
                                                            std::shared_ptr<MemoryLedger> memory = nullptr);
  ~OpBufferPool();
  OpBufferPool(const OpBufferPool&) = delete;
  OpBufferPool& operator=(const OpBufferPool&) = delete;

  // At least `bytes`, 64-byte aligned, content undefined. Empty when the limit does not allow it.
  [[nodiscard]] PooledBuffer acquire(std::size_t bytes);

  struct Usage {
    std::size_t limit_bytes = 0;
    std::size_t in_use_bytes = 0;
    std::size_t idle_bytes = 0;  // kept for reuse
    std::uint64_t refused = 0;
    std::uint64_t allocations = 0;
  };
  [[nodiscard]] Usage usage() const;

 private:
  friend class PooledBuffer;
  OpBufferPool(std::size_t limit_bytes, std::shared_ptr<MemoryLedger> memory) : memory_(std::move(memory)) {
    usage_.limit_bytes = limit_bytes;
  }
  void free_idle();
  void give_back(std::uint8_t* data, std::size_t capacity);

  struct Idle {
    std::uint8_t* data;
    std::size_t capacity;
  };
  const std::shared_ptr<MemoryLedger> memory_;
  mutable std::mutex mutex_;
  std::vector<Idle> idle_;
  Usage usage_;
};

class OpBytes {
 public:
  OpBytes(PooledBuffer buffer, std::size_t size) : buffer_(std::move(buffer)), size_(size) {}
  [[nodiscard]] const std::uint8_t* data() const { return buffer_.data(); }
  [[nodiscard]] std::size_t size() const { return size_; }
  [[nodiscard]] std::span<const std::uint8_t> bytes() const { return {buffer_.data(), size_}; }

 private:
  PooledBuffer buffer_;
  std::size_t size_;
};

}  // namespace gradtap::dataplane
