// Golden objects were made by Python and libxxhash (tests/unit/schema/golden/make_point_golden.py).
#include "storage/object_format.h"

#include <numeric>
#include <string>

#include <doctest/doctest.h>

#include "common/random.h"
#include "storage/key.h"
#include "tests/test_files.h"

using namespace gradtap;
using namespace gradtap::storage;
using gradtap::testing::golden;

namespace {

const std::string kJobName = "gpt-2.small";

ObjectIdentity log_of(ShardId shard, StepNumber step) {
  return {ObjectKind::kLog, job_id(kJobName), 3, shard, step};
}

std::vector<std::uint8_t> counting(std::size_t count) {
  std::vector<std::uint8_t> out(count);
  std::iota(out.begin(), out.end(), std::uint8_t{0});
  return out;
}

std::vector<std::uint8_t> joined(const SealedObject& object) {
  std::vector<std::uint8_t> out;
  for (const ByteSpan part : object.parts()) out.insert(out.end(), part.begin(), part.end());
  return out;
}

std::vector<Finding> judge(const schema::ObjectRef& ref, ByteSpan bytes, std::size_t piece) {
  ObjectCheck check(ref);
  for (; !bytes.empty(); bytes = bytes.subspan(std::min(piece, bytes.size())))
    check.add(bytes.first(std::min(piece, bytes.size())));
  return check.finish();
}

}  // namespace

TEST_CASE("golden objects are written byte by byte, however the payload is cut") {
  const auto payload = counting(100);
  const ByteSpan whole(payload);
  for (const std::size_t cut : {std::size_t{0}, std::size_t{1}, std::size_t{50}, payload.size()}) {
    const auto object = seal_object(log_of(7, 43), {whole.first(cut), whole.subspan(cut)});
    CHECK(joined(object) == golden("storage", "object_log.1.hex"));
    CHECK(object.bytes == 204);
    CHECK(to_hex(object.sha256) == "d338f78c098cdb6895422ff27f53ecb381f6934d5118a8598c16e8544e1e73f4");
  }
  CHECK(joined(seal_object(log_of(0, 1), {})) == golden("storage", "object_empty.1.hex"));
  const std::vector<std::uint8_t> param{'p', 'a', 'r', 'a', 'm'};
  const std::vector<std::uint8_t> presence{'s', 't', 't'};
  const auto table = encode_part_table({{kKindParam, 5}, {kKindPresence, 3}});
  CHECK(joined(seal_object({ObjectKind::kFull, job_id(kJobName), 3, 7, 40}, {table, param, presence})) ==
        golden("storage", "object_full.1.hex"));
}

TEST_CASE("golden objects are read: identity, length, parts, chunks of another size") {
  const auto log = golden("storage", "object_log.1.hex");
  const ObjectHeader header = parse_object_header(log).value();
  CHECK(header.identity == log_of(7, 43));
  CHECK(header.stored_bytes == 100);
  CHECK(header.object_bytes() == log.size());
  const auto full = golden("storage", "object_full.1.hex");
  const auto parts = parse_parts(ByteSpan(full).subspan(kObjectHeaderBytes, 48)).value();
  REQUIRE(parts.size() == 2);
  CHECK(parts[0].kind == kKindParam);
  CHECK(std::string(parts[0].bytes.begin(), parts[0].bytes.end()) == "param");
  CHECK(parts[1].kind == kKindPresence);
  CHECK(std::string(parts[1].bytes.begin(), parts[1].bytes.end()) == "stt");
  const auto chunks = golden("storage", "object_chunks.1.hex");
  CHECK(parse_object_header(chunks).value().chunks() == 3);
  Sha256 digest;
  REQUIRE(from_hex("8ee508aa139b4d402b1b10dbc099af4df471814ca0f8b93eb47ed9f4367bd5e9", digest.data(), digest.size()));
  const schema::ObjectRef ref{log_key(kJobName, 3, 7, 44, "u"), chunks.size(), digest};
  for (const std::size_t piece : {std::size_t{1}, std::size_t{95}, std::size_t{4096}, chunks.size()})
    CHECK(judge(ref, chunks, piece).empty());
}

TEST_CASE("keys of data objects say what the object is") {
  CHECK(identity_of(log_key(kJobName, 3, 7, 43, "u")).value() == log_of(7, 43));
  CHECK(identity_of(full_key(kJobName, 3, 7, 43, "u")).value().kind == ObjectKind::kFull);
  CHECK(identity_of(step_key(kJobName, 3, 43, "u")).value().kind == ObjectKind::kStep);
  CHECK(identity_of(side_state_key(kJobName, 3, 43, "u")).value().kind == ObjectKind::kSide);
  CHECK(identity_of(meta_key(kJobName, 3, "u")).value().kind == ObjectKind::kMeta);
  CHECK_FALSE(identity_of(point_key(kJobName, 3, 43)).has_value());
  CHECK_FALSE(identity_of("cluster/store-id").has_value());
}

