#include "replica/safetensors.h"

#include <cstring>

#include <doctest/doctest.h>

namespace gradtap::replica {
namespace {

std::vector<std::uint8_t> file(const std::string& header, std::size_t data_bytes) {
  const std::uint64_t length = header.size();
  std::string text(reinterpret_cast<const char*>(&length), 8);
  text += header;
  for (std::size_t i = 0; i < data_bytes; ++i) text.push_back(static_cast<char>(i));
  return {text.begin(), text.end()};
}

}  // namespace

TEST_CASE("a file is read with its metadata, dtypes and shapes") {
  const auto bytes =
      file(R"({"__metadata__": {"step": "0"}, "b": {"dtype": "BF16", "shape": [2, 1], "data_offsets": [8, 12]},
    "a": {"dtype": "F32", "shape": [2], "data_offsets": [0, 8]}, "e": {"dtype": "I64", "shape": [0], "data_offsets": [3, 3]},
    "s": {"dtype": "U8", "shape": [], "data_offsets": [12, 13]}}   )",
           13);
  const auto read = read_safetensors(bytes);
  REQUIRE_MESSAGE(read, read.error().text());
  CHECK(read->metadata.at("step") == "0");
  CHECK(read->tensors.size() == 4);
  CHECK(read->tensors.at("a").data.size() == 8);
  CHECK(read->tensors.at("b").data[0] == 8);
  CHECK(read->tensors.at("b").shape == std::vector<std::uint64_t>{2, 1});
  CHECK(read->tensors.at("s").data[0] == 12);
}

TEST_CASE("a file whose parts do not fit together is refused") {
  const std::pair<const char*, std::size_t> wrong[] = {
      {R"({"a": {"dtype": "F32", "shape": [2], "data_offsets": [0, 8]}})", 7},   // data cut
      {R"({"a": {"dtype": "F32", "shape": [2], "data_offsets": [0, 8]}})", 9},   // data behind
      {R"({"a": {"dtype": "F32", "shape": [2], "data_offsets": [1, 9]}})", 9},   // a hole
      {R"({"a": {"dtype": "F32", "shape": [2], "data_offsets": [8, 0]}})", 8},   // backwards
      {R"({"a": {"dtype": "F32", "shape": [3], "data_offsets": [0, 8]}})", 8},   // shape
      {R"({"a": {"dtype": "F32", "shape": [3], "data_offsets": [0, 8]}})", 12},  // shape, though the data would do
      {R"({"a": {"dtype": "F33", "shape": [2], "data_offsets": [0, 8]}})", 8},   // dtype
      {R"({"a": {"dtype": "F32", "shape": [-2], "data_offsets": [0, 8]}})", 8},  //
      {R"({"a": {"dtype": "F32", "shape": 2, "data_offsets": [0, 8]}})", 8},     //
      {R"({"a": {"dtype": "F32", "shape": [2], "data_offsets": [0]}})", 8},      //
      {R"({"a": {"dtype": "F32", "shape": [2], "data_offsets": [0, 18446744073709551615]}})", 8},    //
      {R"({"a": {"dtype": "F32", "shape": [4611686018427387904, 4], "data_offsets": [0, 0]}})", 0},  // product wraps
      {R"({"a": {"dtype": "F32", "shape": [1], "data_offsets": [0, 4]}, "b": {"dtype": "F32", "shape": [2],
          "data_offsets": [0, 8]}})",
       8},                                      // overlap
      {R"({"__metadata__": {"step": 0}})", 0},  //
      {R"({"__metadata__": []})", 0},           //
      {R"({"a": 1})", 0},                       //
      {R"([])", 0},                             //
      {R"({)", 0},                              //
  };
  for (const auto& [header, data] : wrong) {
    CAPTURE(header);
    const auto read = read_safetensors(file(header, data));
    REQUIRE(!read);
    CHECK(read.error().code == ErrorCode::kSafetensorsMalformed);
  }
  CHECK_FALSE(read_safetensors({}));
  CHECK_FALSE(read_safetensors(std::vector<std::uint8_t>(7)));
  std::vector<std::uint8_t> long_header(8, 0xff);
  CHECK_FALSE(read_safetensors(long_header));
  long_header = file("{}", 0);
  ++long_header[0];
  CHECK_FALSE(read_safetensors(long_header));
  SafetensorsLimits limits;
  limits.tensors = 0;
  CHECK_FALSE(read_safetensors(
      file(
          R"({"a": {"dtype": "F32", "shape": [0], "data_offsets": [0, 0]}, "b": {"dtype": "F32", "shape": [0], "data_offsets": [0, 0]}})",
          0),
      limits));
  limits.header_bytes = 1;
  CHECK_FALSE(read_safetensors(file("{}", 0), limits));
}

TEST_CASE("a header as deep as the limit allows neither crashes nor passes") {
  std::string deep(1 << 20, '[');
  CHECK_FALSE(read_safetensors(file(deep, 0)));
  deep = "{\"a\":" + std::string(500'000, '[') + std::string(500'000, ']') + "}";
  CHECK_FALSE(read_safetensors(file(deep, 0)));
}

TEST_CASE("what is written is read back") {
  const std::vector<TensorDeclaration> tensors = {
      {"w\"\xff", "F32", {2, 2}}, {"none", "F32", {0, 5}}, {"w#exp_avg", "F32", {3}}};
  const std::vector<float> first = {1, 2, 3, 4}, second = {5, 6, 7};
  std::vector<std::uint8_t> bytes;
  const ByteSink sink = [&](ByteSpan part) -> Status {
    bytes.insert(bytes.end(), part.begin(), part.end());
    return {};
  };
  const auto span = [](const float* values, std::size_t count) {
    return ByteSpan(reinterpret_cast<const std::uint8_t*>(values), count * 4);
  };
  const TensorSource source = [&](std::size_t index, const ByteSink& out) -> Status {
    if (index == 0) {
      GRADTAP_TRY(out(span(first.data(), 1)));
      return out(span(first.data() + 1, 3));
    }
    return index == 2 ? out(span(second.data(), 3)) : Status{};
  };
  REQUIRE(write_safetensors(tensors, {{"step", "12"}}, source, sink));
  const auto read = read_safetensors(bytes);
  REQUIRE_MESSAGE(read, read.error().text());
  CHECK(read->metadata.at("step") == "12");
  CHECK(read->tensors.size() == 3);
  const TensorView& view = read->tensors.at("w#exp_avg");
  CHECK(std::memcmp(view.data.data(), second.data(), 12) == 0);
  CHECK((view.data.data() - bytes.data()) % 8 == 0);

  const TensorSource lazy = [](std::size_t, const ByteSink&) -> Status { return {}; };
  CHECK_FALSE(write_safetensors(tensors, {}, lazy, sink));  // declared, not written
  CHECK_FALSE(write_safetensors({{"a", "F32", {1}}, {"a", "F32", {1}}}, {}, lazy, sink));
}

}  // namespace gradtap::replica
