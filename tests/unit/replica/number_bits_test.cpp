#include "replica/number_bits.h"

#include <bit>
#include <limits>

#include <doctest/doctest.h>

namespace gradtap::replica {

TEST_CASE("numbers as bits: patterns known from elsewhere") {
  // struct.pack(">d", 0.001).hex(), struct.pack(">f", 0.001).hex()
  const auto lr = parse_number("f64:3f50624dd2f1a9fc", "lr");
  REQUIRE(lr);
  CHECK(lr->kind == Number::Kind::kF64);
  CHECK(lr->f64 == 0.001);
  const auto tensor = parse_number("f32t:3a83126f", "lr");
  REQUIRE(tensor);
  CHECK(tensor->kind == Number::Kind::kF32Tensor);
  CHECK(tensor->f32 == 0.001F);
  const auto plain = parse_number("f32:3f800000", "x");
  REQUIRE(plain);
  CHECK(plain->kind == Number::Kind::kF32);
  CHECK(plain->f32 == 1.0F);
  CHECK(parse_number("i:-9223372036854775808", "x")->i64 == std::numeric_limits<std::int64_t>::min());
  CHECK(parse_number("b:1", "x")->i64 == 1);
  CHECK(parse_number("b:0", "x")->kind == Number::Kind::kBool);
  CHECK(parse_number("none", "x")->kind == Number::Kind::kNone);
  CHECK(std::bit_cast<std::uint64_t>(parse_number("f64:7ff8000000000001", "x")->f64) == 0x7ff8000000000001ULL);
}

TEST_CASE("numbers as bits: what is printed is what was read") {
  for (const char* text : {"f64:3f50624dd2f1a9fc", "f64:8000000000000000", "f32t:80000000", "f32:7f800000", "i:0",
                           "i:-12", "b:0", "b:1", "none"}) {
    const auto number = parse_number(text, "x");
    REQUIRE(number);
    CHECK(print_number(*number) == text);
  }
}

TEST_CASE("numbers as bits: anything else is an error that names the place") {
  for (const char* text : {"",
                           "f64",
                           "f64:",
                           "f64:3f50624dd2f1a9f",
                           "f64:3f50624dd2f1a9fc0",
                           "f64:3F50624DD2F1A9FC",
                           "f64:zz50624dd2f1a9fc",
                           "f32:3f8000",
                           "f32t:3f80000 ",
                           " f32:3f800000",
                           "i:",
                           "i:1.5",
                           "i:-0",
                           "i:007",
                           "i:+1",
                           "i:99999999999999999999",
                           "b:2",
                           "b:",
                           "None",
                           "0.001",
                           "f16:3c00"}) {
    CAPTURE(text);
    const auto number = parse_number(text, "groups[0].lr");
    REQUIRE(!number);
    CHECK(number.error().code == ErrorCode::kBadNumber);
    CHECK(number.error().where == "groups[0].lr");
  }
}

}  // namespace gradtap::replica
