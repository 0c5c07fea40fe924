// Golden values come from Python's struct module and libxxhash (tests/unit/schema/golden/make_golden.py).
#include "storage/value_format.h"

#include <string>

#include <doctest/doctest.h>

#include "common/ids.h"
#include "storage/key.h"
#include "tests/test_files.h"

using namespace gradtap;
using namespace gradtap::storage;
using gradtap::testing::golden;

namespace {

ErrorCode code_of(const std::vector<std::uint8_t>& value) {
  const auto header = parse_chunk_header(value);
  return header ? ErrorCode{} : header.error().code;
}

std::string hex(const std::string& bytes) {
  return to_hex(reinterpret_cast<const std::uint8_t*>(bytes.data()), bytes.size());
}

}  // namespace

TEST_CASE("golden chunk value: read and written equal") {
  const auto value = golden("storage", "chunk.1.hex");
  const ChunkHeader header = parse_chunk_header(value).value();
  CHECK(header.plain_bytes == 10);
  CHECK(header.offset == 4096);
  CHECK(header.total == 4106);
  std::vector<std::uint8_t> written(value);
  std::fill(written.begin(), written.begin() + kChunkHeaderBytes, 0xEE);
  write_chunk_header(header, written.data());
  CHECK(written == value);
}

TEST_CASE("golden digest entry: read and written equal, and it fits the golden chunk") {
  const auto value = golden("storage", "digest.1.hex");
  const DigestEntry entry = parse_digest_entry(value).value();
  CHECK(entry.chunks == 2);
  CHECK(entry.digests == std::vector<std::uint64_t>{5, ~std::uint64_t{0}});
  const auto chunk = golden("storage", "chunk.1.hex");
  CHECK(entry.stored_bytes == chunk.size());
  CHECK(entry.xxh3_128 == xxh3_128(chunk));
  const std::string written = encode(entry);
  CHECK(std::vector<std::uint8_t>(written.begin(), written.end()) == value);
}

TEST_CASE("XXH3-128 of nothing is the published value") {
  CHECK(to_hex(xxh3_128({})) == "99aa06d3014798d86001c324468d497f");
}

TEST_CASE("hostile chunk values") {
  const auto good = golden("storage", "chunk.1.hex");
  CHECK(code_of(good) == ErrorCode{});
  const auto with = [&](std::size_t at, std::uint8_t byte) {
    auto value = good;
    value[at] = byte;
    return code_of(value);
  };
  CHECK(with(0, 'X') == ErrorCode::kStoreCorrupt);
  CHECK(with(4, 2) == ErrorCode::kStoreFormat);
  CHECK(with(4, 0) == ErrorCode::kStoreFormat);
  CHECK(with(6, 1) == ErrorCode::kStoreFormat);       // codec
  CHECK(with(7, 1) == ErrorCode::kStoreFormat);       // encryption
  CHECK(with(8, 11) == ErrorCode::kStoreCorrupt);     // plain bytes
  CHECK(with(12, 9) == ErrorCode::kStoreCorrupt);     // stored bytes
  CHECK(with(23, 0xFF) == ErrorCode::kStoreCorrupt);  // offset beyond the total
  CHECK(with(25, 0) == ErrorCode::kStoreCorrupt);     // total below offset + bytes
  for (std::size_t size = 0; size < good.size(); ++size)
    CHECK(code_of({good.begin(), good.begin() + static_cast<std::ptrdiff_t>(size)}) == ErrorCode::kStoreCorrupt);
  const auto digest = golden("storage", "digest.1.hex");
  for (std::size_t size = 0; size < digest.size(); ++size)
    CHECK_FALSE(parse_digest_entry(ByteSpan(digest).first(size)).has_value());
  auto huge = digest;
  for (std::size_t i = 28; i < 36; ++i) huge[i] = 0xFF;
  CHECK_FALSE(parse_digest_entry(huge).has_value());
}

TEST_CASE("keys: bytes as documented, order as numbers, and back") {
  ChunkKey key{};
  for (std::size_t i = 0; i < key.job.size(); ++i) key.job[i] = static_cast<std::uint8_t>(i);
  key.lineage = 0x01020304;
  key.shard = 0x05060708;
  key.step = 0x1112131415161718;
  key.kind = 0x21;
  key.chunk = 0x3132;
  const std::string text = encode(key);
  CHECK(hex(text) ==
        "000102030405060708090a0b0c0d0e0f"
        "01020304"
        "05060708"
        "1112131415161718"
        "21"
        "3132");
  CHECK(parse_chunk_key({reinterpret_cast<const std::uint8_t*>(text.data()), text.size()}).value() == key);
  CHECK_FALSE(parse_chunk_key({reinterpret_cast<const std::uint8_t*>(text.data()), text.size() - 1}));
  CHECK(hex(shard_key(key.job, key.lineage, key.shard)) == hex(text).substr(0, 48));
  CHECK(hex(side_key(SideKind::kStepMessage, key.job, 2, 0x0A0B, 3)) ==
        "04"
        "000102030405060708090a0b0c0d0e0f"
        "00000002"
        "0000000000000a0b"
        "00000003");
  ChunkKey later = key;
  key.step = 255;
  later.step = 256;
  CHECK(encode(key) < encode(later));
}
