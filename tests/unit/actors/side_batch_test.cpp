#include "actors/side_batch.h"

#include <doctest/doctest.h>

#include "common/random.h"

namespace gradtap::actors {
namespace {

using storage::SideEntry;

void check_refused(const std::vector<std::uint8_t>& bytes) {
  const auto decoded = decode_side_batch(bytes);
  REQUIRE_FALSE(decoded);
  CHECK(decoded.error().code == ErrorCode::kRequestMalformed);
  CHECK_FALSE(decoded.error().where.empty());
}

void check_same(const std::vector<SideEntry>& a, const std::vector<SideEntry>& b) {
  REQUIRE(a.size() == b.size());
  for (std::size_t i = 0; i < a.size(); ++i) {
    CHECK(a[i].key == b[i].key);
    CHECK(a[i].bytes == b[i].bytes);
  }
}

// docs/formats.md, written down a second time.
const std::vector<std::uint8_t> kGolden = {
    2, 0, 0, 0,                                            // two entries
    2, 0, 0, 0, 3, 0, 0, 0, 'k',  '1',  0xff, 0x00, 0x10,  // key of 2 bytes, value of 3
    3, 0, 0, 0, 0, 0, 0, 0, 0x05, 0x00, 'z',               // key of 3 bytes with a zero in it, no value
};
const std::vector<SideEntry> kEntries = {{"k1", {0xff, 0x00, 0x10}}, {std::string("\x05\0z", 3), {}}};

}  // namespace

TEST_CASE("a batch of side entries has these bytes") {
  CHECK(encode_side_batch(kEntries) == kGolden);
  const auto decoded = decode_side_batch(kGolden);
  REQUIRE(decoded);
  check_same(*decoded, kEntries);
  CHECK(encode_side_batch({}) == std::vector<std::uint8_t>{0, 0, 0, 0});
  REQUIRE(decode_side_batch(std::vector<std::uint8_t>{0, 0, 0, 0}));
}

TEST_CASE("a batch that was cut anywhere, or is longer than it says, is refused") {
  for (std::size_t cut = 0; cut < kGolden.size(); ++cut) {
    CAPTURE(cut);
    check_refused({kGolden.begin(), kGolden.begin() + static_cast<std::ptrdiff_t>(cut)});
  }
  auto longer = kGolden;
  longer.push_back(0);
  check_refused(longer);
}

TEST_CASE("hostile lengths are refused before anything is allocated for them") {
  check_refused({0xff, 0xff, 0xff, 0xff});                                           // four billion entries
  check_refused({1, 0, 0, 0, 0xff, 0xff, 0xff, 0xff, 0, 0, 0, 0, 'k'});              // a key of four billion bytes
  check_refused({1, 0, 0, 0, 1, 0, 0, 0, 0xff, 0xff, 0xff, 0xff, 'k'});              // a value of four billion bytes
  check_refused({1, 0, 0, 0, 0xff, 0xff, 0xff, 0xff, 0xff, 0xff, 0xff, 0xff, 'k'});  // both: no sum may wrap
  check_refused({1, 0, 0, 0, 0, 0, 0, 0, 1, 0, 0, 0, 'v'});                          // a key of no bytes
  std::vector<std::uint8_t> long_key = {1, 0, 0, 0, 1, 1, 0, 0, 0, 0, 0, 0};
  long_key.resize(long_key.size() + 257, 'k');
  check_refused(long_key);
  long_key[4] = 0;  // 256 is allowed
  long_key.pop_back();
  const auto decoded = decode_side_batch(long_key);
  REQUIRE(decoded);
  CHECK((*decoded)[0].key == std::string(256, 'k'));
}

TEST_CASE("random batches come back, and random bytes are a batch or an error") {
  SeededRandom random(17);
  for (int round = 0; round < 300; ++round) {
    std::vector<SideEntry> entries(random.below(6));
    for (SideEntry& entry : entries) {
      entry.key.resize(1 + random.below(kSideKeyBytesMax));
      for (char& c : entry.key) c = static_cast<char>(random.next());
      entry.bytes.resize(random.below(2000));
      for (auto& byte : entry.bytes) byte = static_cast<std::uint8_t>(random.next());
    }
    auto bytes = encode_side_batch(entries);
    const auto decoded = decode_side_batch(bytes);
    REQUIRE(decoded);
    check_same(*decoded, entries);
    // Whatever decodes has exactly one form.
    for (int i = 0; i < 20; ++i) {
      auto damaged = bytes;
      damaged[random.below(std::min<std::size_t>(damaged.size(), 24))] = static_cast<std::uint8_t>(random.below(5));
      const auto result = decode_side_batch(damaged);
      if (result) {
        CHECK(encode_side_batch(*result) == damaged);
      } else {
        CHECK(result.error().code == ErrorCode::kRequestMalformed);
      }
    }
  }
}

}  // namespace gradtap::actors
