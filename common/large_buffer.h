// LargeBuffer: bytes of a size known before, in huge pages where the kernel has them.
//
// Purpose: what is read once and given back soon (an object of some 50 MB) costs more in page faults of 4 KiB than in
// copying. Owns its memory, which begins zeroed; movable; one thread at a time. Failure behaviour: create() returns a
// buffer without memory where there is none: data() is null.
#pragma once

#include <cstddef>
#include <cstdint>
#include <span>
#include <utility>

namespace gradtap {

class LargeBuffer {
 public:
  LargeBuffer() = default;
  LargeBuffer(LargeBuffer&& other) noexcept { swap(other); }
  LargeBuffer& operator=(LargeBuffer&& other) noexcept {
    swap(other);
    return *this;
  }
  LargeBuffer(const LargeBuffer&) = delete;
  LargeBuffer& operator=(const LargeBuffer&) = delete;
  ~LargeBuffer();

  [[nodiscard]] static LargeBuffer create(std::uint64_t bytes);

  [[nodiscard]] std::uint8_t* data() const { return data_; }
  [[nodiscard]] std::size_t size() const { return size_; }
  [[nodiscard]] std::span<std::uint8_t> bytes() const { return {data_, size_}; }

 private:
  void swap(LargeBuffer& other) noexcept {
    std::swap(data_, other.data_);
    std::swap(size_, other.size_);
    std::swap(mapping_, other.mapping_);
    std::swap(mapped_bytes_, other.mapped_bytes_);
  }

  std::uint8_t* data_ = nullptr;
  std::size_t size_ = 0;
  void* mapping_ = nullptr;
  std::size_t mapped_bytes_ = 0;
};

}  // namespace gradtap
