// The ring schedule against a table that golden/ring_simulation.py made by playing the algorithm.
#include "dataplane/gloo_ring.h"

#include <fstream>
#include <sstream>
#include <string>
#include <vector>

#include <doctest/doctest.h>
#include <fmt/format.h>

#include "common/sha256.h"

using namespace gradtap;
using namespace gradtap::dataplane;

TEST_CASE("the ring schedule says what the algorithm sends, message by message") {
  std::ifstream table(std::string(GRADTAP_SOURCE_DIR) + "/tests/unit/dataplane/golden/gloo_ring.txt");
  REQUIRE(table.good());
  std::string line;
  int cases = 0;
  while (std::getline(table, line)) {
    std::istringstream words(line);
    std::uint32_t world = 0, element = 0;
    std::uint64_t bytes = 0, messages = 0;
    std::string digest;
    words >> world >> bytes >> element >> messages >> digest;
    const GlooRing ring(world);
    const OpSize size{bytes, element};
    std::string text;
    std::uint64_t count = 0;
    for (std::uint32_t source = 0; source < world; ++source) {
      const std::uint64_t sent = ring.message_count(source, size);
      for (std::uint64_t i = 0; i < sent; ++i) {
        const auto place = ring.place(source, size, i);
        REQUIRE(place.has_value());
        text += fmt::format("{} {} {} {} {}\n", source, i, place->phase == Phase::kFinal ? 1 : 0, place->op_offset,
                            place->bytes);
      }
      CHECK_FALSE(ring.place(source, size, sent).has_value());
      count += sent;
    }
    CAPTURE(line);
    CHECK(count == messages);
    CHECK(to_hex(sha256(text)) == digest);
    ++cases;
  }
  CHECK(cases == 588);
}

TEST_CASE("an edge never carries the chunk of its target in final form, and carries all others") {
  for (const std::uint32_t world : {2U, 3U, 4U, 7U}) {
    const OpSize size{world * 1000ULL * 4, 4};
    const GlooRing ring(world);
    const auto cut = gloo_ring_cut(world, size);
    const std::uint64_t chunk_bytes = cut.segments_per_chunk * cut.segment_bytes;
    for (std::uint32_t source = 0; source < world; ++source) {
      std::vector<std::uint64_t> seen(world, 0);
      for (std::uint64_t i = 0; i < ring.message_count(source, size); ++i) {
        const auto place = ring.place(source, size, i);
        if (place->phase == Phase::kFinal) seen[place->op_offset / chunk_bytes] += place->bytes;
      }
      for (std::uint32_t chunk = 0; chunk < world; ++chunk)
        CHECK(seen[chunk] == (chunk == (source + world - 1) % world ? 0 : 4000));
    }
  }
}

TEST_CASE("edges go from r to r-1 only") {
  const GlooRing ring(4);
  CHECK(ring.has_edge(0, 3));
  CHECK(ring.has_edge(3, 2));
  CHECK_FALSE(ring.has_edge(0, 1));
  CHECK_FALSE(ring.has_edge(4, 3));
  CHECK_FALSE(ring.has_edge(2, 2));
  CHECK_FALSE(GlooRing(1).has_edge(0, 0));
}

TEST_CASE("impossible sizes have no messages") {
  const GlooRing ring(4);
  for (const OpSize size : {OpSize{0, 4}, OpSize{6, 4}, OpSize{8, 0}, OpSize{~0ULL, 1}, OpSize{kMaxOpBytes + 4, 4}}) {
    CHECK(ring.message_count(0, size) == 0);
    CHECK_FALSE(ring.place(0, size, 0).has_value());
  }
  CHECK(ring.message_count(4, {4096, 4}) == 0);
  CHECK_FALSE(ring.place(1, {4096, 4}, ~0ULL).has_value());
}