TEST_CASE("a damaged stretch is found where it is: header, each chunk, chunk digests (J12)") {
  const auto good = golden("storage", "object_chunks.1.hex");
  const schema::ObjectRef ref{log_key(kJobName, 3, 7, 44, "u"), good.size(), sha256(good)};
  const std::size_t table_at = kObjectHeaderBytes + 10240;
  for (std::size_t i = 0; i < good.size(); i += i < 200 || i > 10300 ? 1 : 97) {
    auto bad = good;
    bad[i] ^= 0x10;
    const auto findings = judge(ref, bad, 1000);
    REQUIRE_MESSAGE(findings.size() == 1, i);
    const Finding& finding = findings[0];
    REQUIRE(finding.offset.has_value());
    if (i < kObjectHeaderBytes)
      CHECK(*finding.offset == 0);
    else if (i < table_at)
      CHECK(*finding.offset == kObjectHeaderBytes + (i - kObjectHeaderBytes) / 4096 * 4096);
    else
      CHECK(*finding.offset == table_at);
    CHECK(finding.key == ref.key);
    CHECK(finding.expected == "SHA-256 " + to_hex(ref.sha256));
    CHECK(finding.actual == "SHA-256 " + to_hex(sha256(bad)));
  }
  auto two = good;
  two[kObjectHeaderBytes] ^= 1;
  two[kObjectHeaderBytes + 9000] ^= 1;
  CHECK(judge(ref, two, 4096).size() == 2);
}

TEST_CASE("cuts, additions and other whole objects are named for what they are") {
  const auto good = golden("storage", "object_log.1.hex");
  const schema::ObjectRef ref{log_key(kJobName, 3, 7, 43, "u"), good.size(), sha256(good)};
  for (std::size_t size = 0; size < good.size(); ++size) {
    const auto findings = judge(ref, ByteSpan(good).first(size), 64);
    REQUIRE(findings.size() == 1);
    CHECK(findings[0].what == "object has another length");
    CHECK(findings[0].offset == size);
  }
  auto longer = good;
  longer.push_back(0);
  CHECK(judge(ref, longer, 64)[0].offset == good.size());
  // Another step's object of the same length under this key.
  const auto payload = counting(100);
  const auto other_step = joined(seal_object(log_of(7, 42), {payload}));
  CHECK(judge(ref, other_step, 64)[0].code == ErrorCode::kObjectForeign);
  // A whole object of the same identity with other content.
  const std::vector<std::uint8_t> other(100, 5);
  const auto findings = judge(ref, joined(seal_object(log_of(7, 43), {other})), 64);
  REQUIRE(findings.size() == 1);
  CHECK(findings[0].code == ErrorCode::kObjectForeign);
  // A record that names the foreign object's digest does not make it the right one.
  const schema::ObjectRef wrong{ref.key, other_step.size(), sha256(other_step)};
  CHECK(judge(wrong, other_step, 64)[0].code == ErrorCode::kObjectForeign);
  // Random bytes whose digest is recorded are still no object.
  const std::vector<std::uint8_t> noise(200, 0xEE);
  CHECK(judge({ref.key, noise.size(), sha256(noise)}, noise, 64).size() == 1);
}

TEST_CASE("hostile headers and part tables") {
  const auto good = golden("storage", "object_log.1.hex");
  for (std::size_t bit = 0; bit < kObjectHeaderBytes * 8; ++bit) {
    auto bad = good;
    bad[bit / 8] ^= static_cast<std::uint8_t>(1U << bit % 8);
    CHECK_FALSE_MESSAGE(parse_object_header(bad).has_value(), bit);
  }
  for (std::size_t size = 0; size < kObjectHeaderBytes; ++size)
    CHECK_FALSE(parse_object_header(ByteSpan(good).first(size)).has_value());
  auto newer = good;
  newer[4] = 2;
  CHECK(parse_object_header(newer).error().code == ErrorCode::kStoreFormat);
  const auto refused = [&](auto change) {
    ObjectHeader header = parse_object_header(good).value();
    change(header);
    return !parse_object_header(encode(header)).has_value();
  };
  CHECK(refused([](ObjectHeader& h) { h.chunk_bytes = 0; }));
  CHECK(refused([](ObjectHeader& h) { h.chunk_bytes = kObjectChunkMin - 1; }));
  CHECK(refused([](ObjectHeader& h) { h.stored_bytes = ~std::uint64_t{0}; }));
  CHECK(refused([](ObjectHeader& h) { h.plain_bytes = 99; }));
  CHECK(refused([](ObjectHeader& h) { h.codec = 1; }));
  CHECK(refused([](ObjectHeader& h) { h.encryption = 1; }));
  CHECK(refused([](ObjectHeader& h) { h.identity.kind = static_cast<ObjectKind>(6); }));
  CHECK_FALSE(refused([](ObjectHeader& h) { h.chunk_bytes = 1 << 22; }));
  auto table = encode_part_table({{1, 3}, {2, 4}});
  table.resize(table.size() + 7);
  CHECK(parse_parts(table).has_value());
  table.push_back(0);
  CHECK_FALSE(parse_parts(table).has_value());
  table.resize(table.size() - 2);
  CHECK_FALSE(parse_parts(table).has_value());
  auto twice = encode_part_table({{1, 0}, {1, 0}});
  CHECK_FALSE(parse_parts(twice).has_value());
  auto many = encode_part_table({{1, 0}});
  many[0] = 0xFF;
  many[1] = 0xFF;
  CHECK_FALSE(parse_parts(many).has_value());
  CHECK_FALSE(parse_parts({}).has_value());
}
