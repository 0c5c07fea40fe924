#include "generator/element.h"

#include <bit>
#include <cstring>

namespace gradtap::generator {
namespace {

float from_bfloat16(std::uint16_t bits) {
  return std::bit_cast<float>(std::uint32_t{bits} << 16);
}
std::uint16_t to_bfloat16(float value) {
  const auto bits = std::bit_cast<std::uint32_t>(value);
  if ((bits & 0x7fffffff) > 0x7f800000) return static_cast<std::uint16_t>(bits >> 16 | 0x40);  // NaN stays one
  return static_cast<std::uint16_t>((bits + 0x7fff + (bits >> 16 & 1)) >> 16);
}

float from_float16(std::uint16_t bits) {
  _Float16 value;
  std::memcpy(&value, &bits, sizeof value);
  return static_cast<float>(value);
}
std::uint16_t to_float16(float value) {
  const auto half = static_cast<_Float16>(value);
  std::uint16_t bits;
  std::memcpy(&bits, &half, sizeof bits);
  return bits;
}

template <class T, class F>
void each(std::span<std::uint8_t> to, ByteSpan from, F combine) {
  for (std::size_t at = 0; at + sizeof(T) <= to.size() && at + sizeof(T) <= from.size(); at += sizeof(T)) {
    T a, b;
    std::memcpy(&a, to.data() + at, sizeof(T));
    std::memcpy(&b, from.data() + at, sizeof(T));
    const T result = combine(a, b);
    std::memcpy(to.data() + at, &result, sizeof(T));
  }
}

// Halving a binary float is taking one from its exponent: exact while a normal number stays one.
template <class Bits>
void halve_floats(std::span<std::uint8_t> to, ByteSpan whole, unsigned mantissa_bits) {
  const Bits exponent_mask = static_cast<Bits>((~Bits{0} >> (mantissa_bits + 1)) << mantissa_bits);
  each<Bits>(to, whole, [&](Bits, Bits value) {
    const Bits field = static_cast<Bits>((value & exponent_mask) >> mantissa_bits);
    const bool exact = field > 1 && (value & exponent_mask) != exponent_mask;
    return exact ? static_cast<Bits>(value - (Bits{1} << mantissa_bits)) : value;
  });
}

}  // namespace

std::uint32_t element_bytes(ElementType type) {
  switch (type) {
    case ElementType::kFloat64:
    case ElementType::kInt64:
      return 8;
    case ElementType::kFloat16:
    case ElementType::kBfloat16:
      return 2;
    case ElementType::kUint8:
      return 1;
    case ElementType::kFloat32:
    case ElementType::kInt32:
      break;
  }
  return 4;
}

std::optional<ElementType> element_type_of(std::string_view name) {
  if (name == "float32" || name == "f32") return ElementType::kFloat32;
  if (name == "float64" || name == "f64") return ElementType::kFloat64;
  if (name == "float16" || name == "f16") return ElementType::kFloat16;
  if (name == "bfloat16" || name == "bf16") return ElementType::kBfloat16;
  if (name == "int32" || name == "i32") return ElementType::kInt32;
  if (name == "int64" || name == "i64") return ElementType::kInt64;
  if (name == "uint8" || name == "u8") return ElementType::kUint8;
  return std::nullopt;
}

void add_elements(ElementType type, std::span<std::uint8_t> to, ByteSpan from) {
  switch (type) {
    case ElementType::kFloat32:
      return each<float>(to, from, [](float a, float b) { return a + b; });
    case ElementType::kFloat64:
      return each<double>(to, from, [](double a, double b) { return a + b; });
    case ElementType::kFloat16:
      return each<std::uint16_t>(
          to, from, [](std::uint16_t a, std::uint16_t b) { return to_float16(from_float16(a) + from_float16(b)); });
    case ElementType::kBfloat16:
      return each<std::uint16_t>(
          to, from, [](std::uint16_t a, std::uint16_t b) { return to_bfloat16(from_bfloat16(a) + from_bfloat16(b)); });
    case ElementType::kInt32:
      return each<std::uint32_t>(to, from, [](std::uint32_t a, std::uint32_t b) { return a + b; });
    case ElementType::kInt64:
      return each<std::uint64_t>(to, from, [](std::uint64_t a, std::uint64_t b) { return a + b; });
    case ElementType::kUint8:
      return each<std::uint8_t>(to, from,
                                [](std::uint8_t a, std::uint8_t b) { return static_cast<std::uint8_t>(a + b); });
  }
}

void halve_elements(ElementType type, std::span<std::uint8_t> to, ByteSpan whole) {
  switch (type) {
    case ElementType::kFloat32:
      return halve_floats<std::uint32_t>(to, whole, 23);
    case ElementType::kFloat64:
      return halve_floats<std::uint64_t>(to, whole, 52);
    case ElementType::kFloat16:
      return halve_floats<std::uint16_t>(to, whole, 10);
    case ElementType::kBfloat16:
      return halve_floats<std::uint16_t>(to, whole, 7);
    case ElementType::kInt32:
      return each<std::int32_t>(to, whole, [](std::int32_t, std::int32_t w) { return w / 2; });
    case ElementType::kInt64:
      return each<std::int64_t>(to, whole, [](std::int64_t, std::int64_t w) { return w / 2; });
    case ElementType::kUint8:
      return each<std::uint8_t>(to, whole,
                                [](std::uint8_t, std::uint8_t w) { return static_cast<std::uint8_t>(w / 2); });
  }
}

}  // namespace gradtap::generator
