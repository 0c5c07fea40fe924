// docs/errors.md against the text of common/error.h: every code, no other, with its printed name.
#include <map>
#include <regex>
#include <string>

#include <doctest/doctest.h>

#include "common/error.h"
#include "tests/test_files.h"

using namespace gradtap;
using gradtap::testing::read_text;

namespace {

// kStoreFull -> STORE_FULL, without asking the code under test.
std::string upper_name(const std::string& enumerator) {
  std::string out;
  for (std::size_t i = 1; i < enumerator.size(); ++i) {
    const char c = enumerator[i];
    if (c >= 'A' && c <= 'Z' && i > 1) out += '_';
    out += static_cast<char>(c >= 'a' && c <= 'z' ? c - 'a' + 'A' : c);
  }
  return out;
}

}  // namespace

TEST_CASE("docs/errors.md lists every error code with number, name, meaning and remedy") {
  const std::string header = read_text(GRADTAP_SOURCE_DIR "/common/error.h");
  std::map<int, std::string> codes;
  const std::regex enumerator(R"(\n\s+(k[A-Za-z0-9]+) = (\d+),)");
  for (std::sregex_iterator it(header.begin(), header.end(), enumerator), end; it != end; ++it) {
    const int number = std::stoi((*it)[2]);
    CHECK_MESSAGE(codes.emplace(number, upper_name((*it)[1])).second, "number used twice: ", number);
  }
  REQUIRE(codes.size() > 40);

  const std::string page = read_text(GRADTAP_SOURCE_DIR "/docs/errors.md");
  std::map<int, std::string> rows;
  const std::regex row(R"(\n\| (\d+) \| ([A-Z0-9_]+) \| ([^|\n]+) \| ([^|\n]+) \|)");
  for (std::sregex_iterator it(page.begin(), page.end(), row), end; it != end; ++it) {
    CHECK_MESSAGE(rows.emplace(std::stoi((*it)[1]), (*it)[2]).second, "row twice: ", (*it)[1].str());
    CHECK((*it)[3].length() > 5);
    CHECK((*it)[4].length() > 5);
  }
  for (const auto& [number, name] : codes) {
    CHECK_MESSAGE(rows.contains(number), "not in docs/errors.md: ", number, " ", name);
    if (rows.contains(number)) CHECK(rows.at(number) == name);
    CHECK(error_name(static_cast<ErrorCode>(number)) == name);
  }
  for (const auto& [number, name] : rows) CHECK_MESSAGE(codes.contains(number), "not in common/error.h: ", name);
}

TEST_CASE("an error prints everything that it knows") {
  const Error error{ErrorCode::kStoreFull, "no room", "/data", "10 bytes", "3 bytes", "free space"};
  CHECK(error.text() == "E406 STORE_FULL: no room at /data; expected 10 bytes; found 3 bytes; remedy: free space");
  CHECK(Error{ErrorCode::kTimeout, "late", {}, {}, {}, {}}.text() == "E510 TIMEOUT: late");
}
