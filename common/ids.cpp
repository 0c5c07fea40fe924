#include "common/ids.h"

#include <algorithm>

#include "common/sha256.h"

namespace gradtap {

JobId job_id(std::string_view job_name) {
  const Sha256 digest = sha256(job_name);
  JobId id{};
  std::copy_n(digest.begin(), id.size(), id.begin());
  return id;
}

std::string to_hex(const std::uint8_t* bytes, std::size_t count) {
  static constexpr char kDigits[] = "0123456789abcdef";
  std::string text(count * 2, '0');
  for (std::size_t i = 0; i < count; ++i) {
    text[2 * i] = kDigits[bytes[i] >> 4];
    text[2 * i + 1] = kDigits[bytes[i] & 15];
  }
  return text;
}

bool from_hex(std::string_view text, std::uint8_t* bytes, std::size_t count) {
  if (text.size() != count * 2) return false;
  auto digit = [](char c) -> int {
    if (c >= '0' && c <= '9') return c - '0';
    if (c >= 'a' && c <= 'f') return c - 'a' + 10;
    return -1;
  };
  for (std::size_t i = 0; i < count; ++i) {
    const int high = digit(text[2 * i]);
    const int low = digit(text[2 * i + 1]);
    if (high < 0 || low < 0) return false;
    bytes[i] = static_cast<std::uint8_t>(high << 4 | low);
  }
  return true;
}

}  // namespace gradtap
