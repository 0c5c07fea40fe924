// IntervalSet against a bitmap, with random operations.
#include "common/interval_set.h"

#include <algorithm>
#include <vector>

#include <doctest/doctest.h>

#include "common/random.h"

using namespace gradtap;

namespace {

constexpr std::uint64_t kSize = 257;

std::vector<Interval> runs(const std::vector<bool>& bits, bool value, std::uint64_t begin, std::uint64_t end) {
  std::vector<Interval> out;
  for (std::uint64_t i = begin; i < end; ++i) {
    if (bits[i] != value) continue;
    if (!out.empty() && out.back().end == i) {
      ++out.back().end;
    } else {
      out.push_back({i, i + 1});
    }
  }
  return out;
}

}  // namespace

TEST_CASE("random adds, removes and questions agree with a bitmap") {
  for (std::uint64_t seed = 0; seed < 200; ++seed) {
    CAPTURE(seed);
    SeededRandom random(seed);
    IntervalSet set;
    std::vector<bool> bits(kSize, false);
    for (int turn = 0; turn < 120; ++turn) {
      std::uint64_t begin = random.below(kSize + 1);
      std::uint64_t end = random.below(4) == 0 ? random.below(kSize + 1) : std::min(kSize, begin + random.below(20));
      if (begin > end) std::swap(begin, end);
      switch (random.below(8)) {
        case 0: {
          set.remove(begin, end);
          for (std::uint64_t i = begin; i < end; ++i) bits[i] = false;
          break;
        }
        case 1:
          if (random.below(30) == 0) {
            set.clear();
            std::fill(bits.begin(), bits.end(), false);
          }
          break;
        default: {
          std::uint64_t fresh = 0;
          for (std::uint64_t i = begin; i < end; ++i) {
            fresh += bits[i] ? 0 : 1;
            bits[i] = true;
          }
          REQUIRE(set.add(begin, end) == fresh);
        }
      }
      REQUIRE(set.ranges() == runs(bits, true, 0, kSize));
      REQUIRE(set.total() == static_cast<std::uint64_t>(std::count(bits.begin(), bits.end(), true)));
      REQUIRE(set.size() == set.ranges().size());
      REQUIRE(set.empty() == (set.total() == 0));
      std::uint64_t from = random.below(kSize + 1);
      std::uint64_t to = random.below(kSize + 1);
      if (from > to) std::swap(from, to);
      REQUIRE(set.missing(from, to) == runs(bits, false, from, to));
      if (from < to) REQUIRE(set.contains(from, to) == runs(bits, false, from, to).empty());
      std::uint64_t next = from;
      bool previous = false;
      set.split(from, to, [&](std::uint64_t part_begin, std::uint64_t part_end, bool covered) {
        REQUIRE(part_begin == next);
        REQUIRE(part_end > part_begin);
        if (part_begin != from) REQUIRE(covered != previous);
        for (std::uint64_t i = part_begin; i < part_end; ++i) REQUIRE(bits[i] == covered);
        previous = covered;
        next = part_end;
      });
      REQUIRE(next == to);
    }
  }
}

TEST_CASE("positions near the end of 64 bits") {
  IntervalSet set;
  const std::uint64_t top = ~std::uint64_t{0};
  CHECK(set.add(top - 10, top) == 10);
  CHECK(set.add(top - 20, top - 10) == 10);
  CHECK(set.ranges() == std::vector<Interval>{{top - 20, top}});
  CHECK(set.contains(top - 20, top));
  CHECK_FALSE(set.contains(top - 21, top));
  CHECK(set.missing(0, top) == std::vector<Interval>{{0, top - 20}});
}
