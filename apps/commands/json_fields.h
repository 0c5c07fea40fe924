// Fields of a node's answers: what is missing, or of another type, is empty. Plain functions, any thread.
#pragma once

#include <cstdint>
#include <string>
#include <vector>

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

inline bool flag(const nlohmann::json& object, const char* key) {
  const auto it = object.find(key);
  return it != object.end() && it->is_boolean() && it->get<bool>();
}

// Its objects; what is none is left out.
inline std::vector<nlohmann::json> objects(const nlohmann::json& object, const char* key) {
  std::vector<nlohmann::json> list;
  const auto it = object.find(key);
  if (it == object.end() || !it->is_array()) return list;
  for (const nlohmann::json& entry : *it)
    if (entry.is_object()) list.push_back(entry);
  return list;
}

}  // namespace gradtap::commands
