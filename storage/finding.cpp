#include "storage/finding.h"

#include <fmt/format.h>

namespace gradtap::storage {

Error Finding::error() const {
  Error error;
  error.code = code;
  error.what = what;
  error.where = offset ? fmt::format("{} offset {}", key, *offset) : key;
  error.expected = expected;
  error.actual = actual;
  error.remedy = "restore it from a copy, or use an older recovery point";
  return error;
}

}  // namespace gradtap::storage
