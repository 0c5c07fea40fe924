#include "actors/upload_codec.h"

#include <doctest/doctest.h>
#include <fmt/format.h>
#include <nlohmann/json.hpp>

#include "actors/http_answer.h"
#include "common/random.h"
#include "common/sha256.h"

namespace gradtap::actors {
namespace {

using nlohmann::json;

schema::ObjectRef object_ref(const std::string& name) {
  return {"jobs/job/" + name, 100 + name.size(), sha256(std::string_view(name))};
}

schema::ShardObjects objects(ShardId shard, StepNumber base, StepNumber step) {
  schema::ShardObjects all;
  all.shard = shard;
  all.base_step = base;
  all.base = object_ref(fmt::format("{}/full/{}", shard, base));
  for (StepNumber each = base + 1; each <= step; ++each)
    all.logs.push_back({each, object_ref(fmt::format("{}/log/{}", shard, each))});
  return all;
}

json uploaded_body() {
  const json object = {{"key", "k"}, {"bytes", 9}, {"sha256", std::string(64, 'b')}};
  return {{"shards",
           {{{"shard", 3}, {"base", {{"step", 8}, {"object", object}}}, {"logs", {{{"step", 9}, {"object", object}}}}},
            {{"shard", 4}, {"logs", json::array()}}}}};
}

void refused(const json& body) {
  const std::string text = body.dump();
  CAPTURE(text);
  const auto decoded = decode_uploaded(text);
  REQUIRE_FALSE(decoded);
  CHECK_FALSE(decoded.error().what.empty());
}

}  // namespace

TEST_CASE("a question for an upload comes back as it was") {
  const UploadRequest request{5, 90, 88, {0, 7, 4'294'967'295U}};
  CHECK(json::parse(encode_upload(request)) ==
        json{{"lineage", 5}, {"step", 90}, {"previous_step", 88}, {"shards", {0, 7, 4'294'967'295U}}});
  const auto decoded = decode_upload(encode_upload(request));
  REQUIRE(decoded);
  CHECK(decoded->lineage == 5);
  CHECK(decoded->step == 90);
  CHECK(decoded->previous_step == 88);
  CHECK(decoded->shards == request.shards);
  for (const char* text : {"", "{}", "[]", R"({"lineage":1,"step":2,"previous_step":1,"shards":0})",
                           R"({"lineage":1,"step":2,"previous_step":1,"shards":[-1]})",
                           R"({"lineage":1,"step":2,"previous_step":1,"shards":["1"]})",
                           R"({"lineage":1,"step":2,"previous_step":1,"shards":[4294967296]})",
                           R"({"lineage":4294967296,"step":2,"previous_step":1,"shards":[]})",
                           R"({"lineage":1,"step":4611686018427387905,"previous_step":1,"shards":[]})",
                           R"({"lineage":1,"step":2,"previous_step":null,"shards":[]})"}) {
    CAPTURE(text);
    CHECK_FALSE(decode_upload(text));
  }
}

TEST_CASE("uploaded shards come back as they were") {
  UploadedShard whole;
  whole.shard = 2;
  whole.whole = true;
  whole.base_step = 8;
  whole.base = object_ref("base");
  whole.logs = {{9, object_ref("nine")}, {10, object_ref("ten")}};
  UploadedShard more;
  more.shard = 3;
  more.logs = {{10, object_ref("three/ten")}};
  const auto decoded = decode_uploaded(encode_uploaded({whole, more}));
  REQUIRE_MESSAGE(decoded, decoded.error().text());
  REQUIRE(decoded->size() == 2);
  CHECK((*decoded)[0].shard == 2);
  CHECK((*decoded)[0].whole);
  CHECK((*decoded)[0].base_step == 8);
  CHECK((*decoded)[0].base == whole.base);
  CHECK((*decoded)[0].logs == whole.logs);
  CHECK((*decoded)[1].shard == 3);
  CHECK_FALSE((*decoded)[1].whole);
  CHECK((*decoded)[1].logs == more.logs);
  const auto by_hand = decode_uploaded(uploaded_body().dump());
  REQUIRE_MESSAGE(by_hand, by_hand.error().text());
  CHECK((*by_hand)[0].base.bytes == 9);
  CHECK(to_hex((*by_hand)[0].logs[0].object.sha256) == std::string(64, 'b'));
}

TEST_CASE("a node's error arrives as that error") {
  const Error error{ErrorCode::kStoreFull, "no space", "directory /mnt", "1", "2", "delete something"};
  const auto decoded = decode_uploaded(http_error(error).body);
  REQUIRE_FALSE(decoded);
  CHECK(decoded.error().code == ErrorCode::kStoreFull);
  CHECK(decoded.error().what == "no space");
  CHECK(decoded.error().where == "directory /mnt");
  CHECK(decoded.error().expected == "1");
  CHECK(decoded.error().actual == "2");
  CHECK(decoded.error().remedy == "delete something");
}

TEST_CASE("an error of a hostile node is an error") {
  for (const json& error : {json::object(), json{{"code", "407"}, {"what", "x"}}, json{{"code", -1}},
                            json{{"what", 5}, {"where", nullptr}, {"remedy", json::array()}},
                            json{{"what", {{"a", 1}}}}, json{{"code", 18'446'744'073'709'551'615U}}}) {
    const std::string text = json{{"error", error}}.dump();
    CAPTURE(text);
    CHECK_FALSE(decode_uploaded(text));
  }
  CHECK_FALSE(decode_uploaded(R"({"error": 5})"));
}

TEST_CASE("what is not an answer to an upload is refused") {
  for (const char* text : {"", "{}", "[]", "null", R"({"shards": 5})", R"({"shards": [5]})", R"({"shards": [[]]})"})
    CHECK_FALSE(decode_uploaded(text));
  const json none;
  for (const json& value : {json(-1), json("3"), json(std::uint64_t{1} << 32), none}) {
    json body = uploaded_body();
    body["shards"][0]["shard"] = value;
    refused(body);
  }
  for (const json& value : {none, json(5), json::array(), json::object(), json{{"step", 1}}, json{{"object", 5}}}) {
    json body = uploaded_body();
    body["shards"][0]["base"] = value;
    refused(body);
    body = uploaded_body();
    body["shards"][0]["logs"][0] = value;
    refused(body);
  }
  for (const char* field : {"key", "bytes", "sha256"})
    for (const json& value : {none, json(-1), json::array(), json(std::string(64, 'z'))}) {
      if (std::string(field) == "key" && value.is_string()) continue;
      json body = uploaded_body();
      body["shards"][0]["base"]["object"][field] = value;
      refused(body);
      body = uploaded_body();
      body["shards"][0]["logs"][0]["object"].erase(field);
      refused(body);
    }
  json body = uploaded_body();
  body["shards"][1].erase("logs");
  refused(body);
}

TEST_CASE("a difference brings the previous point's objects to the new ones, whatever they are") {
  SeededRandom random(31);
  std::uint64_t appended = 0;
  for (int round = 0; round < 400; ++round) {
    const auto shard = static_cast<ShardId>(random.below(3));
    const StepNumber base = random.below(4);
    const StepNumber step = base + random.below(4);
    const auto before = objects(shard, base, step);
    auto now = objects(shard, random.below(3) == 0 ? base + random.below(3) : base, step + random.below(4));
    if (random.below(8) == 0 && !now.logs.empty()) now.logs[0].object = object_ref("written again");
    const schema::ShardObjects* const known = random.below(8) == 0 ? nullptr : &before;
    const UploadedShard change = difference(known, now);
    if (!change.whole) {
      ++appended;
      CHECK(change.logs.size() == now.logs.size() - before.logs.size());
    }
    // By way of the text.
    const auto sent = decode_uploaded(encode_uploaded({change}));
    REQUIRE(sent);
    const auto there = apply_difference(known, sent->front());
    REQUIRE(there);
    CHECK(*there == now);
  }
  CHECK(appended > 50);
  UploadedShard change;
  change.shard = 1;
  CHECK_FALSE(apply_difference(nullptr, change));  // more of nothing
}

TEST_CASE("damaged texts are an answer or an error") {
  SeededRandom random(29);
  const std::string answer = uploaded_body().dump();
  const std::string question = encode_upload({5, 90, 88, {0, 7, 9}});
  const std::string error = http_error({ErrorCode::kStoreFull, "no space", "w", "e", "a", "r"}).body;
  std::uint64_t read = 0;
  for (int round = 0; round < 6000; ++round) {
    std::string damaged = round % 3 == 0 ? answer : round % 3 == 1 ? question : error;
    for (std::uint64_t i = 0; i <= random.below(3) && !damaged.empty(); ++i) {
      const std::size_t at = random.below(damaged.size());
      if (random.below(2) == 0)
        damaged[at] = "0123456789{}[]\",:-.en\\ \xff"[random.below(24)];
      else
        damaged.erase(at, 1 + random.below(4));
    }
    read += decode_uploaded(damaged).has_value() ? 1 : 0;
    read += decode_upload(damaged).has_value() ? 1 : 0;
  }
  CHECK(read > 100);
}

}  // namespace gradtap::actors
