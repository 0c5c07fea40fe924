// Golden records were made by the capnp tool and Python (golden/make_golden.py), not by this codec.
#include "schema/record_codec.h"

#include <numeric>
#include <string>

#include <doctest/doctest.h>

#include "common/random.h"
#include "tests/test_files.h"

using namespace gradtap;
using namespace gradtap::schema;
using gradtap::testing::bytes_of;
using gradtap::testing::golden;

namespace {

template <std::size_t N>
std::array<std::uint8_t, N> counting(std::uint8_t first) {
  std::array<std::uint8_t, N> out;
  std::iota(out.begin(), out.end(), first);
  return out;
}

LineageRecord lineage() {
  LineageRecord record;
  record.job = counting<16>(0);
  record.job_name = "gpt";
  record.lineage = 3;
  record.run_nonce = "00112233445566778899aabbccddeeff";
  record.parent_lineage = 2;
  record.parent_step = 40;
  record.base_step = 41;
  record.world = 4;
  record.sequence = 7;
  record.schema_json = bytes_of(R"({"a":1})");
  record.optimizer_class = "AdamW";
  record.kinds = {"exp_avg", "exp_avg_sq"};
  record.recipe_id = "torch1-fma";
  record.transforms = {"clip_grad_norm_"};
  record.shard_elements = 16777216;
  record.shard_count = 9;
  record.endpoints = {"10.0.0.1", "10.0.0.2"};
  record.created_wall_ms = 1700000000123;
  record.layout_id = counting<32>(100);
  return record;
}

StepRecord step() {
  StepRecord record;
  record.lineage = 3;
  record.step = 42;
  record.rank = 1;
  record.seq = 50;
  record.layout_id = counting<32>(100);
  record.interval_from = 10;
  record.interval_to = 12;
  record.verdict = Verdict::kSkipped;
  record.json = bytes_of(R"({"kind":"step"})");
  return record;
}

MarkRecord mark() {
  MarkRecord record;
  record.job = counting<16>(0);
  record.lineage = 3;
  record.shard = 8;
  record.version = 42;
  record.full = 41;
  record.log_from = 40;
  record.log_to = 42;
  record.schema_id = counting<32>(100);
  record.epoch = 5;
  record.state_digest = counting<32>(200);
  return record;
}

}  // namespace

TEST_CASE("golden records of format 1 read as what they were made from") {
  CHECK(decode_lineage(golden("schema", "lineage.1.hex")).value() == lineage());
  CHECK(decode_step(golden("schema", "step.1.hex")).value() == step());
  CHECK(decode_mark(golden("schema", "mark.1.hex")).value() == mark());
  const auto raw = golden("schema", "raw.1.hex");
  const auto payload = unseal(RecordType::kRaw, raw).value();
  CHECK(std::string(payload.begin(), payload.end()) == "side value");
  CHECK(seal(RecordType::kRaw, bytes_of("side value")) == raw);
}

TEST_CASE("what is written is read again, empty and large") {
  CHECK(decode_lineage(encode(lineage())).value() == lineage());
  CHECK(decode_step(encode(step())).value() == step());
  CHECK(decode_mark(encode(mark())).value() == mark());
  LineageRecord large;
  large.lineage = 1;
  large.schema_json.resize(std::size_t{20} << 20, 0x5A);
  large.endpoints.assign(4096, "fd00:0000:0000:0000:0000:0000:0000:0001");
  CHECK(decode_lineage(encode(large)).value() == large);
  large.schema_json.resize(kRecordBytesMax + 8);
  CHECK(decode_lineage(encode(large)).error().code == ErrorCode::kLimitReached);
}

TEST_CASE("every single-byte change and every cut of a record is an error") {
  const auto whole = golden("schema", "mark.1.hex");
  for (std::size_t i = 0; i < whole.size(); ++i) {
    auto changed = whole;
    changed[i] ^= 0x41;
    CHECK_FALSE_MESSAGE(decode_mark(changed).has_value(), i);
    CHECK_FALSE(decode_mark(ByteSpan(whole).first(i)).has_value());
  }
  auto longer = whole;
  longer.push_back(0);
  CHECK_FALSE(decode_mark(longer).has_value());
  auto newer = whole;
  newer[4] = 2;
  CHECK(decode_mark(newer).error().code == ErrorCode::kStoreFormat);
  CHECK(decode_mark(golden("schema", "step.1.hex")).error().code == ErrorCode::kStoreCorrupt);
}

TEST_CASE("a hostile message inside a valid envelope is an error, never an exception") {
  SeededRandom random(7);
  const auto whole = golden("schema", "lineage.1.hex");
  const std::vector<std::uint8_t> payload(whole.begin() + kEnvelopeBytes, whole.end());
  std::size_t refused = 0;
  for (int round = 0; round < 20000; ++round) {
    auto changed = payload;
    for (std::uint64_t n = 1 + random.below(4); n > 0; --n)
      changed[random.below(changed.size())] = static_cast<std::uint8_t>(random.next());
    const ByteSpan cut = ByteSpan(changed).first(changed.size() - random.below(3) * 8);
    if (!decode_lineage(seal(RecordType::kLineage, cut))) ++refused;
  }
  CHECK(refused > 1000);
}

TEST_CASE("impossible marks and steps are refused") {
  const auto refused = [](auto change) {
    MarkRecord record = mark();
    change(record);
    return !decode_mark(encode(record)).has_value();
  };
  CHECK(refused([](MarkRecord& m) { m.lineage = 0; }));
  CHECK(refused([](MarkRecord& m) { m.full = 43; }));
  CHECK(refused([](MarkRecord& m) { m.log_to = 41; }));
  CHECK(refused([](MarkRecord& m) { m.log_from = 44; }));
  CHECK(refused([](MarkRecord& m) { m.log_from = 0; }));
  CHECK_FALSE(refused([](MarkRecord& m) { m.log_from = 43; }));
  StepRecord record = step();
  record.interval_to = 9;
  CHECK_FALSE(decode_step(encode(record)).has_value());
}
