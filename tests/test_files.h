// Files that tests read: whole texts, golden bytes in hexadecimal, recorded jobs. A missing one of ours fails the test;
// missing captures are skipped by name, because not every machine has them.
#pragma once

#include <cstdint>
#include <cstdio>
#include <cstdlib>
#include <filesystem>
#include <fstream>
#include <iterator>
#include <string>
#include <string_view>
#include <vector>

#include <doctest/doctest.h>

#include "common/ids.h"

namespace gradtap::testing {

inline std::string read_text(const std::string& path) {
  std::ifstream file(path, std::ios::binary);
  REQUIRE_MESSAGE(file.good(), path);
  return {std::istreambuf_iterator<char>(file), {}};
}

inline std::vector<std::uint8_t> bytes_of(std::string_view text) {
  return {text.begin(), text.end()};
}

// A file of the floor's golden folder; white space in it does not count.
inline std::vector<std::uint8_t> golden(const std::string& floor, const std::string& name) {
  const std::string path = GRADTAP_SOURCE_DIR "/tests/unit/" + floor + "/golden/" + name;
  std::ifstream file(path);
  REQUIRE_MESSAGE(file.good(), path);
  std::string text, part;
  while (file >> part) text += part;
  std::vector<std::uint8_t> bytes(text.size() / 2);
  REQUIRE(from_hex(text, bytes.data(), bytes.size()));
  return bytes;
}

// Empty (after a SKIPPED line) when the captures are not there.
inline std::string capture_path(const std::string& name, const std::string& test) {
  const char* const root = std::getenv("GRADTAP_CAPTURES");
  const std::string path =
      (root != nullptr ? std::string(root) : std::string(GRADTAP_SOURCE_DIR "/../shared/captures")) + "/" + name;
  if (std::filesystem::exists(path)) return path;
  std::printf("SKIPPED %s: no capture at %s\n", test.c_str(), path.c_str());
  return {};
}

}  // namespace gradtap::testing
