// Expected copies: the redundancy measured on real jobs (every chunk of a ring of 4 with all ports mirrored: 3 copies;
// the sending side of one port lacks one chunk; both sides of one port lack nothing).
#include "dataplane/coverage_plan.h"

#include <doctest/doctest.h>

#include "dataplane/gloo_ring.h"
#include "dataplane/nccl_ring.h"

using namespace gradtap;
using namespace gradtap::dataplane;

namespace {
CoveragePlan plan(std::uint32_t world, std::vector<MirroredEdge> edges,
                  RingDirection direction = RingDirection::kToRankBefore) {
  const auto result = plan_ring_coverage(world, direction, edges);
  REQUIRE(result.has_value());
  return *result;
}
}  // namespace

TEST_CASE("every port mirrored: world - 1 copies of every byte") {
  for (std::uint32_t world = 2; world < 9; ++world) {
    std::vector<MirroredEdge> edges;
    for (std::uint32_t a = 0; a < world; ++a)
      for (std::uint32_t b = 0; b < world; ++b)
        if (a != b) edges.push_back({a, b});
    const CoveragePlan p = plan(world, edges);
    CHECK(p.complete());
    CHECK(p.min_copies == world - 1);
    CHECK(p.max_copies == world - 1);
    CHECK(p.ring_edges == world);
  }
}

TEST_CASE("what one rank sends lacks the chunk of the rank it sends to") {
  const CoveragePlan four = plan(4, {{2, 1}, {2, 0}, {2, 3}});
  CHECK(four.uncovered_chunks == std::vector<std::uint32_t>{1});
  CHECK(four.copies == std::vector<std::uint32_t>{1, 0, 1, 1});
  CHECK_FALSE(four.complete());
  CHECK(plan(2, {{0, 1}}).uncovered_chunks == std::vector<std::uint32_t>{1});
}

TEST_CASE("what one rank receives lacks its own chunk") {
  CHECK(plan(4, {{3, 2}, {0, 2}}).uncovered_chunks == std::vector<std::uint32_t>{2});
}

TEST_CASE("both sides of one port, or the sending sides of two, lack nothing") {
  for (std::uint32_t rank = 0; rank < 4; ++rank) {
    const CoveragePlan port = plan(4, {{rank, (rank + 3) % 4}, {(rank + 1) % 4, rank}});
    CHECK(port.complete());
    CHECK(port.min_copies == 1);
    CHECK(port.max_copies == 2);
  }
  CHECK(plan(4, {{0, 3}, {2, 1}}).complete());
  CHECK(plan(4, {{0, 3}, {1, 0}}).complete());
}

TEST_CASE("an edge mirrored at both of its ports counts twice; nothing mirrored covers nothing") {
  const CoveragePlan twice = plan(3, {{0, 2}, {0, 2}, {1, 0}, {1, 0}, {2, 1}, {2, 1}});
  CHECK(twice.min_copies == 4);
  CHECK(plan(3, {}).uncovered_chunks.size() == 3);
  CHECK(plan(3, {{0, 1}, {1, 2}}).ring_edges == 0);
}

// Edges of ranks 0, 2 and 3 of five, and the chunks of 4096 bytes that they carry in final form.
void check_counted(const Schedule& ring, RingDirection direction) {
  const OpSize size{5 * 4096, 4};
  std::vector<MirroredEdge> edges;
  std::vector<std::uint32_t> counted(5, 0);
  for (const std::uint32_t source : {0U, 2U, 3U}) {
    edges.push_back({source, ring_target(source, 5, direction)});
    REQUIRE(ring.message_count(source, size) > 0);
    for (std::uint64_t i = 0; i < ring.message_count(source, size); ++i) {
      const auto place = ring.place(source, size, i);
      if (place && place->bytes > 0 && place->phase == Phase::kFinal && place->op_offset % 4096 == 0)
        ++counted[place->op_offset / 4096];
    }
  }
  CHECK(plan(5, edges, direction).copies == counted);
}

TEST_CASE("copies agree with what the schedules send") {
  check_counted(GlooRing(5), RingDirection::kToRankBefore);
  NcclTuning tuning;
  tuning.layout = NcclLayout::kFrom2_22;
  tuning.ranks = 5;
  tuning.ll_max_bytes = 1 << 20;
  const auto ring = NcclRing::make(tuning);
  REQUIRE(ring);
  check_counted(*ring, RingDirection::kToRankBehind);
}

TEST_CASE("ranks outside the job are refused") {
  const std::vector<MirroredEdge> edges = {{4, 3}};
  CHECK_FALSE(plan_ring_coverage(4, RingDirection::kToRankBefore, edges).has_value());
  CHECK_FALSE(plan_ring_coverage(1, RingDirection::kToRankBehind, {}).has_value());
}
