// Golden records were made by the capnp tool and Python (golden/make_epoch_golden.py), not by this codec.
#include "schema/epoch_codec.h"

#include <numeric>
#include <string>
#include <string_view>

#include <doctest/doctest.h>
#include <fmt/format.h>

#include "common/random.h"
#include "schema/envelope.h"
#include "tests/test_files.h"

using namespace gradtap;
using namespace gradtap::schema;
using gradtap::testing::golden;

namespace {

EpochMember member(int index, std::string domain, std::uint32_t capacity, MemberState state, std::uint64_t since) {
  return {fmt::format("tap{}", index),
          fmt::format("10.77.0.{}:7800", 100 + index),
          fmt::format("http://10.77.0.{}:7700", 100 + index),
          std::move(domain),
          capacity,
          state,
          since};
}

EpochRecord first() {
  EpochRecord record;
  record.number = 1;
  record.replicas = 1;
  record.members = {member(0, "rack-a", 1, MemberState::kIn, 1)};
  record.proposer = "tap0";
  record.cause = "first start";
  record.created_wall_ms = 1700000000123;
  return record;
}

EpochRecord seventh() {
  EpochRecord record;
  record.number = 7;
  std::iota(record.previous.begin(), record.previous.end(), static_cast<std::uint8_t>(7));
  record.members = {member(0, "rack-a", 1, MemberState::kIn, 1), member(1, "rack-b", 65535, MemberState::kDraining, 1),
                    member(2, "rack-b", 3, MemberState::kOut, 4), member(3, "rack-b", 2, MemberState::kIn, 7)};
  record.owners = {{0, 3}, {3, 0}, {1, 0}, {3}, {0, 1}};
  record.proposer = "operator";
  record.cause = "drain tap1";
  record.created_wall_ms = 1700000000456;
  return record;
}

// The field that decoding names; empty when the record is accepted.
template <class Change>
std::string refused_field(Change change) {
  EpochRecord record = seventh();
  change(record);
  const auto decoded = decode_epoch(encode(record).value());
  if (decoded) return {};
  CHECK(decoded.error().code == ErrorCode::kStoreCorrupt);
  return decoded.error().where;
}

}  // namespace

TEST_CASE("golden epoch records of format 1 read as what they were made from") {
  CHECK(decode_epoch(golden("schema", "epoch_first.1.hex")).value() == first());
  CHECK(decode_epoch(golden("schema", "epoch.1.hex")).value() == seventh());
}

TEST_CASE("epoch records that are written are read again") {
  CHECK(decode_epoch(encode(first()).value()).value() == first());
  CHECK(decode_epoch(encode(seventh()).value()).value() == seventh());
}

TEST_CASE("every flipped bit and every cut of an epoch record is an error") {
  const auto whole = golden("schema", "epoch.1.hex");
  for (std::size_t bit = 0; bit < whole.size() * 8; ++bit) {
    auto changed = whole;
    changed[bit / 8] ^= static_cast<std::uint8_t>(1U << bit % 8);
    const auto decoded = decode_epoch(changed);
    REQUIRE_FALSE_MESSAGE(decoded.has_value(), bit);
    REQUIRE_FALSE(decoded.error().what.empty());
  }
  for (std::size_t size = 0; size < whole.size(); ++size)
    REQUIRE_FALSE(decode_epoch(ByteSpan(whole).first(size)).has_value());
  const std::vector<std::uint8_t> payload(whole.begin() + kEnvelopeBytes, whole.end());
  CHECK(decode_epoch(seal(RecordType::kPoint, payload)).error().code == ErrorCode::kStoreCorrupt);
}

TEST_CASE("a hostile epoch message inside a valid envelope is an error, never an exception") {
  SeededRandom random(7);
  const auto whole = golden("schema", "epoch.1.hex");
  const std::vector<std::uint8_t> payload(whole.begin() + kEnvelopeBytes, whole.end());
  for (std::size_t size = 0; size < payload.size(); ++size)
    REQUIRE_FALSE(decode_epoch(seal(RecordType::kEpoch, ByteSpan(payload).first(size))).has_value());
  std::size_t refused = 0;
  for (int round = 0; round < 20000; ++round) {
    auto changed = payload;
    for (std::uint64_t n = 1 + random.below(4); n > 0; --n)
      changed[random.below(changed.size())] = static_cast<std::uint8_t>(random.next());
    const auto decoded = decode_epoch(seal(RecordType::kEpoch, changed));
    if (decoded)
      REQUIRE(decode_epoch(encode(*decoded).value()).value() == *decoded);
    else
      ++refused;
  }
  CHECK(refused > 1000);
}

