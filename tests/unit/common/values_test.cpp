// bytes, ids, sha256, random, gap_reason, clock: against published vectors and plain arithmetic.
#include <algorithm>
#include <array>
#include <set>
#include <string>
#include <utility>
#include <vector>

#include <doctest/doctest.h>

#include "common/bytes.h"
#include "common/clock.h"
#include "common/gap_reason.h"
#include "common/ids.h"
#include "common/random.h"
#include "common/sha256.h"

using namespace gradtap;

TEST_CASE("ByteReader: both byte orders, and a read beyond the end stays wrong for ever") {
  const std::array<std::uint8_t, 7> bytes = {0x01, 0x02, 0x03, 0x04, 0x05, 0x06, 0x07};
  ByteReader reader(bytes);
  CHECK(reader.be<std::uint16_t>() == 0x0102);
  CHECK(reader.le<std::uint32_t>() == 0x06050403);
  CHECK(reader.position() == 6);
  CHECK(reader.ok());
  CHECK(reader.be<std::uint16_t>() == 0);
  CHECK_FALSE(reader.ok());
  CHECK(reader.remaining() == 0);
  CHECK(reader.be<std::uint8_t>() == 0);
  ByteReader other(bytes);
  CHECK(other.take(3).size() == 3);
  CHECK(other.take(4)[0] == 0x04);
  CHECK(other.take(0).empty());
  CHECK(other.ok());
  CHECK(other.take(1).empty());
  CHECK_FALSE(other.ok());
  ByteReader skipped(bytes);
  skipped.skip(~std::size_t{0});
  CHECK_FALSE(skipped.ok());
  std::array<std::uint8_t, 8> out{};
  store_be<std::uint64_t>(out.data(), 0x0123456789ABCDEF);
  CHECK(out == std::array<std::uint8_t, 8>{0x01, 0x23, 0x45, 0x67, 0x89, 0xAB, 0xCD, 0xEF});
  CHECK(load_be<std::uint64_t>(out.data()) == 0x0123456789ABCDEF);
}

TEST_CASE("hexadecimal: exact length, no wrong digit") {
  const std::array<std::uint8_t, 3> bytes = {0x00, 0xAF, 0x10};
  CHECK(to_hex(bytes) == "00af10");
  std::array<std::uint8_t, 3> back{};
  CHECK(from_hex("00af10", back.data(), 3));
  CHECK(back == bytes);
  for (const char* text : {"", "00af1", "00af101", "00af1g", "00af1 ", "-0af10", "0x0af1", "00AF10"})
    CHECK_FALSE_MESSAGE(from_hex(text, back.data(), 3), text);
}

TEST_CASE("SHA-256: FIPS 180-4 examples, one-shot and in pieces") {
  const std::pair<std::string, const char*> vectors[] = {
      {"", "e3b0c44298fc1c149afbf4c8996fb92427ae41e4649b934ca495991b7852b855"},
      {"abc", "ba7816bf8f01cfea414140de5dae2223b00361a396177a9cb410ff61f20015ad"},
      {"abcdbcdecdefdefgefghfghighijhijkijkljklmklmnlmnomnopnopq",
       "248d6a61d20638b8e5c026930c3e6039a33ce45964ff2167f6ecedd419db06c1"},
      {std::string(1000000, 'a'), "cdc76e5c9914fb9281a1c7e284d73e67f1809a48a497200e046d39ccc7112cd0"},
  };
  for (const auto& [text, expected] : vectors) {
    CHECK(to_hex(sha256(text)) == expected);
    Sha256Stream stream;
    for (std::size_t at = 0, piece = 1; at < text.size(); at += piece, piece = piece * 3 + 1) {
      piece = std::min(piece, text.size() - at);
      stream.add(text.data() + at, piece);
    }
    CHECK(to_hex(stream.finish()) == expected);
  }
  // First 16 bytes of SHA-256("abc").
  CHECK(to_hex(job_id("abc")) == "ba7816bf8f01cfea414140de5dae2223");
}

TEST_CASE("splitmix64: the published sequence of seed 1234567") {
  SeededRandom random(1234567);
  for (const std::uint64_t expected : {6457827717110365317ULL, 3203168211198807973ULL, 9817491932198370423ULL,
                                       4593380528125082431ULL, 16408922859458223821ULL})
    CHECK(random.next() == expected);
  SystemRandom system;
  std::set<std::uint64_t> seen;
  for (int i = 0; i < 16; ++i) seen.insert(system.next());
  CHECK(seen.size() == 16);
}

TEST_CASE("gap reasons: the numbers and words of the closed list, each with its stage") {
  const std::pair<int, const char*> verify[] = {
      {1, "BASELINE_PENDING"}, {2, "IN_FLIGHT"},       {3, "SCALARS_MISSING"}, {4, "LAYOUT_UNKNOWN"},
      {5, "ANCHOR_LOST"},      {6, "COVERAGE_HOLE"},   {7, "LOST_DEFINITIVE"}, {8, "CONFLICT"},
      {9, "WITNESS_MISMATCH"}, {10, "UNWIRED"},        {11, "OP_AMBIGUOUS"},   {12, "UNSUPPORTED"},
      {15, "OVERLOAD_SHED"},   {16, "TAP_DOWN"},       {17, "OWNER_DOWN"},     {18, "APPLY_LAG"},
      {19, "TRAINER_SILENT"},  {20, "CLIENT_DISABLED"}};
  const std::pair<int, const char*> durable[] = {
      {21, "FLUSH_LAG"}, {22, "LOG_OFF"}, {23, "STORAGE_FULL"}, {24, "STORAGE_ERROR"}, {25, "REPLICA_SHORT"}};
  const std::pair<int, const char*> publish[] = {{27, "UNKNOWN_STATE"}, {31, "PUBLISH_INTERVAL"}};
  const auto check = [](const auto& list, GapStage stage) {
    for (const auto& [number, name] : list) {
      CHECK(gap_reason_name(static_cast<GapReason>(number)) == name);
      CHECK_MESSAGE(gap_reason_stage(static_cast<GapReason>(number)) == stage, name);
    }
  };
  check(verify, GapStage::kVerify);
  check(durable, GapStage::kDurable);
  check(publish, GapStage::kPublish);
  CHECK(gap_reason_name(GapReason::kNone) == "NONE");
}

TEST_CASE("clocks") {
  ManualClock manual;
  const std::uint64_t start = manual.monotonic_ns();
  manual.advance_ms(3);
  manual.advance_ns(4);
  CHECK(manual.monotonic_ns() - start == 3000004);
  SystemClock system;
  const std::uint64_t first = system.monotonic_ns();
  CHECK(system.monotonic_ns() >= first);
  CHECK(system.wall_ms() > 1600000000000ULL);
}
