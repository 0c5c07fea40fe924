#include "link/bulk_request.h"

#include <numeric>

#include <doctest/doctest.h>

using namespace gradtap;
using namespace gradtap::link;

TEST_CASE("bytes in memory come in chunks that join to the bytes") {
  for (const std::size_t size : {0u, 1u, 9u, 10u, 11u, 100u}) {
    CAPTURE(size);
    std::vector<std::uint8_t> bytes(size);
    std::iota(bytes.begin(), bytes.end(), std::uint8_t{1});
    MemorySource source(bytes, "meta", 10);
    CHECK(source.meta() == "meta");
    CHECK(source.chunks() == size / 10 + (size % 10 != 0));
    std::vector<std::uint8_t> joined;
    for (std::uint64_t n = 0; n < source.chunks(); ++n) {
      const auto chunk = source.chunk(n).value();
      joined.insert(joined.end(), chunk.begin(), chunk.end());
    }
    CHECK(joined == bytes);
    CHECK(source.chunk(source.chunks()).error().code == ErrorCode::kOutOfRange);
  }
}

TEST_CASE("the identity of bytes in memory tells apart what must not be joined") {
  const std::vector<std::uint8_t> bytes(100, 7);
  auto other = bytes;
  other[50] = 8;
  const std::string identity = MemorySource(bytes, "", 10).identity();
  CHECK_FALSE(identity.empty());
  CHECK(MemorySource(bytes, "another text", 10).identity() == identity);
  CHECK(MemorySource(other, "", 10).identity() != identity);
  CHECK(MemorySource(bytes, "", 20).identity() != identity);
}
