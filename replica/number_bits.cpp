#include "replica/number_bits.h"

#include <bit>

#include <fmt/format.h>

#include "common/bytes.h"
#include "common/ids.h"
#include "common/number_text.h"

namespace gradtap::replica {
namespace {

constexpr std::size_t kShownText = 40;

std::unexpected<Error> not_bits(std::string_view text, std::string_view where) {
  return fail(ErrorCode::kBadNumber, "a number of the side channel is malformed", std::string(where),
              "f64:<16 hex>, f32t:<8 hex>, f32:<8 hex>, i:<decimal>, b:0, b:1 or none",
              std::string(text.substr(0, kShownText)));
}

template <std::size_t N>
bool lower_hex(std::string_view text, std::uint8_t (&bytes)[N]) {
  for (const char c : text)
    if (c >= 'A' && c <= 'F') return false;
  return text.size() == 2 * N && from_hex(text, bytes, N);
}

}  // namespace

Result<Number> parse_number(std::string_view text, std::string_view where) {
  if (text == "none") return Number{};
  if (text == "b:0") return Number::of_bool(false);
  if (text == "b:1") return Number::of_bool(true);
  const std::size_t colon = text.find(':');
  if (colon == std::string_view::npos) return not_bits(text, where);
  const std::string_view type = text.substr(0, colon);
  const std::string_view body = text.substr(colon + 1);
  if (type == "f64") {
    std::uint8_t bytes[8];
    if (!lower_hex(body, bytes)) return not_bits(text, where);
    return Number::of_f64(std::bit_cast<double>(load_be<std::uint64_t>(bytes)));
  }
  if (type == "f32t" || type == "f32") {
    std::uint8_t bytes[4];
    if (!lower_hex(body, bytes)) return not_bits(text, where);
    const float value = std::bit_cast<float>(load_be<std::uint32_t>(bytes));
    return type == "f32" ? Number::of_f32(value) : Number::of_f32_tensor(value);
  }
  if (type == "i") {
    const auto value = parse_integer<std::int64_t>(body);
    if (!value) return not_bits(text, where);
    return Number::of_int(*value);
  }
  return not_bits(text, where);
}

std::string print_number(const Number& number) {
  switch (number.kind) {
    case Number::Kind::kNone:
      return "none";
    case Number::Kind::kF64:
      return fmt::format("f64:{:016x}", std::bit_cast<std::uint64_t>(number.f64));
    case Number::Kind::kF32Tensor:
      return fmt::format("f32t:{:08x}", std::bit_cast<std::uint32_t>(number.f32));
    case Number::Kind::kF32:
      return fmt::format("f32:{:08x}", std::bit_cast<std::uint32_t>(number.f32));
    case Number::Kind::kInt:
      return fmt::format("i:{}", number.i64);
    case Number::Kind::kBool:
      return number.i64 != 0 ? "b:1" : "b:0";
  }
  return "none";
}

}  // namespace gradtap::replica
