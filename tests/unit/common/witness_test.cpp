// Expected positions come from an independent Python computation:
//   lid = sha256(name); L = int.from_bytes(lid[:8], "big")
//   mix(L + (step * 64 + bucket * 8 + j + 1) * 0x9E3779B97F4A7C15 mod 2**64) % numel
#include "common/witness.h"

#include <string>

#include <doctest/doctest.h>

#include "common/sha256.h"

using namespace gradtap;

TEST_CASE("witness positions equal the documented function") {
  struct Case {
    std::string name;
    StepNumber step;
    std::uint32_t bucket;
    std::uint64_t numel;
    std::array<std::uint64_t, 8> positions;
  };
  const Case cases[] = {
      {"a", 1, 0, 33189, {15027, 6019, 31274, 31816, 16162, 27607, 30876, 7344}},
      {"a", 2, 1, 5624, {307, 2565, 2061, 5030, 2610, 3471, 3238, 50}},
      {"b", 1000000, 7, 1, {0, 0, 0, 0, 0, 0, 0, 0}},
      {"c",
       1099511627776,
       63,
       8589934597,
       {6324724721, 2936105352, 8433694758, 2233661735, 3555971338, 2820789655, 5533441310, 219000605}},
      {"zz", 0, 0, 97, {35, 53, 63, 48, 3, 96, 43, 59}},
  };
  for (const Case& c : cases) {
    CAPTURE(c.name);
    CHECK(witness_positions(sha256(c.name), c.step, c.bucket, c.numel) == c.positions);
  }
  CHECK(witness_positions(sha256("a"), 1, 0, 0) == std::array<std::uint64_t, 8>{});
}

TEST_CASE("witness positions of an id that is no hash") {
  LayoutId id{};
  for (std::size_t i = 0; i < id.size(); ++i) id[i] = static_cast<std::uint8_t>(i * 7 + 1);
  CHECK(witness_positions(id, 1, 0, 1'000'003)[0] == 728486);
  CHECK(witness_positions(id, 1, 0, 1'000'003)[7] == 771430);
  CHECK(witness_positions(id, 5, 2, 1'000'003)[3] == 236579);
  CHECK(witness_positions(id, 1'000'000, 63, 1'000'003)[7] == 277901);
}
