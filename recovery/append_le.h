// append_le: a number in little-endian order at the end of a text, as pickles and zip archives have them. Pure.
#pragma once

#include <cstddef>
#include <string>

namespace gradtap::recovery {

template <class T>
void append_le(std::string& out, T value) {
  for (std::size_t i = 0; i < sizeof(T); ++i) out.push_back(static_cast<char>(value >> (8 * i) & 0xFF));
}

}  // namespace gradtap::recovery