TEST_CASE("impossible epochs are refused, the field named") {
  using Record = EpochRecord;
  CHECK(refused_field([](Record&) {}).empty());
  CHECK(refused_field([](Record& r) { r.owners.clear(); }).empty());
  CHECK(refused_field([](Record& r) { r.number = 0; }) == "number");
  CHECK(refused_field([](Record& r) { r.previous = {}; }) == "previous");
  CHECK(refused_field([](Record& r) {
          r.number = 1;
          for (EpochMember& member : r.members) member.since_epoch = 1;
        }) == "previous");
  CHECK(refused_field([](Record& r) { r.replicas = 0; }) == "replicas");
  CHECK(refused_field([](Record& r) { r.replicas = 17; }) == "replicas");
  CHECK(refused_field([](Record& r) { r.members.clear(); }) == "members");
  CHECK(refused_field([](Record& r) { r.members[1].name.clear(); }) == "members.name");
  CHECK(refused_field([](Record& r) { r.members[3].name = "tap0"; }) == "members.name");
  CHECK(refused_field([](Record& r) { r.members[0].name.assign(256, 'n'); }) == "members.name");
  CHECK(refused_field([](Record& r) { r.members[0].name.assign(255, 'n'); }).empty());
  CHECK(refused_field([](Record& r) { r.members[0].link.assign(256, 'l'); }) == "members.link");
  CHECK(refused_field([](Record& r) { r.members[0].http.assign(256, 'h'); }) == "members.http");
  CHECK(refused_field([](Record& r) { r.members[0].domain.assign(256, 'd'); }) == "members.domain");
  CHECK(refused_field([](Record& r) { r.members[0].capacity = 0; }) == "members.capacity");
  CHECK(refused_field([](Record& r) { r.members[0].capacity = 65536; }) == "members.capacity");
  CHECK(refused_field([](Record& r) { r.members[0].state = static_cast<MemberState>(3); }) == "members.state");
  CHECK(refused_field([](Record& r) { r.members[0].since_epoch = 0; }) == "members.sinceEpoch");
  CHECK(refused_field([](Record& r) { r.members[0].since_epoch = 8; }) == "members.sinceEpoch");
  CHECK(refused_field([](Record& r) { r.owners[1] = {}; }) == "owners");
  CHECK(refused_field([](Record& r) { r.owners[1] = {3, 3}; }) == "owners");
  CHECK(refused_field([](Record& r) { r.owners[1] = {0, 1, 3}; }) == "owners");
  CHECK(refused_field([](Record& r) { r.owners[1] = {4}; }) == "owners");
  CHECK(refused_field([](Record& r) { r.owners[1] = {2}; }) == "owners");  // out
  CHECK(refused_field([](Record& r) { r.proposer.assign(256, 'p'); }) == "proposer");
}

TEST_CASE("epochs beyond the limits are refused before they are stored; the largest map fits") {
  const auto limited = [](auto change) {
    EpochRecord record = seventh();
    change(record);
    const auto encoded = encode(record);
    return !encoded.has_value() && encoded.error().code == ErrorCode::kLimitReached;
  };
  CHECK(limited([](EpochRecord& r) { r.members.resize(kEpochMembersMax + 1); }));
  CHECK(limited([](EpochRecord& r) { r.owners.resize(kEpochShardsMax + 1); }));
  CHECK(limited([](EpochRecord& r) { r.owners[0].resize(kEpochReplicasMax + 1); }));
  CHECK(limited([](EpochRecord& r) { r.owners[0] = {kEpochMembersMax}; }));
  CHECK(limited([](EpochRecord& r) { r.cause.resize(kEpochBytesMax); }));
  EpochRecord largest = seventh();
  largest.replicas = kEpochReplicasMax;
  largest.members.clear();
  for (std::size_t i = 0; i < kEpochMembersMax; ++i)
    largest.members.push_back(member(static_cast<int>(i), "rack", 1, MemberState::kIn, 1));
  std::vector<std::uint32_t> owners(kEpochReplicasMax);
  std::iota(owners.begin(), owners.end(), kEpochMembersMax - kEpochReplicasMax);
  largest.owners.assign(kEpochShardsMax, owners);
  const auto encoded = encode(largest);
  REQUIRE(encoded.has_value());
  CHECK(decode_epoch(*encoded).value() == largest);
}
