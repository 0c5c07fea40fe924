#include "dataplane/tcp_stream.h"

#include <doctest/doctest.h>

namespace gradtap::dataplane {
namespace {

TEST_CASE("positions continue over the 32-bit wrap, many times") {
  StreamPosition position;
  position.anchor(0xfffffff0U, 0);
  std::uint64_t truth = 0;
  for (int i = 0; i < 100000; ++i) {
    truth += 1'000'003;
    const auto sequence = static_cast<std::uint32_t>(0xfffffff0ULL + truth);
    REQUIRE(position.position(sequence) == static_cast<std::int64_t>(truth));
    REQUIRE(position.position(sequence - 700'000) == static_cast<std::int64_t>(truth) - 700'000);
    position.advance(truth);
  }
  CHECK(position.highest() == 100'000'300'000ULL);
}

TEST_CASE("late frames do not move it back, far jumps are implausible") {
  StreamPosition position;
  position.anchor(1000, 5);
  position.advance(2000);
  position.advance(1500);
  CHECK(position.highest() == 2000);
  CHECK(position.position(1000) == 5);
  CHECK(position.position(990) == -5);
  CHECK(StreamPosition::plausible(position.distance(2995 + (1U << 30))));
  CHECK(!StreamPosition::plausible(position.distance(2995 + (1U << 30) + 1)));
  CHECK(!StreamPosition::plausible(position.distance(2995 + (1U << 31))));
}

}  // namespace
}  // namespace gradtap::dataplane
