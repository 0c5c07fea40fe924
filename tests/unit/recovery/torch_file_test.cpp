#include "recovery/torch_file.h"

#include <cstring>
#include <string>

#include <doctest/doctest.h>
#include <fmt/format.h>
#include <nlohmann/json.hpp>

#include "recovery/pickle_writer.h"
#include "recovery/zip_stream.h"
#include "tests/unit/recovery/torch_tool.h"
#include "tests/unit/storage/store_fixture.h"

namespace gradtap::recovery {
namespace {

using nlohmann::json;
using namespace std::string_literals;

ByteSpan span_of(std::string_view text) {
  return {reinterpret_cast<const std::uint8_t*>(text.data()), text.size()};
}

replica::ByteSink into(std::string& out) {
  return [&out](ByteSpan part) -> Status {
    out.append(reinterpret_cast<const char*>(part.data()), part.size());
    return {};
  };
}

std::string hex(const std::string& bytes) {
  return to_hex(reinterpret_cast<const std::uint8_t*>(bytes.data()), bytes.size());
}

// Three storages of 6, 0 and 1 elements; every kind of value that a pickle of ours has.
std::string torch_file(std::uint64_t zip64_from) {
  PickleWriter pickle;
  pickle.begin_dict();
  pickle.text("a");
  pickle.tensor({0, 6, {2, 3}, {1, 2}});
  pickle.text("again");
  pickle.tensor({0, 6, {6}, {1}});
  pickle.text("none");
  pickle.tensor({1, 0, {0, 4}, {4, 1}});
  pickle.text("scalar");
  pickle.tensor({2, 1, {}, {}});
  pickle.text("ordered");
  pickle.begin_ordered_dict();
  pickle.text("\xc3\xa9");
  pickle.real(-0.1);
  pickle.text("nothing");
  pickle.none();
  pickle.end_dict();
  pickle.text("list");
  pickle.begin_list();
  for (const std::uint64_t n : {0UL, 255UL, 256UL, 65'535UL, 65'536UL, 2'147'483'647UL, 2'147'483'648UL, 1UL << 62})
    pickle.integer(n);
  pickle.end_list();
  pickle.text("tuple");
  pickle.begin_tuple();
  pickle.boolean(true);
  pickle.boolean(false);
  pickle.end_tuple();
  pickle.text("empty");
  pickle.begin_dict();
  pickle.end_dict();
  pickle.end_dict();
  const std::vector<std::vector<float>> storages = {{1, 2, 3, 4, 5, 6.5F}, {}, {42}};
  std::string out;
  const Status done = write_torch_file(
      pickle.finish(), {24, 0, 4},
      [&](std::size_t index, const replica::ByteSink& sink) -> Status {
        for (const float value : storages[index])  // in pieces
          if (const Status part = sink({reinterpret_cast<const std::uint8_t*>(&value), 4}); !part) return part;
        return {};
      },
      into(out), zip64_from);
  if (!done) FAIL(done.error().text());
  return out;
}

}  // namespace

TEST_CASE("CRC-32 has its published values, whole and in parts") {
  CHECK(crc32(0, span_of("")) == 0);
  CHECK(crc32(0, span_of("123456789")) == 0xCBF43926);
  CHECK(crc32(0, span_of("The quick brown fox jumps over the lazy dog")) == 0x414FA339);
  const std::string text = "The quick brown fox jumps over the lazy dog";
  for (std::size_t cut = 0; cut <= text.size(); ++cut)
    CHECK(crc32(crc32(0, span_of(text).first(cut)), span_of(text).subspan(cut)) == 0x414FA339);
}

TEST_CASE("a torch file, byte by byte") {
  PickleWriter pickle;
  pickle.begin_dict();
  pickle.text("x");
  pickle.tensor({0, 1, {}, {}});
  pickle.end_dict();
  const std::string text = pickle.finish();
  // Protocol 2, {, mark, 'x', torch._utils._rebuild_tensor_v2 ((storage id), 0, (), (), False, OrderedDict()), u, .
  const std::string expected =
      "\x80\x02}(X\x01\0\0\0xctorch._utils\n_rebuild_tensor_v2\n((X\x07\0\0\0storage"
      "ctorch\nFloatStorage\nX\x01\0\0\0"
      "0X\x03\0\0\0"
      "cpuK\x01tQK\0(t(t\x89"
      "ccollections\nOrderedDict\n)RtRu."s;
  CHECK(hex(text) == hex(expected));
  std::string out;
  REQUIRE(write_torch_file(
      text, {4},
      [](std::size_t, const replica::ByteSink& sink) -> Status {
        const std::uint8_t one[4] = {0, 0, 0x80, 0x3F};
        return sink(one);
      },
      into(out)));
  // Local header of data.pkl: version 20, UTF-8 names, stored, 1980-01-01; data at 64.
  CHECK(hex(out.substr(0, 14)) ==
        "504b0304140000080000000021"
        "00");
  CHECK(out.substr(30, 16) == "archive/data.pkl");
  CHECK(hex(out.substr(46, 4)) == "46420e00");
  CHECK(out.substr(50, 14) == std::string(14, 'Z'));
  CHECK(out.substr(64, text.size()) == text);
  // The storage: flag 3 of the local header, its bytes on a 64-byte boundary, then checksum (of 00 00 80 3f) and sizes.
  const std::size_t storage = out.find("archive/data/0") - 30;
  CHECK(hex(out.substr(storage, 30)) ==
        "504b03041400080800000000210000000000000000000000"
        "00000e00" +
            hex(out.substr(storage + 28, 2)));
  const std::size_t data = out.find(std::string("\0\0\x80\x3F", 4), storage);
  CHECK(data % 64 == 0);
  CHECK(hex(out.substr(data + 4, 4)) == "504b0708");
  CHECK(hex(out.substr(data + 12, 8)) == "0400000004000000");
  // End record: four members, no comment.
  CHECK(hex(out.substr(out.size() - 22, 12)) == "504b05060000000004000400");
}

TEST_CASE("torch loads it, small and in ZIP64 form") {
  if (test::torch_version().empty()) return;
  const storage::test::TempDir dir(true);
  for (const std::uint64_t zip64_from : {std::uint64_t{0xFFFF'FFFF}, std::uint64_t{0}, std::uint64_t{24}}) {
    const std::string path = dir.path + "/file.pt";
    test::write_file(path, torch_file(zip64_from));
    const test::TorchAnswer answer = test::ask_torch("plain " + path);
    REQUIRE_MESSAGE(answer.status == 0, answer.text);
    const json seen = json::parse(answer.text);
    const auto tensor = [](json values, json shape, json stride) {
      return json{{"tensor", std::move(values)},
                  {"shape", std::move(shape)},
                  {"stride", std::move(stride)},
                  {"dtype", "torch.float32"}};
    };
    CHECK(seen["a"] == tensor({1.0, 3.0, 5.0, 2.0, 4.0, 6.5}, {2, 3}, {1, 2}));
    CHECK(seen["again"] == tensor({1.0, 2.0, 3.0, 4.0, 5.0, 6.5}, json::array({6}), json::array({1})));
    CHECK(seen["none"] == tensor(json::array(), {0, 4}, {4, 1}));
    CHECK(seen["scalar"] == tensor(json::array({42.0}), json::array(), json::array()));
    CHECK(seen["ordered"] == json{{"\xc3\xa9", -0.1}, {"nothing", nullptr}});
    CHECK(seen["list"] == json({0, 255, 256, 65'535, 65'536, 2'147'483'647, 2'147'483'648, 1UL << 62}));
    CHECK(seen["tuple"] == json({true, false}));
    CHECK(seen["empty"] == json::object());
  }
}

TEST_CASE("a storage with too many or too few bytes is an error") {
  for (const std::uint64_t announced : {3, 5}) {
    std::string out;
    const Status done = write_torch_file(
        "x", {announced},
        [](std::size_t, const replica::ByteSink& sink) -> Status {
          const std::uint8_t four[4] = {};
          return sink(four);
        },
        into(out));
    REQUIRE_FALSE(done);
    CHECK(done.error().code == ErrorCode::kOutOfRange);
    CHECK(out.find("PK\x05\x06") == std::string::npos);
  }
}

TEST_CASE("more members than 16 bits count") {
  if (test::torch_version().empty()) return;
  const storage::test::TempDir dir(true);
  std::string out;
  ZipStream zip(into(out));
  for (int i = 0; i < 65'536; ++i) REQUIRE(zip.add(fmt::format("m{}", i), "x"));
  REQUIRE(zip.finish());
  const std::string path = dir.path + "/many.zip";
  test::write_file(path, out);
  const std::string command =
      "/usr/bin/python3 -c 'import zipfile; print(len(zipfile.ZipFile(\"" + path + "\").infolist()))'";
  std::FILE* const pipe = popen(command.c_str(), "r");
  REQUIRE(pipe != nullptr);
  int count = 0;
  CHECK(std::fscanf(pipe, "%d", &count) == 1);
  CHECK(pclose(pipe) == 0);
  CHECK(count == 65'536);
}

}  // namespace gradtap::recovery
