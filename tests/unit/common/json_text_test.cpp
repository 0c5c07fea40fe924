#include "common/json_text.h"

#include <string>

#include <doctest/doctest.h>

namespace gradtap {
namespace {

std::string nested(std::size_t depth, const char* open = "[", const char* close = "]") {
  std::string text;
  for (std::size_t i = 0; i < depth; ++i) text += open;
  text += "1";
  for (std::size_t i = 0; i < depth; ++i) text += close;
  return text;
}

}  // namespace

TEST_CASE("a document is taken to a depth and not further, whatever it is nested in") {
  CHECK(parse_json_text(nested(kJsonDepthMax)).is_array());
  CHECK(parse_json_text(nested(kJsonDepthMax + 1)).is_discarded());
  CHECK(parse_json_text(nested(kJsonDepthMax, R"({"a":)", "}")).is_object());
  CHECK(parse_json_text(nested(kJsonDepthMax + 1, R"({"a":)", "}")).is_discarded());
  CHECK(parse_json_text(nested(kJsonDepthMax / 2 + 1, R"([{"a":)", "}]")).is_discarded());
  // Copying or writing this would overflow the stack.
  CHECK(parse_json_text(R"({"a":)" + nested(4'000'000) + "}").is_discarded());
  CHECK(parse_json_text(std::string(16u << 20, '[')).is_discarded());
}

TEST_CASE("brackets in strings, and side by side, are no depth") {
  const std::string many(1000, '[');
  CHECK(json_depth("[\"" + many + "\"]") == 1);
  CHECK(json_depth("[\"\\\"" + many + "\"]") == 1);
  CHECK(json_depth("[\"\\\\\"," + nested(3) + "]") == 4);
  std::string wide = "[[]";
  for (int i = 0; i < 1000; ++i) wide += ",[]";
  CHECK(json_depth(wide + "]") == 2);
  CHECK(parse_json_text(wide + "]").size() == 1001);
  CHECK(json_depth("]]][") == 1);
  CHECK(json_depth("\"\\") == 0);
}

TEST_CASE("what is no document is discarded") {
  for (const char* const text : {"", "{", "nonsense", "[1,]", "\"\xff\"", "{\"a\":1}x"})
    CHECK(parse_json_text(text).is_discarded());
}

}  // namespace gradtap
