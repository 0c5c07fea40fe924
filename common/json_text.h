// JsonText: text from outside as a document, or none.
//
// Purpose: a document that comes of it can be copied, compared and written: those call themselves once for each level
// of nesting, and a body of brackets alone would end the process. Plain functions, any thread. Invariants: no document
// is deeper than kJsonDepthMax; what is deeper costs no memory. Failure behaviour: a discarded document, nothing is
// thrown.
#pragma once

#include <algorithm>
#include <cstddef>
#include <string_view>

#include <nlohmann/json.hpp>

namespace gradtap {

inline constexpr std::size_t kJsonDepthMax = 64;

// How deep the brackets of a text are nested, strings left out.
[[nodiscard]] inline std::size_t json_depth(std::string_view text) {
  std::size_t depth = 0, most = 0;
  bool in_string = false;
  for (std::size_t i = 0; i < text.size(); ++i) {
    const char c = text[i];
    if (in_string) {
      if (c == '\\') ++i;
      if (c == '"') in_string = false;
    } else if (c == '"') {
      in_string = true;
    } else if (c == '[' || c == '{') {
      most = std::max(most, ++depth);
    } else if ((c == ']' || c == '}') && depth > 0) {
      --depth;
    }
  }
  return most;
}

[[nodiscard]] inline nlohmann::json parse_json_text(std::string_view text) {
  if (json_depth(text) > kJsonDepthMax) return nlohmann::json::value_t::discarded;
  return nlohmann::json::parse(text, nullptr, false);
}

}  // namespace gradtap
