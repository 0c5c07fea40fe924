// ByteReader: bounds-checked reads from untrusted bytes, big or little endian.
//
// A read beyond the end returns zero and makes ok() false for ever; callers check ok() once, after the fields.
// Does not own the bytes. One thread.
#pragma once

#include <bit>
#include <cstddef>
#include <cstdint>
#include <cstring>
#include <span>

namespace gradtap {

using ByteSpan = std::span<const std::uint8_t>;

template <class T>
[[nodiscard]] inline T load_le(const std::uint8_t* p) {
  T value;
  std::memcpy(&value, p, sizeof value);
  static_assert(std::endian::native == std::endian::little, "gradtap runs on little-endian hosts");
  return value;
}

template <class T>
inline void store_le(std::uint8_t* p, T value) {
  std::memcpy(p, &value, sizeof value);
}

template <class T>
[[nodiscard]] inline T load_be(const std::uint8_t* p) {
  T value = 0;
  for (std::size_t i = 0; i < sizeof(T); ++i) value = static_cast<T>(static_cast<std::uint64_t>(value) << 8 | p[i]);
  return value;
}

template <class T>
inline void store_be(std::uint8_t* p, T value) {
  for (std::size_t i = 0; i < sizeof(T); ++i)
    p[i] = static_cast<std::uint8_t>(static_cast<std::uint64_t>(value) >> (8 * (sizeof(T) - 1 - i)));
}

class ByteReader {
 public:
  explicit ByteReader(ByteSpan bytes) : bytes_(bytes) {}

  template <class T>
  [[nodiscard]] T be() {
    return read<T>([](const std::uint8_t* p) { return load_be<T>(p); });
  }
  template <class T>
  [[nodiscard]] T le() {
    return read<T>([](const std::uint8_t* p) { return load_le<T>(p); });
  }
  void skip(std::size_t count) {
    if (count > remaining()) {
      ok_ = false;
      position_ = bytes_.size();
    } else {
      position_ += count;
    }
  }
  [[nodiscard]] ByteSpan take(std::size_t count) {
    if (count > remaining()) {
      skip(count);
      return {};
    }
    const ByteSpan part = bytes_.subspan(position_, count);
    position_ += count;
    return part;
  }
  [[nodiscard]] std::size_t remaining() const { return bytes_.size() - position_; }
  [[nodiscard]] std::size_t position() const { return position_; }
  [[nodiscard]] bool ok() const { return ok_; }

 private:
  template <class T, class F>
  T read(F load) {
    if (sizeof(T) > remaining()) {
      skip(sizeof(T));
      return T{};
    }
    const T value = load(bytes_.data() + position_);
    position_ += sizeof(T);
    return value;
  }

  ByteSpan bytes_;
  std::size_t position_ = 0;
  bool ok_ = true;
};

}  // namespace gradtap
