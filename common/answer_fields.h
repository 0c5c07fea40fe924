// Fields of a node's answers, as they come: what is missing, or of another type, is empty. For bodies that must be
// refused by name when a field is wrong there is replica/json_fields.h.
//
// Plain functions over a parsed document of any form; nothing is thrown; any thread.
#pragma once

#include <cstdint>
#include <string>
#include <vector>

#include <nlohmann/json.hpp>

namespace gradtap::answer_fields {

[[nodiscard]] inline bool is_number(const nlohmann::json& value) {
  return value.is_number_unsigned() || (value.is_number_integer() && value.get<std::int64_t>() >= 0);
}

// A number from 0 on.
[[nodiscard]] inline std::uint64_t number(const nlohmann::json& object, const char* key) {
  const auto it = object.find(key);
  return it != object.end() && is_number(*it) ? it->get<std::uint64_t>() : 0;
}

[[nodiscard]] inline std::string text(const nlohmann::json& object, const char* key) {
  const auto it = object.find(key);
  return it != object.end() && it->is_string() ? it->get<std::string>() : std::string();
}

[[nodiscard]] inline bool flag(const nlohmann::json& object, const char* key) {
  const auto it = object.find(key);
  return it != object.end() && it->is_boolean() && it->get<bool>();
}

// Null where it is missing.
[[nodiscard]] inline nlohmann::json field(const nlohmann::json& object, const char* key) {
  const auto it = object.find(key);
  return it != object.end() ? *it : nlohmann::json();
}

// An array.
[[nodiscard]] inline nlohmann::json list(const nlohmann::json& object, const char* key) {
  const auto it = object.find(key);
  return it != object.end() && it->is_array() ? *it : nlohmann::json::array();
}

// Its objects; what is none is left out.
[[nodiscard]] inline std::vector<nlohmann::json> objects(const nlohmann::json& object, const char* key) {
  std::vector<nlohmann::json> found;
  const auto it = object.find(key);
  if (it == object.end() || !it->is_array()) return found;
  for (const nlohmann::json& entry : *it)
    if (entry.is_object()) found.push_back(entry);
  return found;
}

}  // namespace gradtap::answer_fields
