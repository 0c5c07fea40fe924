#include "replica/safetensors.h"

#include <algorithm>
#include <array>
#include <utility>

#include <fmt/format.h>

#include "replica/json_fields.h"

namespace gradtap::replica {
namespace {

constexpr std::size_t kLengthBytes = 8;
constexpr std::uint64_t kMaxOffset = 1ULL << 62;
constexpr const char* kMetadata = "__metadata__";

std::unexpected<Error> malformed(std::string what, std::string where = {}, std::string expected = {},
                                 std::string actual = {}) {
  return fail(ErrorCode::kSafetensorsMalformed, std::move(what), std::move(where), std::move(expected),
              std::move(actual));
}

Result<std::uint64_t> element_bytes(std::string_view dtype, const std::vector<std::uint64_t>& shape,
                                    const std::string& name) {
  std::uint64_t bytes = dtype_bytes(dtype);
  if (bytes == 0) return malformed("a tensor has an unknown dtype", name, {}, std::string(dtype.substr(0, 16)));
  for (const std::uint64_t dim : shape)
    if (__builtin_mul_overflow(bytes, dim, &bytes) || bytes > kMaxOffset)
      return malformed("a tensor is impossibly large", name);
  return bytes;
}

Status read_tensor(const std::string& name, const Json& object, ByteSpan data, const SafetensorsLimits& limits,
                   Safetensors& file) {
  TensorView view;
  GRADTAP_LET(dtype, json_text(object, "dtype", name));
  view.dtype = std::move(dtype);
  GRADTAP_LET(shape, json_array(object, "shape", name, limits.dims));
  for (const Json& dim_json : *shape) {
    GRADTAP_LET(dim, json_uint_value(dim_json, name, kMaxOffset));
    view.shape.push_back(dim);
  }
  GRADTAP_LET(bytes, element_bytes(view.dtype, view.shape, name));
  GRADTAP_LET(offsets, json_array(object, "data_offsets", name, 2));
  if (offsets->size() != 2) return malformed("data_offsets are not two numbers", name);
  GRADTAP_LET(begin, json_uint_value((*offsets)[0], name, kMaxOffset));
  GRADTAP_LET(end, json_uint_value((*offsets)[1], name, kMaxOffset));
  if (begin > end || end > data.size() || end - begin != bytes)
    return malformed("a tensor's offsets do not fit its shape or the data", name,
                     fmt::format("{} bytes inside {}", bytes, data.size()), fmt::format("[{}, {})", begin, end));
  view.data = data.subspan(begin, bytes);
  file.tensors.emplace(name, std::move(view));
  return {};
}

Status check_cover(const Safetensors& file, ByteSpan data) {
  std::vector<std::pair<std::size_t, std::size_t>> ranges;
  for (const auto& [name, view] : file.tensors)
    if (!view.data.empty())
      ranges.emplace_back(static_cast<std::size_t>(view.data.data() - data.data()), view.data.size());
  std::sort(ranges.begin(), ranges.end());
  std::size_t at = 0;
  for (const auto& [begin, size] : ranges) {
    if (begin != at)
      return malformed(begin < at ? "two tensors overlap" : "data lies between tensors", "data_offsets",
                       fmt::format("{}", at), fmt::format("{}", begin));
    at = begin + size;
  }
  if (at != data.size())
    return malformed("data lies behind the last tensor", "data_offsets", fmt::format("{}", at),
                     fmt::format("{}", data.size()));
  return {};
}

// The helpers of json_fields speak of fields; here a wrong field means a malformed file.
Status as_malformed(Status status) {
  if (!status) status.error().code = ErrorCode::kSafetensorsMalformed;
  return status;
}

}  // namespace

std::size_t dtype_bytes(std::string_view dtype) {
  constexpr std::array<std::pair<std::string_view, std::size_t>, 15> kSizes = {{{"F64", 8},
                                                                                {"F32", 4},
                                                                                {"F16", 2},
                                                                                {"BF16", 2},
                                                                                {"F8_E4M3", 1},
                                                                                {"F8_E5M2", 1},
                                                                                {"I64", 8},
                                                                                {"I32", 4},
                                                                                {"I16", 2},
                                                                                {"I8", 1},
                                                                                {"U64", 8},
                                                                                {"U32", 4},
                                                                                {"U16", 2},
                                                                                {"U8", 1},
                                                                                {"BOOL", 1}}};
  for (const auto& [name, bytes] : kSizes)
    if (name == dtype) return bytes;
  return 0;
}

Result<Safetensors> read_safetensors(ByteSpan bytes, const SafetensorsLimits& limits) {
  if (bytes.size() < kLengthBytes) return malformed("a file is shorter than its length field");
  const auto header_bytes = load_le<std::uint64_t>(bytes.data());
  if (header_bytes > limits.header_bytes || header_bytes > bytes.size() - kLengthBytes)
    return malformed("a header is longer than the file or the limit", "header length",
                     fmt::format("at most {}", std::min(limits.header_bytes, bytes.size() - kLengthBytes)),
                     fmt::format("{}", header_bytes));
  const std::string_view text(reinterpret_cast<const char*>(bytes.data()) + kLengthBytes, header_bytes);
  const ByteSpan data = bytes.subspan(kLengthBytes + header_bytes);
  auto header = parse_json_object(text, "header");
  if (!header) return malformed("the header is not a JSON object", "header");
  if (header->size() > limits.tensors + 1)
    return malformed("a file has too many tensors", "header", fmt::format("at most {}", limits.tensors),
                     fmt::format("{}", header->size()));
  Safetensors file;
  for (const auto& [name, object] : header->items()) {
    if (name != kMetadata) {
      GRADTAP_TRY(as_malformed(read_tensor(name, object, data, limits, file)));
      continue;
    }
    if (!object.is_object() || object.size() > limits.metadata_entries)
      return malformed("the metadata is not an object, or too long", kMetadata);
    for (const auto& [key, value] : object.items()) {
      if (!value.is_string()) return malformed("a value of the metadata is not a string", kMetadata, {}, key);
      file.metadata.emplace(key, value.get_ref<const std::string&>());
    }
  }
  GRADTAP_TRY(check_cover(file, data));
  return file;
}

Result<std::string> safetensors_header(const std::vector<TensorDeclaration>& tensors,
                                       const std::map<std::string, std::string, std::less<>>& metadata) {
  Json header = Json::object();
  if (!metadata.empty()) header[kMetadata] = metadata;
  std::uint64_t offset = 0;
  for (const TensorDeclaration& tensor : tensors) {
    GRADTAP_LET(bytes, element_bytes(tensor.dtype, tensor.shape, tensor.name));
    if (header.contains(tensor.name) || tensor.name == kMetadata)
      return malformed("two tensors to write have one name", tensor.name);
    header[tensor.name] = {
        {"dtype", tensor.dtype}, {"shape", tensor.shape}, {"data_offsets", {offset, offset + bytes}}};
    offset += bytes;
  }
  // Names come from a trainer: invalid UTF-8 is replaced, never thrown about.
  std::string text = header.dump(-1, ' ', false, Json::error_handler_t::replace);
  text.resize((text.size() + kLengthBytes - 1) / kLengthBytes * kLengthBytes, ' ');
  const std::uint64_t length = text.size();
  return std::string(reinterpret_cast<const char*>(&length), sizeof length) + text;
}

Status write_safetensors(const std::vector<TensorDeclaration>& tensors,
                         const std::map<std::string, std::string, std::less<>>& metadata, const TensorSource& source,
                         const ByteSink& sink) {
  GRADTAP_LET(header, safetensors_header(tensors, metadata));
  GRADTAP_TRY(sink({reinterpret_cast<const std::uint8_t*>(header.data()), header.size()}));
  for (std::size_t i = 0; i < tensors.size(); ++i) {
    GRADTAP_LET(expected, element_bytes(tensors[i].dtype, tensors[i].shape, tensors[i].name));
    std::uint64_t written = 0;
    GRADTAP_TRY(source(i, [&](ByteSpan part) -> Status {
      written += part.size();
      return sink(part);
    }));
    if (written != expected)
      return malformed("a tensor to write has another size than declared", tensors[i].name, fmt::format("{}", expected),
                       fmt::format("{}", written));
  }
  return {};
}

}  // namespace gradtap::replica
