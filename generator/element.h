// Element types of a reduction, and the two operations on them that the generator needs.
//
// Pure; any thread; little-endian bytes.
#pragma once

#include <cstdint>
#include <optional>
#include <span>
#include <string_view>

#include "common/bytes.h"

namespace gradtap::generator {

enum class ElementType : std::uint8_t { kFloat32, kFloat64, kFloat16, kBfloat16, kInt32, kInt64, kUint8 };

[[nodiscard]] std::uint32_t element_bytes(ElementType type);
[[nodiscard]] std::optional<ElementType> element_type_of(std::string_view name);  // "float32", "bf16", ...

// to[i] += from[i], rounded as the type rounds. Both hold the same number of whole elements.
void add_elements(ElementType type, std::span<std::uint8_t> to, ByteSpan from);

// to[i] = a part of whole[i], such that part and whole - part add up to exactly whole: the half of a number whose half
// is exact, else the number itself.
void halve_elements(ElementType type, std::span<std::uint8_t> to, ByteSpan whole);

}  // namespace gradtap::generator
