// Safetensors: a bounded reader over untrusted bytes, and a streaming writer.
//
// Purpose: baseline and probe chunks in, exported state out. Reader: does not own the bytes (views stay valid as long
// as they do). Accepted only when header, dtypes, shapes and offsets fit together and the tensors cover the data
// exactly once. Pure; any thread. Failure behaviour: kSafetensorsMalformed, nothing half read.
#pragma once

#include <cstdint>
#include <functional>
#include <map>
#include <string>
#include <string_view>
#include <vector>

#include "common/bytes.h"
#include "common/error.h"

namespace gradtap::replica {

struct SafetensorsLimits {
  std::size_t header_bytes = 1U << 20;
  std::size_t tensors = 1U << 16;
  std::size_t dims = 32;
  std::size_t metadata_entries = 256;
};

struct TensorView {
  std::string dtype;  // "F32", "BF16", "I64", ...
  std::vector<std::uint64_t> shape;
  ByteSpan data;
};

struct Safetensors {
  std::map<std::string, std::string, std::less<>> metadata;
  std::map<std::string, TensorView, std::less<>> tensors;
};

[[nodiscard]] Result<Safetensors> read_safetensors(ByteSpan bytes, const SafetensorsLimits& limits = {});

// Bytes an element of a dtype has; 0 for an unknown dtype.
[[nodiscard]] std::size_t dtype_bytes(std::string_view dtype);

struct TensorDeclaration {
  std::string name;
  std::string dtype;
  std::vector<std::uint64_t> shape;
};

// The 8-byte length and the header, padded to 8 bytes; the data of the tensors follows in this order, without gaps.
[[nodiscard]] Result<std::string> safetensors_header(const std::vector<TensorDeclaration>& tensors,
                                                     const std::map<std::string, std::string, std::less<>>& metadata);

using ByteSink = std::function<Status(ByteSpan)>;
// Writes tensor `index` to the sink, in pieces of any size; the writer checks the sum.
using TensorSource = std::function<Status(std::size_t index, const ByteSink& sink)>;

[[nodiscard]] Status write_safetensors(const std::vector<TensorDeclaration>& tensors,
                                       const std::map<std::string, std::string, std::less<>>& metadata,
                                       const TensorSource& source, const ByteSink& sink);

}  // namespace gradtap::replica
