#include "dataplane/capture_file.h"

#include <filesystem>
#include <fstream>
#include <vector>

#include <doctest/doctest.h>
#include <unistd.h>

#include "tests/unit/dataplane/decode_harness.h"

namespace gradtap::dataplane {
namespace {

using namespace testing;

std::vector<std::uint8_t> file_of(std::uint32_t magic, bool swapped,
                                  const std::vector<std::pair<std::uint32_t, std::uint32_t>>& records,
                                  std::uint32_t link = 1) {
  std::vector<std::uint8_t> out;
  const auto word = [&](std::uint32_t v) {
    if (swapped) v = __builtin_bswap32(v);
    for (int i = 0; i < 4; ++i) out.push_back(static_cast<std::uint8_t>(v >> 8 * i));
  };
  for (const std::uint32_t v : {magic, 0x00040002U, 0U, 0U, 65535U, link}) word(v);
  for (const auto& [captured, wire] : records) {
    for (const std::uint32_t v : {7U, 9U, captured, wire}) word(v);
    out.insert(out.end(), captured, 0xab);
  }
  return out;
}

Result<int> count(const std::vector<std::uint8_t>& file) {
  auto walker = CaptureWalker::over(file, "test");
  if (!walker) return std::unexpected(walker.error());
  CaptureRecord record;
  for (int n = 0;; ++n) {
    const auto more = walker->next(record);
    if (!more) return std::unexpected(more.error());
    if (!*more) return n;
  }
}

TEST_CASE("both byte orders, micro- and nanoseconds") {
  for (const bool swapped : {false, true}) {
    for (const std::uint32_t magic : {0xa1b2c3d4U, 0xa1b23c4dU}) {
      const auto file = file_of(magic, swapped, {{60, 60}, {0, 0}, {100, 1514}});
      auto walker = CaptureWalker::over(file, "test");
      REQUIRE(walker.has_value());
      CaptureRecord record;
      REQUIRE(walker->next(record).value());
      CHECK(record.bytes.size() == 60);
      CHECK(record.time_ns == 7'000'000'000ULL + (magic == 0xa1b2c3d4U ? 9000 : 9));
      REQUIRE(walker->next(record).value());
      REQUIRE(walker->next(record).value());
      CHECK(record.wire_bytes == 1514);
      CHECK(!walker->next(record).value());
    }
  }
}

TEST_CASE("hostile files end with a named error, at every length") {
  const auto good = file_of(0xa1b2c3d4, false, {{60, 60}, {70, 70}});
  CHECK(count(good).value() == 2);
  for (std::size_t length = 0; length < good.size(); ++length) {
    const auto result = count({good.begin(), good.begin() + static_cast<std::ptrdiff_t>(length)});
    const bool whole = length == 24 || length == 24 + 76;
    REQUIRE(result.has_value() == whole);
    if (!whole) REQUIRE(result.error().code == ErrorCode::kCaptureEndsEarly);
  }
  auto huge = good;
  huge[24 + 8 + 3] = 0x7f;
  CHECK(count(huge).error().code == ErrorCode::kCaptureMalformed);
  auto magic = good;
  magic[0] ^= 1;
  CHECK(count(magic).error().code == ErrorCode::kCaptureMalformed);
  CHECK(count(file_of(0xa1b2c3d4, false, {}, 113)).error().code == ErrorCode::kCaptureMalformed);
}

TEST_CASE("counts of a file on disk") {
  const auto path = std::filesystem::temp_directory_path() / ("capture" + std::to_string(getpid()));
  const auto file = file_of(0xa1b2c3d4, false, {{60, 60}, {60, 9014}, {1514, 1514}});
  std::ofstream(path, std::ios::binary)
      .write(reinterpret_cast<const char*>(file.data()), static_cast<std::streamsize>(file.size()));
  const auto open = CaptureFile::open(path.string());
  REQUIRE(open.has_value());
  const auto counts = open->count();
  REQUIRE(counts.has_value());
  CHECK(counts->records == 3);
  CHECK(counts->cut_records == 1);
  CHECK(counts->largest_bytes == 9014);
  CHECK(counts->bytes == 60 + 60 + 1514);
  std::filesystem::remove(path);
  CHECK(CaptureFile::open(path.string()).error().code == ErrorCode::kFileUnreadable);
  CHECK(CaptureFile::open("/tmp").error().code == ErrorCode::kFileUnreadable);
  const std::string capture = capture_path("gloo-n4/mon.pcap", "capture_file");
  if (capture.empty()) return;
  CHECK(CaptureFile::open(capture).value().count().value().records == 4820);
}

}  // namespace
}  // namespace gradtap::dataplane
