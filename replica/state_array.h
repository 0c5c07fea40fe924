// StateArray: a zeroed float32 array for shard state, in huge pages where the kernel has them.
//
// Purpose: the optimizer streams through several arrays at once; 2 MiB pages save a tenth of its time, and pages of a
// state that does not exist yet cost no memory. Owns its memory; movable; one thread. Failure behaviour: create()
// returns an empty array when there is no memory.
#pragma once

#include <cstddef>
#include <cstdint>
#include <utility>

namespace gradtap::replica {

class StateArray {
 public:
  StateArray() = default;
  StateArray(StateArray&& other) noexcept { swap(other); }
  StateArray& operator=(StateArray&& other) noexcept {
    swap(other);
    return *this;
  }
  StateArray(const StateArray&) = delete;
  StateArray& operator=(const StateArray&) = delete;
  ~StateArray();

  [[nodiscard]] static StateArray create(std::uint64_t elements);

  [[nodiscard]] float* get() const { return data_; }
  [[nodiscard]] explicit operator bool() const { return data_ != nullptr; }

 private:
  void swap(StateArray& other) noexcept {
    std::swap(data_, other.data_);
    std::swap(mapping_, other.mapping_);
    std::swap(mapped_bytes_, other.mapped_bytes_);
  }

  float* data_ = nullptr;
  void* mapping_ = nullptr;
  std::size_t mapped_bytes_ = 0;
};

}  // namespace gradtap::replica
