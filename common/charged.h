// Charged: a shared value together with the memory that was taken for it; both go at once.
#pragma once

#include <memory>
#include <utility>

#include "common/memory_ledger.h"

namespace gradtap {

template <class T>
[[nodiscard]] std::shared_ptr<T> charged(T value, MemoryLease lease) {
  struct Both {
    MemoryLease lease;  // given back after the value is gone
    T value;
  };
  auto both = std::make_shared<Both>(Both{std::move(lease), std::move(value)});
  return {both, &both->value};
}

}  // namespace gradtap
