// Golden records and digests were made by the capnp tool and Python (golden/make_point_golden.py), not by this codec.
#include "schema/point_codec.h"

#include <numeric>
#include <string>

#include <doctest/doctest.h>
#include <fmt/format.h>

#include "common/random.h"
#include "tests/test_files.h"

using namespace gradtap;
using namespace gradtap::schema;
using gradtap::testing::bytes_of;
using gradtap::testing::golden;

namespace {

Sha256 sha(std::uint8_t first) {
  Sha256 out;
  std::iota(out.begin(), out.end(), first);
  return out;
}

const std::string kPrefix = "jobs/gpt-2.small/00000000000000000003";

LineageClaim claim() {
  return {job_id("gpt-2.small"), "gpt-2.small", 3, "00112233445566778899aabbccddeeff", 2, 40, sha(7), 40, "tap0",
          1700000000123};
}

StepObject step_object(const std::string& folder, StepNumber step, std::uint64_t size, int first) {
  return {step,
          {fmt::format("{}/{}/{:020}-u{}", kPrefix, folder, step, step), size, sha(static_cast<std::uint8_t>(first))}};
}

PointRecord point() {
  PointRecord record;
  PointCanonical& c = record.canonical;
  c.job = job_id("gpt-2.small");
  c.job_name = "gpt-2.small";
  c.lineage = 3;
  c.parent_lineage = 2;
  c.parent_step = 40;
  c.parent_record = sha(7);
  c.step = 43;
  c.state_root = sha(9);
  c.shards = {{0, sha(10)}, {1, sha(11)}};
  c.ranks = {{0, sha(12)}, {1, sha(13)}};
  c.schema_id = sha(14);
  c.layout_id = sha(15);
  c.layout_json = bytes_of(R"({"buckets":[]})");
  c.step_message = sha(16);
  c.verdict = Verdict::kSkipped;
  c.world = 2;
  c.recipe_id = "torch1-fma";
  c.optimizer_class = "AdamW";
  record.shards = {{0,
                    41,
                    {kPrefix + "/shard/00000/full/00000000000000000041-b0", 1000, sha(20)},
                    {step_object("shard/00000/log", 42, 542, 72), step_object("shard/00000/log", 43, 543, 73)}},
                   {1,
                    42,
                    {kPrefix + "/shard/00001/full/00000000000000000042-b1", 1001, sha(21)},
                    {step_object("shard/00001/log", 43, 543, 73)}}};
  record.steps = {step_object("step", 42, 700, 80), step_object("step", 43, 701, 81)};
  record.side = {kPrefix + "/side/00000000000000000043-s", 800, sha(90)};
  record.meta = {kPrefix + "/meta/m", 900, sha(91)};
  record.previous_step = 42;
  record.previous_record = sha(92);
  record.publisher = "tap1";
  record.created_wall_ms = 1700000000456;
  record.training = 45;
  record.verified = 44;
  record.durable = 43;
  record.published = 42;
  record.software = "gradtap 0.1.0";
  return record;
}

SideState side() {
  return {3,
          43,
          {{0, bytes_of(R"({"rank":0})"), {{"rng.python", {1, 2}}, {"scheduler", {}}}},
           {1, bytes_of(R"({"rank":1})"), {{"rng.torch", std::vector<std::uint8_t>(40)}}}}};
}

}  // namespace

TEST_CASE("golden point records of format 1 read as what they were made from") {
  CHECK(decode_claim(golden("schema", "claim.1.hex")).value() == claim());
  CHECK(decode_point(golden("schema", "point.1.hex")).value() == point());
  CHECK(decode_side_state(golden("schema", "side.1.hex")).value() == side());
}

TEST_CASE("point records that are written are read again") {
  CHECK(decode_claim(encode(claim()).value()).value() == claim());
  CHECK(decode_point(encode(point()).value()).value() == point());
  CHECK(decode_side_state(encode(side()).value()).value() == side());
}

TEST_CASE("side digests are those that Python computes from the documented bytes") {
  CHECK(to_hex(side_digest(side().ranks[0])) == "80e8c5884a13117debeb19ec6993e1d0301b619bc11dd6f946dd89e5c34ee82b");
  CHECK(to_hex(side_digest(side().ranks[1])) == "8f6bf84cf2f9b1b2a84861e37e33a44c493a398a0b308916515b1e2e55669f29");
}

