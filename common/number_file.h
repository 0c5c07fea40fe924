// A number that the kernel tells in a file of its own (/proc, /sys). Any thread.
#pragma once

#include <cstdint>
#include <fstream>
#include <string>

#include "common/number_text.h"

namespace gradtap {

// The first word of the file; 0 when there is no such file, or no number in it.
[[nodiscard]] inline std::uint64_t number_in_file(const std::string& path) {
  std::ifstream in(path);
  std::string text;
  in >> text;
  return parse_integer<std::uint64_t>(text).value_or(0);
}

}  // namespace gradtap
