// SideValue: a value of the trainer's side state in its encoding GTS1 (docs/side-channel.md, Side state).
//
// Purpose: an export can hand on what the trainer said of its buffers and of the optimizer's groups; nothing else of
// the node looks into side state. Ownership: text and bytes are views into the encoded bytes, which must outlive the
// value. Pure; any thread. Failure behaviour: bytes are hostile; BAD_TEXT with the offset.
#pragma once

#include <cstdint>
#include <string>
#include <string_view>
#include <utility>
#include <vector>

#include "common/bytes.h"
#include "common/error.h"

namespace gradtap::recovery {

struct SideValue {
  enum class Kind : std::uint8_t {
    kNone,
    kBool,
    kInteger,
    kReal,
    kText,
    kBytes,
    kList,
    kTuple,
    kDict,
    kTensor,
    kOther
  };
  Kind kind = Kind::kNone;
  std::int64_t integer = 0;  // kInteger; 0 or 1 for kBool
  double real = 0;
  ByteSpan bytes;                    // kText, kBytes; data of kTensor, row-major
  std::vector<SideValue> items;      // kList, kTuple; keys and values in turn of kDict
  std::string_view dtype;            // kTensor: "float32"
  std::vector<std::uint64_t> shape;  // kTensor

  [[nodiscard]] std::string_view text() const {
    return {reinterpret_cast<const char*>(bytes.data()), kind == Kind::kText ? bytes.size() : 0};
  }
  // The value under a text key of a dict; null when there is none.
  [[nodiscard]] const SideValue* find(std::string_view key) const;
};

struct SideValueLimits {
  std::uint32_t depth = 36;
  std::size_t values = std::size_t{1} << 21;
};

// What has no use in an export (sets, arrays, functions, ...) becomes kOther; its bytes are checked all the same.
[[nodiscard]] Result<SideValue> parse_side_value(ByteSpan bytes, const SideValueLimits& limits = {});

// Bytes of an element of a torch dtype; 0: unknown.
[[nodiscard]] std::size_t torch_dtype_bytes(std::string_view dtype);

}  // namespace gradtap::recovery
