// StateArray: a zeroed float32 array for shard state, in huge pages where the kernel has them.
//
// Purpose: the optimizer streams through several arrays at once; 2 MiB pages save a tenth of its time, and pages of a
// state that does not exist yet cost no memory. Owns its memory; movable; one thread. Failure behaviour: create()
// returns an empty array when there is no memory.
#pragma once

#include <cstdint>

#include "common/large_buffer.h"

namespace gradtap::replica {

class StateArray {
 public:
  [[nodiscard]] static StateArray create(std::uint64_t elements);

  [[nodiscard]] float* get() const { return reinterpret_cast<float*>(buffer_.data()); }
  [[nodiscard]] explicit operator bool() const { return buffer_.data() != nullptr; }

 private:
  LargeBuffer buffer_;
};

}  // namespace gradtap::replica
