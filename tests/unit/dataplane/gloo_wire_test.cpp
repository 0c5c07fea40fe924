#include "dataplane/gloo_wire.h"

#include <doctest/doctest.h>

#include "tests/unit/dataplane/decode_harness.h"

namespace gradtap::dataplane {
namespace {

using namespace testing;

std::vector<std::uint8_t> header(int opcode, int type, std::uint32_t tag, std::uint64_t length) {
  std::vector<std::uint8_t> out;
  put_header(out, opcode, type, tag, length);
  return out;
}

TEST_CASE("headers of every type and opcode") {
  for (int opcode = 1; opcode <= 3; ++opcode) {
    for (int type = 1; type <= 8; ++type) {
      const auto bytes = header(opcode, type, 0xfedcba98, 4096);
      const auto parsed = parse_gloo_strict(bytes.data(), 4096);
      REQUIRE(parsed.has_value());
      CHECK(static_cast<int>(parsed->opcode) == opcode);
      CHECK(static_cast<int>(parsed->type) == type);
      CHECK(parsed->tag == 0xfedcba98);
      CHECK(parsed->length == 4096);
      CHECK(parsed->stream_bytes == (opcode == 1 ? 4144U : 48U));
      CHECK(may_be_gloo_header(bytes.data()));
    }
  }
}

TEST_CASE("any changed bit of a field that must be exact is refused") {
  const auto good = header(1, 4, 77, 1000);
  int refused = 0;
  for (std::size_t bit = 0; bit < 48 * 8; ++bit) {
    auto bad = good;
    bad[bit / 8] = static_cast<std::uint8_t>(bad[bit / 8] ^ 1 << bit % 8);
    const auto parsed = parse_gloo_strict(bad.data(), 1 << 20);
    // Free: the tag (bytes 19-22), delta (byte 16), and types that exist (byte 23).
    const bool free = (bit / 8 >= 19 && bit / 8 <= 22) || bit / 8 == 16;
    const bool type = bit / 8 == 23;
    if (!free && !type) {
      CHECK(!parsed.has_value());
      ++refused;
    }
    if (free) CHECK(parsed.has_value());
  }
  CHECK(refused == (48 - 6) * 8);
}

TEST_CASE("limits, and slots that belong to no collective") {
  CHECK(!parse_gloo_framed(header(1, 4, 1, 1001).data(), 1000));
  CHECK(parse_gloo_framed(header(2, 4, 1, 1001).data(), 1000));
  CHECK(!parse_gloo_framed(header(0, 4, 1, 8).data(), 1000));
  CHECK(!parse_gloo_framed(header(4, 4, 1, 8).data(), 1000));
  auto wrap = header(1, 4, 1, 0);
  for (std::size_t i = 0; i < 8; ++i) wrap[i] = 0x2f * (i == 0), wrap[32 + i] = 0xff;  // nbytes = 48 + (2^64 - 1)
  CHECK(!parse_gloo_framed(wrap.data(), ~0ULL >> 1));
  const auto peer_to_peer = header(1, 0, 1, 8);
  CHECK(!parse_gloo_strict(peer_to_peer.data(), 1000));
  CHECK(parse_gloo_framed(peer_to_peer.data(), 1000)->type == CollectiveType::kUnknown);
}

}  // namespace
}  // namespace gradtap::dataplane
