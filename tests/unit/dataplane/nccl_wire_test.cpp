// Clear-to-send entries and LL lines.
#include <array>
#include <cstring>
#include <vector>

#include <doctest/doctest.h>

#include "common/random.h"
#include "dataplane/nccl_cts.h"
#include "dataplane/nccl_ll.h"

namespace gradtap::dataplane {
namespace {

using Bytes = std::vector<std::uint8_t>;

template <class T>
void put(Bytes& bytes, T value) {
  for (std::size_t i = 0; i < sizeof value; ++i) bytes.push_back(static_cast<std::uint8_t>(value >> 8 * i));
}

Bytes entry_up_to_2_19(std::uint32_t requests, std::uint64_t index, std::uint32_t tag = 1) {
  Bytes bytes;
  put<std::uint64_t>(bytes, 0x7eff89400000);
  put<std::uint32_t>(bytes, 0x10000);
  put<std::uint32_t>(bytes, 0x200199);
  put<std::uint32_t>(bytes, requests);
  put<std::uint32_t>(bytes, tag);
  put<std::uint64_t>(bytes, index);
  return bytes;
}

TEST_CASE("clear-to-send entries of three layouts") {
  std::array<NcclCts, kMaxNcclReceives> entries;
  const NcclCts expected{0x7eff89400000, 0x10000, 0x200199, 1, 1, 7};
  REQUIRE(read_nccl_cts(entry_up_to_2_19(1, 7), entries) == 1);
  CHECK(entries[0] == expected);

  Bytes from_2_20;
  put<std::uint64_t>(from_2_20, expected.address);
  put<std::uint32_t>(from_2_20, 0x10000);
  put<std::uint32_t>(from_2_20, expected.key);
  put<std::uint32_t>(from_2_20, 0);
  put<std::uint32_t>(from_2_20, 1);
  put<std::uint32_t>(from_2_20, 1);
  put<std::uint32_t>(from_2_20, 0);  // alignment
  put<std::uint64_t>(from_2_20, 7);
  from_2_20.resize(64);
  REQUIRE(read_nccl_cts(from_2_20, entries) == 1);
  CHECK(entries[0] == expected);

  Bytes from_2_27;
  put<std::uint64_t>(from_2_27, expected.address);
  put<std::uint64_t>(from_2_27, 0x10000);
  put<std::uint32_t>(from_2_27, expected.key);
  for (int i = 0; i < 3; ++i) put<std::uint32_t>(from_2_27, 0);
  put<std::uint32_t>(from_2_27, 1);
  put<std::uint32_t>(from_2_27, 1);
  put<std::uint64_t>(from_2_27, 7);
  from_2_27.resize(64);
  REQUIRE(read_nccl_cts(from_2_27, entries) == 1);
  CHECK(entries[0] == expected);

  Bytes two = entry_up_to_2_19(2, 7);
  const Bytes second = entry_up_to_2_19(2, 7);
  two.insert(two.end(), second.begin(), second.end());
  CHECK(read_nccl_cts(two, entries) == 2);
}

TEST_CASE("what is no clear-to-send is not taken for one") {
  std::array<NcclCts, kMaxNcclReceives> entries;
  CHECK(read_nccl_cts({}, entries) == 0);
  CHECK(read_nccl_cts(entry_up_to_2_19(0, 7), entries) == 0);
  CHECK(read_nccl_cts(entry_up_to_2_19(2, 7), entries) == 0);
  CHECK(read_nccl_cts(entry_up_to_2_19(1, 0), entries) == 0);
  CHECK(read_nccl_cts(entry_up_to_2_19(1, 7, 1 << 20), entries) == 0);
  CHECK(read_nccl_cts(Bytes(32, 0), entries) == 0);
  CHECK(read_nccl_cts(Bytes(32, 0xff), entries) == 0);
  for (std::size_t bytes = 0; bytes < 700; ++bytes) CHECK(read_nccl_cts(Bytes(bytes, 1), entries) == 0);
}

TEST_CASE("LL lines: data out, flags checked, the vector loop equal to the plain one") {
  SeededRandom random(5);
  for (std::size_t lines = 0; lines < 70; ++lines) {
    for (std::size_t shift = 0; shift < 4; ++shift) {
      const auto flag = static_cast<std::uint32_t>(random.next()) | 1;
      Bytes wire(shift), expected;
      for (std::size_t i = 0; i < 2 * lines; ++i) {
        const auto word = static_cast<std::uint32_t>(random.next());
        put(wire, word);
        put(wire, flag);
        put(expected, word);
      }
      Bytes data(8 * lines + 1, 0xee), plain = data;
      expected.push_back(0xee);  // nothing is written behind the data
      REQUIRE(strip_ll(wire.data() + shift, lines, flag, data.data()));
      REQUIRE(strip_ll_plainly(wire.data() + shift, lines, flag, plain.data()));
      REQUIRE(data == expected);
      REQUIRE(plain == expected);
      const ByteSpan span = ByteSpan(wire).subspan(shift);
      REQUIRE(has_ll_flags(span, flag));
      if (lines > 0) REQUIRE(ll_flag(span) == flag);
      for (std::size_t at = 0; at < span.size(); ++at) {
        Bytes bad = wire;
        bad[shift + at] ^= 0x10;
        const bool is_flag = at % 8 >= 4;
        REQUIRE(strip_ll(bad.data() + shift, lines, flag, data.data()) == !is_flag);
        REQUIRE(strip_ll_plainly(bad.data() + shift, lines, flag, plain.data()) == !is_flag);
        if (lines > 20) at += 12;
      }
    }
  }
  CHECK(!ll_flag(Bytes(16, 0)).has_value());
  CHECK(!ll_flag(Bytes(15, 1)).has_value());
  CHECK(!ll_flag({}).has_value());
}

}  // namespace
}  // namespace gradtap::dataplane
