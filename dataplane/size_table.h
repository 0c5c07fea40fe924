// SizeTable: the op sizes that the job's layouts allow. The wire does not carry the length of an op; assembly narrows
// these candidates by the message lengths it sees.
//
// Plain value, sorted and without duplicates; `version` rises with every change, so that a reader of a summary knows
// which sizes were known when it was made. Bounded by kMaxSizes.
#pragma once

#include <algorithm>
#include <cstddef>
#include <cstdint>
#include <vector>

#include "common/error.h"
#include "dataplane/gloo_ring.h"
#include "dataplane/schedule.h"

namespace gradtap::dataplane {

class SizeTable {
 public:
  static constexpr std::size_t kMaxSizes = 1024;

  // True if the size is new. An impossible size or one more than kMaxSizes is an error.
  [[nodiscard]] Result<bool> add(const OpSize& size) {
    if (size.bytes == 0 || size.bytes > kMaxOpBytes || size.element_bytes == 0 || size.bytes % size.element_bytes != 0)
      return fail(ErrorCode::kScheduleImpossible, "an op size cannot be", "", "a positive multiple of the element size",
                  std::to_string(size.bytes) + " bytes of " + std::to_string(size.element_bytes));
    const auto at = std::lower_bound(sizes_.begin(), sizes_.end(), size);
    if (at != sizes_.end() && *at == size) return false;
    if (sizes_.size() >= kMaxSizes)
      return fail(ErrorCode::kLimitReached, "too many different op sizes", "", std::to_string(kMaxSizes));
    sizes_.insert(at, size);
    ++version_;
    return true;
  }
  [[nodiscard]] const std::vector<OpSize>& sizes() const { return sizes_; }
  [[nodiscard]] std::uint32_t version() const { return version_; }

 private:
  std::vector<OpSize> sizes_;
  std::uint32_t version_ = 0;
};

}  // namespace gradtap::dataplane
