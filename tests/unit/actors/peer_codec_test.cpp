#include "actors/peer_codec.h"

#include <doctest/doctest.h>
#include <fmt/format.h>
#include <nlohmann/json.hpp>

#include "common/random.h"
#include "common/sha256.h"

namespace gradtap::actors {
namespace {

using nlohmann::json;

PeerReport full_report() {
  PeerReport report;
  report.member = 2;
  report.training = 40;
  report.bound = 39;
  report.published = 30;
  report.shards = {{0, 38, 37}, {5, 39, std::nullopt}};
  report.digests = {{0, 38, sha256(std::string_view("a"))}, {5, 39, sha256(std::string_view("b"))}};
  report.gaps = {{GapReason::kLostDefinitive, 39, "bucket 1", "held"}, {GapReason::kStorageFull, 1, "", ""}};
  return report;
}

json report_body() {
  return {{"lineage", 7},
          {"member", 1},
          {"training", 4},
          {"bound", 3},
          {"published", 2},
          {"shards", {{0, 3, 2}, {1, 3, nullptr}}},
          {"digests", {{0, 3, std::string(64, 'a')}}},
          {"gaps", {{7, 4, "evidence", "action"}}}};
}

void refused(const json& body) {
  const std::string text = body.dump();
  CAPTURE(text);
  const auto decoded = decode_report(text);
  REQUIRE_FALSE(decoded);
  CHECK_FALSE(decoded.error().what.empty());
}

}  // namespace

TEST_CASE("a hello says who a node is") {
  PeerHello hello;
  hello.node = "tap0";
  hello.cluster = std::string(64, 'c');
  hello.ready = true;
  hello.lineage = 3;
  hello.store_id = std::string(32, 'd');
  hello.presence_key = "cluster/seen/tap0/1";
  const std::string text = encode_hello(hello);
  CHECK(json::parse(text) == json{{"node", "tap0"},
                                  {"cluster", std::string(64, 'c')},
                                  {"ready", true},
                                  {"lineage", 3},
                                  {"store_id", std::string(32, 'd')},
                                  {"epoch", 0},
                                  {"tap", false},
                                  {"presence_key", "cluster/seen/tap0/1"}});
  const auto decoded = decode_hello(text);
  REQUIRE(decoded);
  CHECK(decoded->node == "tap0");
  CHECK(decoded->cluster == std::string(64, 'c'));
  CHECK(decoded->ready);
  CHECK(decoded->lineage == 3);
  CHECK(decoded->store_id == std::string(32, 'd'));
  CHECK(decoded->presence_key == "cluster/seen/tap0/1");
}

TEST_CASE("what is not a hello is refused") {
  const json good = {{"node", "tap1"}, {"cluster", ""},      {"ready", false}, {"lineage", 4'294'967'295U},
                     {"store_id", ""}, {"presence_key", ""}, {"more", {1}}};
  REQUIRE(decode_hello(good.dump()));
  CHECK(decode_hello(good.dump())->lineage == 4'294'967'295U);
  CHECK_FALSE(decode_hello(good.dump())->ready);
  for (const char* field : {"node", "cluster", "ready", "lineage", "store_id", "presence_key"}) {
    CAPTURE(field);
    json body = good;
    body.erase(field);
    CHECK_FALSE(decode_hello(body.dump()));
    for (const json& value : {json(nullptr), json(-1), json(1.5), json(std::uint64_t{1} << 32), json::array(),
                              json::object(), json(std::string(2000, 'x'))}) {
      body[field] = value;
      CAPTURE(value.type_name());
      CHECK_FALSE(decode_hello(body.dump()));
    }
  }
  for (const json& tap : {json(1), json("true"), json(nullptr)}) {
    json body = good;
    body["tap"] = tap;
    CHECK_FALSE(decode_hello(body.dump()));
  }
  for (const char* text : {"", "{", "[]", "null", "7", "{}", "\xff"}) CHECK_FALSE(decode_hello(text));
}

TEST_CASE("a report comes back as it was") {
  const PeerReport report = full_report();
  const auto decoded = decode_report(encode_report(report, 9));
  REQUIRE_MESSAGE(decoded, decoded.error().text());
  CHECK(decoded->lineage == 9);
  const PeerReport& got = decoded->report;
  CHECK(got.member == 2);
  CHECK(got.training == 40);
  CHECK(got.bound == 39);
  CHECK(got.published == 30);
  REQUIRE(got.shards.size() == 2);
  CHECK(got.shards[0].shard == 0);
  CHECK(got.shards[0].version == 38);
  CHECK(got.shards[0].durable == 37);
  CHECK(got.shards[1].shard == 5);
  CHECK_FALSE(got.shards[1].durable);
  REQUIRE(got.digests.size() == 2);
  CHECK(got.digests[1].shard == 5);
  CHECK(got.digests[1].step == 39);
  CHECK(got.digests[1].digest == report.digests[1].digest);
  REQUIRE(got.gaps.size() == 2);
  CHECK(got.gaps[0].reason == GapReason::kLostDefinitive);
  CHECK(got.gaps[0].since_step == 39);
  CHECK(got.gaps[0].evidence == "bucket 1");
  CHECK(got.gaps[0].action == "held");
}

TEST_CASE("the offset of tags is told once it is learnt") {
  PeerReport report = full_report();
  for (const std::optional<std::int64_t> delta :
       {std::optional<std::int64_t>(), std::optional<std::int64_t>(0), std::optional<std::int64_t>(-7),
        std::optional<std::int64_t>(std::int64_t{1} << 40)}) {
    report.delta = delta;
    const auto decoded = decode_report(encode_report(report, 9));
    REQUIRE(decoded);
    CHECK(decoded->report.delta == delta);
  }
  json body = report_body();
  CHECK_FALSE(decode_report(body.dump())->report.delta);  // not told
  for (const json& delta : {json(1.5), json("1"), json((std::int64_t{1} << 40) + 1), json(-(std::int64_t{1} << 40) - 1),
                            json(std::int64_t{1} << 62), json(~std::uint64_t{0}), json::array(), json(true)}) {
    body["delta"] = delta;
    refused(body);
  }
}

TEST_CASE("digests that are wanted are asked for from a step on") {
  PeerReport report = full_report();
  for (const std::optional<StepNumber> wanted :
       {std::optional<StepNumber>(), std::optional<StepNumber>(0), std::optional<StepNumber>(41)}) {
    report.digests_wanted = wanted;
    const auto decoded = decode_report(encode_report(report, 9));
    REQUIRE(decoded);
    CHECK(decoded->report.digests_wanted == wanted);
  }
  json body = report_body();
  CHECK_FALSE(decode_report(body.dump())->report.digests_wanted);  // not told
  for (const json& wanted : {json(-1), json(1.5), json("1"), json(~std::uint64_t{0}), json::array()}) {
    body["digests_wanted"] = wanted;
    refused(body);
  }
}

TEST_CASE("a report written by hand is read") {
  const auto decoded = decode_report(report_body().dump());
  REQUIRE_MESSAGE(decoded, decoded.error().text());
  CHECK(decoded->lineage == 7);
  CHECK(decoded->report.shards[0].durable == 2);
  CHECK(to_hex(decoded->report.digests[0].digest) == std::string(64, 'a'));
  CHECK(decoded->report.gaps[0].reason == GapReason::kLostDefinitive);
}

TEST_CASE("many and long gaps are cut by the sender; more than that is refused") {
  PeerReport report = full_report();
  report.gaps.assign(100, {GapReason::kConflict, 1, std::string(100'000, '\xff'), std::string(9'000, 'a')});
  const auto decoded = decode_report(encode_report(report, 1));  // bytes that are no UTF-8 are replaced
  REQUIRE_MESSAGE(decoded, decoded.error().text());
  CHECK(decoded->report.gaps.size() == 64);
  CHECK(decoded->report.gaps[0].action == std::string(2000, 'a'));
  CHECK(decoded->report.gaps[0].evidence.size() <= 8000);
  json body = report_body();
  body["gaps"] = json::array();
  for (int i = 0; i < 65; ++i) body["gaps"].push_back({7, 4, "e", "a"});
  refused(body);
  body["gaps"] = {{7, 4, std::string(8001, 'e'), "a"}};
  refused(body);
  body["gaps"] = {{7, 4, "e", std::string(8001, 'a')}};
  refused(body);
}

TEST_CASE("what is not a report is refused") {
  const std::uint64_t too_far = (std::uint64_t{1} << 62) + 1;
  for (const char* field : {"lineage", "member", "training", "bound", "published", "shards", "digests", "gaps"}) {
    CAPTURE(field);
    for (const json& value : {json(nullptr), json(-1), json(1.5), json("1"), json::object(), json(true)}) {
      json body = report_body();
      body[field] = value;
      refused(body);
    }
    json body = report_body();
    body.erase(field);
    refused(body);
  }
  for (const auto& [field, value] :
       std::vector<std::pair<std::string, json>>{{"lineage", std::uint64_t{1} << 32},
                                                 {"member", 65'536},
                                                 {"training", too_far},
                                                 {"bound", too_far},
                                                 {"published", too_far},
                                                 {"shards", {{0, 1}}},
                                                 {"shards", {{0, 1, 2, 3, 4}}},
                                                 {"shards", {0}},
                                                 {"shards", {{0, too_far, 1}}},
                                                 {"shards", {{0, 1, too_far}}},
                                                 {"shards", {{std::uint64_t{1} << 32, 1, 1}}},
                                                 {"shards", {{0, 1, "1"}}},
                                                 {"shards", {{-1, 1, 1}}},
                                                 {"digests", {{0, 1, std::string(63, 'a')}}},
                                                 {"digests", {{0, 1, std::string(65, 'a')}}},
                                                 {"digests", {{0, 1, std::string(64, 'g')}}},
                                                 {"digests", {{0, 1, 5}}},
                                                 {"digests", {{0, 1}}},
                                                 {"digests", {{0, too_far, std::string(64, 'a')}}},
                                                 {"gaps", {{256, 1, "e", "a"}}},
                                                 {"gaps", {{7, 1, "e"}}},
                                                 {"gaps", {{7, 1, 5, "a"}}},
                                                 {"gaps", {{7, 1, "e", nullptr}}},
                                                 {"gaps", {{7, too_far, "e", "a"}}}}) {
    json body = report_body();
    body[field] = value;
    refused(body);
  }
  std::string large = report_body().dump();
  large.insert(large.size() - 1, std::string(std::size_t{1} << 20, ' '));
  const auto decoded = decode_report(large);
  REQUIRE_FALSE(decoded);
  CHECK(decoded.error().code == ErrorCode::kRequestTooLarge);
  for (const char* text : {"", "{}", "[]", "null", "{\"lineage\": 1", "\xff\xfe"}) CHECK_FALSE(decode_report(text));
}

TEST_CASE("damaged texts are a report or an error, and every report that was read can be sent on") {
  SeededRandom random(23);
  const std::string text = encode_report(full_report(), 9);
  std::uint64_t read = 0;
  for (int round = 0; round < 4000; ++round) {
    std::string damaged = text;
    for (std::uint64_t i = 0; i <= random.below(3); ++i) {
      const std::size_t at = random.below(damaged.size());
      switch (random.below(3)) {
        case 0:
          damaged[at] = "0123456789{}[]\",:-.en\\ \xff"[random.below(24)];
          break;
        case 1:
          damaged.erase(at, 1 + random.below(4));
          break;
        default:
          damaged.insert(at, 1, "0123456789{}[]\",:-"[random.below(18)]);
      }
      if (damaged.empty()) damaged = "x";
    }
    const auto decoded = decode_report(damaged);
    (void)decode_hello(damaged);
    if (!decoded) continue;
    ++read;
    const auto again = decode_report(encode_report(decoded->report, decoded->lineage));
    REQUIRE(again);
    CHECK(again->report.shards.size() == decoded->report.shards.size());
    CHECK(again->report.training == decoded->report.training);
  }
  CHECK(read > 100);
}

}  // namespace gradtap::actors
