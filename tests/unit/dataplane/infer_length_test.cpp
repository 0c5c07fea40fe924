#include "dataplane/infer_length.h"

#include <algorithm>

#include <doctest/doctest.h>

#include "dataplane/gloo_ring.h"
#include "tests/unit/dataplane/ring_traffic.h"

using namespace gradtap;
using namespace gradtap::dataplane;
using gradtap::test::RingTraffic;

namespace {
std::vector<EdgeMessages> edges_of(const RingTraffic& traffic) {
  std::vector<EdgeMessages> edges;
  for (std::uint32_t source = 0; source < traffic.world; ++source) {
    EdgeMessages edge{source, true, {}};
    for (const auto& message : traffic.by_edge[source]) edge.lengths.push_back(message.bytes.size());
    edges.push_back(edge);
  }
  return edges;
}
}  // namespace

TEST_CASE("the length of an op follows from its messages, edge by edge and together") {
  SeededRandom random(1);
  for (const std::uint32_t world : {2U, 3U, 4U, 5U}) {
    const GlooRing ring(world);
    for (const std::uint64_t bytes : {4ULL, 8ULL, 12ULL, 28ULL, 32ULL, 36ULL, 40ULL, 44ULL, 96ULL, 100ULL, 4096ULL,
                                      19232ULL, 132756ULL, 1048580ULL, 9437188ULL}) {
      const RingTraffic traffic({}, world, bytes, 4, random);
      const auto edges = edges_of(traffic);
      CAPTURE(world);
      CAPTURE(bytes);
      const auto sizes = infer_op_size(ring, edges);
      REQUIRE_FALSE(sizes.empty());
      for (const OpSize& size : sizes) CHECK(size.bytes == bytes);
      CHECK(std::count(sizes.begin(), sizes.end(), OpSize{bytes, 4}) == 1);
      // One edge alone may leave several lengths (then nothing is said), but never a wrong one.
      for (const EdgeMessages& edge : edges) {
        if (edge.lengths.empty()) continue;
        for (const OpSize& size : infer_op_size(ring, {&edge, 1})) CHECK(size.bytes == bytes);
      }
    }
  }
}

TEST_CASE("two-byte elements are told from four-byte ones where the rounding differs") {
  SeededRandom random(2);
  const GlooRing ring(4);
  const RingTraffic traffic({}, 4, 66378, 2, random);
  const auto sizes = infer_op_size(ring, edges_of(traffic));
  REQUIRE_FALSE(sizes.empty());
  for (const OpSize& size : sizes) CHECK(size.bytes == 66378);
  CHECK(sizes.front().element_bytes == 2);
}

TEST_CASE("edges with holes or unproven numbers are not used; contradictions give nothing") {
  SeededRandom random(3);
  const GlooRing ring(4);
  const RingTraffic traffic({}, 4, 40000, 4, random);
  auto edges = edges_of(traffic);
  edges[0].lengths[3] = 0;
  edges[1].numbers_proven = false;
  edges[1].lengths.pop_back();
  CHECK(infer_op_size(ring, edges).front().bytes == 40000);
  CHECK(infer_op_size(ring, {edges.data(), 2}).empty());
  CHECK(infer_op_size(ring, {}).empty());
  edges[2].lengths[0] += 4;
  CHECK(infer_op_size(ring, edges).empty());
}
