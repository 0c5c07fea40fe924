#include "common/number_text.h"

#include <cstdint>

#include <doctest/doctest.h>

using namespace gradtap;

TEST_CASE("integers are read whole, in range, and in one spelling only") {
  CHECK(parse_integer<std::uint64_t>("0") == 0U);
  CHECK(parse_integer<std::uint64_t>("18446744073709551615") == UINT64_MAX);
  CHECK(parse_integer<std::int64_t>("-9223372036854775808") == INT64_MIN);
  CHECK(parse_integer<std::int64_t>("-7") == -7);
  CHECK(parse_integer<std::uint16_t>("65535") == 65535);
  for (const char* text : {"", "-", "+1", "-1", " 1", "1 ", "1x", "0x1", "1.0", "1e3", "00", "01", "-0", "65536",
                           "18446744073709551616"}) {
    CAPTURE(text);
    CHECK_FALSE(parse_integer<std::uint16_t>(text));
  }
  for (const char* text : {"-0", "-01", "007", "9223372036854775808", "--1"}) {
    CAPTURE(text);
    CHECK_FALSE(parse_integer<std::int64_t>(text));
  }
}
