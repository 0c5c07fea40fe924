#include "recovery/point_choice.h"

#include <cstring>

#include <doctest/doctest.h>

#include "recovery/point_json.h"
#include "tests/unit/recovery/published_job.h"

namespace gradtap::recovery {
namespace {

using test::json;
using test::PublishedJob;
using test::text_of;

void publish_to(PublishedJob& job, StepNumber last) {
  job.publish();
  while (job.last->canonical.step < last) {
    job.step();
    job.publish();
  }
}

json header_of(const std::string& file) {
  std::uint64_t length = 0;
  std::memcpy(&length, file.data(), 8);
  return json::parse(file.substr(8, length));
}

}  // namespace

TEST_CASE("a damaged newest point is passed over with its reason; a point asked for is never replaced") {
  PublishedJob job(test::three_shards(test::adamw()));
  publish_to(job, 3);
  const auto newest = prepare_point_state(job.store(), {"job", {}, {}}, {true, StateFormat::kSafetensors});
  REQUIRE_MESSAGE(newest, newest.error().text());
  CHECK(newest->chosen.point.record->canonical.step == 3);
  CHECK(newest->chosen.passed_over.empty());

  const std::string key = job.last->shards[1].logs.back().object.key;  // of step 3 only
  job.flip(key, 200);
  const auto older = prepare_point_state(job.store(), {"job", {}, {}}, {true, StateFormat::kSafetensors});
  REQUIRE_MESSAGE(older, older.error().text());
  CHECK(older->chosen.point.record->canonical.step == 2);
  CHECK(header_of(text_of(older->stream))["__metadata__"]["step"] == "2");
  REQUIRE(older->chosen.passed_over.size() == 1);
  CHECK(older->chosen.passed_over[0].step == 3);
  CHECK(older->chosen.passed_over[0].reason.find(key) != std::string::npos);
  const auto asked = prepare_point_state(job.store(), {"job", {}, 3}, {true, StateFormat::kSafetensors});
  REQUIRE_FALSE(asked);
  CHECK(asked.error().where.find(key) != std::string::npos);

  // The base of all points: nothing is left, and every reason is told.
  job.flip(job.last->shards[0].base.key, 200);
  const auto none = prepare_point_state(job.store(), {"job", {}, {}}, {});
  REQUIRE_FALSE(none);
  CHECK(none.error().code == ErrorCode::kPointNone);
  CHECK(none.error().text().find(job.last->shards[0].base.key) != std::string::npos);
  CHECK(read_point_side(job.store(), {"job", {}, {}}, 0)->chosen.point.record->canonical.step == 3);
}

TEST_CASE("the side state of a rank is a tensor of bytes for each blob") {
  PublishedJob job(test::three_shards(test::adamw()));
  publish_to(job, 2);
  for (std::uint32_t rank = 0; rank < 2; ++rank) {
    const auto side = read_point_side(job.store(), {"job", 1, 2}, rank);
    REQUIRE_MESSAGE(side, side.error().text());
    const json header = header_of(side->bytes);
    CHECK(header.size() == 3);
    const std::string position = "position 2 of rank " + std::to_string(rank);
    CHECK(header["data"] ==
          json{{"dtype", "U8"}, {"shape", {position.size()}}, {"data_offsets", {0, position.size()}}});
    CHECK(header["rng.torch"]["shape"] == json::array({100}));
    const std::string data = side->bytes.substr(side->bytes.size() - 100 - position.size());
    CHECK(data == position + std::string(100, static_cast<char>(2 + rank)));
    const json& metadata = header["__metadata__"];
    CHECK(metadata["step"] == "2");
    CHECK(metadata["lineage"] == "1");
    CHECK(metadata["rank"] == std::to_string(rank));
    CHECK(metadata["message"] == (rank == 0 ? job.message_of(2) : "{\"rank\": 1}"));
    CHECK(json::parse(metadata["digests"].get<std::string>())["data"] == to_hex(sha256(std::string_view(position))));
    CHECK(metadata["side_digest"] == to_hex(job.last->canonical.ranks[rank].digest));
  }
  const auto nobody = read_point_side(job.store(), {"job", {}, {}}, 2);
  REQUIRE_FALSE(nobody);
  CHECK(nobody.error().code == ErrorCode::kOutOfRange);
}

TEST_CASE("verifying rebuilds what all bytes agree on") {
  PublishedJob job(test::three_shards(test::adamw()));
  publish_to(job, 1);
  auto whole = verify_whole_point(job.store(), "job", 1, 1);
  REQUIRE(whole);
  CHECK(whole->whole());
  CHECK(whole->objects == 3 + 3 + 1 + 1 + 1);  // fulls, logs, a step message, side, meta
  job.step();
  // A publisher that names a state which its logs do not give.
  PointFacts facts = job.facts(2);
  facts.shard_digests[1] = job.job.digests[1].at(1);
  job.publish(std::move(facts));
  const auto wrong = verify_whole_point(job.store(), "job", 1, 2);
  REQUIRE(wrong);
  REQUIRE(wrong->findings.size() == 1);
  CHECK(wrong->findings[0].code == ErrorCode::kDigestMismatch);
  CHECK(wrong->findings[0].what.find("shard 1") != std::string::npos);
  CHECK(wrong->findings[0].expected == to_hex(job.job.digests[1].at(1)));
  CHECK(wrong->findings[0].actual == to_hex(job.job.digests[1].at(2)));
  // A flipped bit is the byte check's, with its offset.
  job.flip(job.last->side.key, 100);
  const auto flipped = verify_whole_point(job.store(), "job", 1, 2);
  REQUIRE(flipped);
  REQUIRE(flipped->findings.size() == 1);
  CHECK(flipped->findings[0].key == job.last->side.key);
  CHECK(verify_json(*flipped)["findings"][0]["key"] == job.last->side.key);
  CHECK(verify_json(*flipped)["whole"] == false);
}

TEST_CASE("points and lineages as JSON") {
  PublishedJob job(test::three_shards(test::adamw()));
  publish_to(job, 2);
  const auto listing = [&] {
    auto listed = storage::list_points(*job.objects, "job");
    REQUIRE(listed);
    return std::move(*listed);
  };
  json points = points_json(listing());
  REQUIRE(points["points"].size() == 3);
  CHECK(points["points"][0]["step"] == 2);
  CHECK(points["points"][2]["step"] == 0);
  CHECK(points["points"][0]["valid"] == true);
  CHECK(points["points"][0]["reason"] == "");
  CHECK(points["points"][0]["lineage"] == 1);
  CHECK(points["points"][0]["world"] == 2);
  CHECK(points["points"][0]["superseded"] == false);
  CHECK(points["points"][0]["wall_ms"] == 5002);
  CHECK(points["points"][0]["root"] ==
        to_hex(test::sha_of_all({job.job.digests[0][2], job.job.digests[1][2], job.job.digests[2][2]})));
  CHECK(points["restorable"] ==
        json({{{"lineage", 1}, {"step", 2}}, {{"lineage", 1}, {"step", 1}}, {{"lineage", 1}, {"step", 0}}}));
  const json lineages = lineages_json(listing());
  CHECK(lineages["lineages"][0]["lineage"] == 1);
  CHECK(lineages["lineages"][0]["points"] == 3);
  CHECK(lineages["lineages"][0]["newest_point"] == 2);
  CHECK(lineages["lineages"][0]["run_nonce"] == std::string(32, 'a'));
  CHECK(lineages["lineages"][0]["parent"].is_null());

  const json point = point_json(*job.last, job.last_digest);
  CHECK(point["step"] == 2);
  CHECK(point["optimizer"] == "AdamW");
  CHECK(point["recipe"] == replica::recipe_name({}));
  CHECK(point["layout"].is_null());
  CHECK(point["shards"][1]["digest"] == to_hex(job.job.digests[1][2]));
  CHECK(point["shards"][1]["base_step"] == 0);
  CHECK(point["shards"][1]["logs"].size() == 2);
  CHECK(point["ranks"].size() == 2);
  CHECK(point["previous"]["step"] == 1);
  CHECK(point["record_digest"] == points["points"][0]["record_digest"]);

  std::filesystem::remove(job.points.path + "/" + job.last->side.key);
  points = points_json(listing());
  CHECK(points["points"][0]["valid"] == false);
  CHECK(points["points"][0]["reason"].get<std::string>().find(job.last->side.key) != std::string::npos);
  CHECK(points["restorable"] == json({{{"lineage", 1}, {"step", 1}}, {{"lineage", 1}, {"step", 0}}}));
  CHECK(points["passed_over"][0]["step"] == 2);
  const json empty = points_json(*storage::list_points(*job.objects, "nobody"));
  CHECK(empty["restorable"].empty());
  CHECK(empty["problem"]["name"] == "POINT_NONE");
}

}  // namespace gradtap::recovery
