// Fields of a node's answers: what is missing, or of another type, is empty. Plain functions, any thread.
#pragma once

#include <cstdint>
#include <string>

#include <nlohmann/json.hpp>

namespace gradtap::commands {

inline std::uint64_t number(const nlohmann::json& object, const char* key) {
  const auto it = object.find(key);
  return it != object.end() && it->is_number_unsigned() ? it->get<std::uint64_t>() : 0;
}

inline std::string text(const nlohmann::json& object, const char* key) {
  const auto it = object.find(key);
  return it != object.end() && it->is_string() ? it->get<std::string>() : std::string();
}

}  // namespace gradtap::commands