TEST_CASE("every flipped bit and every cut of a point record and a claim is an error") {
  const auto check = [](const std::vector<std::uint8_t>& whole, auto decode) {
    for (std::size_t bit = 0; bit < whole.size() * 8; ++bit) {
      auto changed = whole;
      changed[bit / 8] ^= static_cast<std::uint8_t>(1U << bit % 8);
      CHECK_FALSE_MESSAGE(decode(changed).has_value(), bit);
    }
    for (std::size_t size = 0; size < whole.size(); ++size)
      CHECK_FALSE(decode(ByteSpan(whole).first(size)).has_value());
  };
  check(golden("schema", "point.1.hex"), decode_point);
  check(golden("schema", "claim.1.hex"), decode_claim);
}

TEST_CASE("a hostile point message inside a valid envelope is an error, never an exception") {
  SeededRandom random(7);
  const auto whole = golden("schema", "point.1.hex");
  const std::vector<std::uint8_t> payload(whole.begin() + kEnvelopeBytes, whole.end());
  std::size_t refused = 0;
  for (int round = 0; round < 20000; ++round) {
    auto changed = payload;
    for (std::uint64_t n = 1 + random.below(4); n > 0; --n)
      changed[random.below(changed.size())] = static_cast<std::uint8_t>(random.next());
    const ByteSpan cut = ByteSpan(changed).first(changed.size() - random.below(3) * 8);
    if (!decode_point(seal(RecordType::kPoint, cut))) ++refused;
  }
  CHECK(refused > 1000);
}

TEST_CASE("impossible points are refused") {
  const auto refused = [](auto change) {
    PointRecord record = point();
    change(record);
    return !decode_point(encode(record).value()).has_value();
  };
  CHECK_FALSE(refused([](PointRecord&) {}));
  CHECK(refused([](PointRecord& p) { p.canonical.lineage = 0; }));
  CHECK(refused([](PointRecord& p) { p.canonical.parent_lineage = 3; }));
  CHECK(refused([](PointRecord& p) { p.canonical.job_name = "other"; }));
  CHECK(refused([](PointRecord& p) { p.canonical.format = 2; }));
  CHECK(refused([](PointRecord& p) { p.canonical.shards.pop_back(); }));
  CHECK(refused([](PointRecord& p) { p.canonical.shards[1].shard = 2; }));
  CHECK(refused([](PointRecord& p) { p.canonical.ranks.pop_back(); }));
  CHECK(refused([](PointRecord& p) { p.canonical.world = 0; }));
  CHECK(refused([](PointRecord& p) { p.canonical.layout_json.clear(); }));
  CHECK(refused([](PointRecord& p) { p.canonical.layout_id = {}; }));
  CHECK(refused([](PointRecord& p) { p.canonical.step = 44; }));
  CHECK(refused([](PointRecord& p) { p.shards.pop_back(); }));
  CHECK(refused([](PointRecord& p) { p.shards[0].base_step = 44; }));
  CHECK(refused([](PointRecord& p) { p.shards[0].logs.pop_back(); }));
  CHECK(refused([](PointRecord& p) { p.shards[0].logs[1].step = 42; }));
  CHECK(refused([](PointRecord& p) { p.steps.erase(p.steps.begin()); }));
  CHECK(refused([](PointRecord& p) { p.side.key.clear(); }));
  CHECK(refused([](PointRecord& p) { p.previous_step = 43; }));
  SideState state = side();
  std::swap(state.ranks[0], state.ranks[1]);
  CHECK_FALSE(decode_side_state(encode(state).value()).has_value());
  state = side();
  std::swap(state.ranks[0].blobs[0], state.ranks[0].blobs[1]);
  CHECK_FALSE(decode_side_state(encode(state).value()).has_value());
}

TEST_CASE("a point record beyond 1 MiB is refused with a remedy, before it is stored (J15)") {
  PointRecord record = point();
  record.canonical.layout_json.resize(kPointRecordBytesMax);
  const auto large = encode(record);
  REQUIRE_FALSE(large.has_value());
  CHECK(large.error().code == ErrorCode::kLimitReached);
  CHECK(large.error().remedy.find("full_every_steps") != std::string::npos);
}
