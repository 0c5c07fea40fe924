// Appending fields of headers to a frame, most significant byte first.
#pragma once

#include <cstdint>
#include <vector>

#include "common/bytes.h"

namespace gradtap::generator {

template <class T>
void put(std::vector<std::uint8_t>& to, T value) {
  const std::size_t at = to.size();
  to.resize(at + sizeof(T));
  store_be(to.data() + at, value);
}
inline void put24(std::vector<std::uint8_t>& to, std::uint32_t value) {
  put(to, static_cast<std::uint8_t>(value >> 16));
  put(to, static_cast<std::uint16_t>(value));
}
template <class Bytes>
void put_bytes(std::vector<std::uint8_t>& to, const Bytes& bytes) {
  to.insert(to.end(), bytes.begin(), bytes.end());
}

}  // namespace gradtap::generator
