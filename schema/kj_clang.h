// Cap'n Proto 0.9 compares `const char*` with kj::StringPtr through C++20's reversed operator, which clang 16 and later
// refuse (P2468). Included before every source of this folder when clang compiles it; not for others.
#pragma once

#include <kj/string.h>

namespace kj {
inline bool operator==(const char* a, const StringPtr& b) {
  return b == StringPtr(a);
}
inline bool operator!=(const char* a, const StringPtr& b) {
  return !(b == StringPtr(a));
}
}  // namespace kj
