// Finding: one thing that is wrong with a stored object or record, in words that lead to the file.
// Plain values, any thread.
#pragma once

#include <cstdint>
#include <optional>
#include <string>

#include "common/error.h"

namespace gradtap::storage {

struct Finding {
  ErrorCode code = ErrorCode::kObjectCorrupt;
  std::string key;                      // of the object or record
  std::optional<std::uint64_t> offset;  // in the stored bytes: where the damaged stretch begins; none: not known
  std::string what;
  std::string expected;
  std::string actual;

  // where = "KEY offset N"
  [[nodiscard]] Error error() const;
};

}  // namespace gradtap::storage
