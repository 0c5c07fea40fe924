#include "actors/side_state.h"

#include <doctest/doctest.h>

#include "tests/unit/actors/side_fixture.h"

namespace gradtap::actors {
namespace {

using test::json;
using test::SideWriter;
using test::StoredJob;
using test::text_bytes;

struct SideRig {
  StoredJob job{test::three_shards(test::sgd())};  // two ranks
  SideWriter side{job};

  [[nodiscard]] SideStateOfStep read(StepNumber step) const {
    auto state = read_side_state(*job.store, *job.plan, step);
    if (!state) FAIL(state.error().text());
    return std::move(*state);
  }
  // The text of SIDE_STATE_MISSING.
  [[nodiscard]] std::string missing(StepNumber step) const {
    const auto state = read_side_state(*job.store, *job.plan, step);
    REQUIRE_FALSE(state);
    CHECK(state.error().code == ErrorCode::kSideStateMissing);
    return state.error().text();
  }
};

bool contains(const std::string& text, std::string_view part) {
  return text.find(part) != std::string::npos;
}

// SHA-256 of "foobar", published with the algorithm's test vectors.
constexpr const char* kFoobarSha = "c3ab8ff13720e8ad9047dd39466b3c8974e592c2fa383d4a3960714caef0c4f2";

}  // namespace

TEST_CASE("side state is every rank's message and blobs, in the order of names") {
  SideRig rig;
  const std::string large(100'000, 'r');
  rig.side.blob(0, large);
  rig.side.blob(1, "rank 1 alone");
  rig.side.message(4, 0,
                   {{"blobs",
                     {{"rng.torch", test::blob_entry(large)},
                      {"data", {{"digest", kFoobarSha}, {"bytes", 6}, {"inline", "Zm9vYmFy"}}}}}});
  rig.side.message(4, 1, {{"blobs", {{"rng.torch", test::blob_entry("rank 1 alone")}}}});
  const SideStateOfStep found = rig.read(4);
  CHECK(found.state.lineage == 1);
  CHECK(found.state.step == 4);
  REQUIRE(found.state.ranks.size() == 2);
  REQUIRE(found.state.ranks[0].blobs.size() == 2);
  CHECK(found.state.ranks[0].blobs[0].name == "data");
  CHECK(found.state.ranks[0].blobs[0].bytes == text_bytes("foobar"));
  CHECK(found.state.ranks[0].blobs[1].name == "rng.torch");
  CHECK(found.state.ranks[0].blobs[1].bytes == text_bytes(large));
  REQUIRE(found.state.ranks[1].blobs.size() == 1);
  CHECK(found.state.ranks[1].blobs[0].bytes == text_bytes("rank 1 alone"));
  for (std::uint32_t rank = 0; rank < 2; ++rank) {
    CHECK(found.state.ranks[rank].rank == rank);
    const auto& text = found.state.ranks[rank].message;
    CHECK(json::parse(text.begin(), text.end())["rank"] == rank);
  }
  CHECK(found.step_message == found.state.ranks[0].message);
  CHECK(found.next_layout == LayoutId{});
  CHECK(found.next_layout_json.empty());
}

TEST_CASE("base64 as in RFC 4648, and nothing else") {
  SideRig rig;
  rig.side.message(1, 1, {});
  const auto give = [&](const std::string& text, std::string_view content) {
    rig.side.message(
        1, 0, {{"blobs", {{"b", {{"digest", to_hex(sha256(content))}, {"bytes", content.size()}, {"inline", text}}}}}});
  };
  const std::vector<std::pair<std::string, std::string>> vectors = {{"", ""},
                                                                    {"Zg==", "f"},
                                                                    {"Zm8=", "fo"},
                                                                    {"Zm9v", "foo"},
                                                                    {"Zm9vYg==", "foob"},
                                                                    {"Zm9vYmE=", "fooba"},
                                                                    {"Zm9vYmFy", "foobar"},
                                                                    {"//79/A==", "\xff\xfe\xfd\xfc"},
                                                                    {"++++", "\xfb\xef\xbe"}};
  for (const auto& [text, content] : vectors) {
    CAPTURE(text);
    give(text, content);
    CHECK(rig.read(1).state.ranks[0].blobs[0].bytes == text_bytes(content));
  }
  for (const char* text :
       {"Zg", "Zg=", "Z", "Z===", "====", "Zg==Zg==", "Zg=v", "Zm9v\n", "Zm9*", "Zm 9", "__79", "Zm9vYmFyZ"}) {
    CAPTURE(text);
    give(text, "f");
    CHECK(contains(rig.missing(1), "b is not base64"));
  }
  give("Zm9v", "bar");  // it decodes, to something else
  CHECK(contains(rig.missing(1), to_hex(sha256(std::string_view("foo")))));
}

TEST_CASE("what has not come is named with its rank") {
  SideRig rig;
  rig.side.message(3, 0, {});
  CHECK(contains(rig.missing(3), "step 3 rank 1"));
  CHECK(contains(rig.missing(2), "step 2 rank 0"));
  rig.side.message(3, 1, {{"blobs", {{"scaler", test::blob_entry("it is")}}}});
  CHECK(contains(rig.missing(3), "scaler has not come"));
  rig.side.blob(0, "it is");  // of another rank
  CHECK(contains(rig.missing(3), "step 3 rank 1"));
  rig.side.blob(1, "it is");
  CHECK(rig.read(3).state.ranks[1].blobs[0].bytes == text_bytes("it is"));
  // What the client could not send is missing whatever else is there.
  rig.side.message(3, 1, {{"blobs_missing", {"data"}}});
  CHECK(contains(rig.missing(3), "could not send data"));
  rig.side.message(3, 1, {{"blobs_missing", json::array()}});
  CHECK(rig.read(3).state.ranks[1].blobs.empty());
}

TEST_CASE("bytes under a blob's key that are not the blob are not given") {
  SideRig rig;
  rig.side.message(1, 0, {});
  rig.side.message(1, 1, {{"blobs", {{"data", test::blob_entry("right")}}}});
  test::require_ok(rig.job.store->put_side(test::blob_key(*rig.job.plan, 1, "right"), text_bytes("wrong"), true));
  CHECK(contains(rig.missing(1), to_hex(sha256(std::string_view("wrong")))));
  CHECK(contains(rig.missing(1), "step 1 rank 1"));
}

TEST_CASE("a message that names its side state in no way that is known is missing it") {
  SideRig rig;
  rig.side.message(1, 0, {});
  for (const json& blobs : {json(nullptr), json(5), json::array(), json{{"data", 5}}, json{{"data", json::object()}},
                            json{{"data", {{"digest", 5}}}}, json{{"data", {{"digest", "abc"}}}},
                            json{{"data", {{"digest", std::string(64, 'x')}}}}}) {
    CAPTURE(blobs.dump());
    rig.side.message(1, 1, {{"blobs", blobs}});
    CHECK(contains(rig.missing(1), "step 1 rank 1"));
  }
  // A stored message that is none is not a missing one.
  test::require_ok(rig.job.store->put_side(test::message_key(*rig.job.plan, 1, 1), text_bytes("nothing"), true));
  const auto state = read_side_state(*rig.job.store, *rig.job.plan, 1);
  REQUIRE_FALSE(state);
  CHECK(state.error().code != ErrorCode::kSideStateMissing);
}

TEST_CASE("the layout of the next step is part of it when the client knows it") {
  SideRig rig;
  const LayoutPtr layout = test::layout_of(*rig.job.plan, {{2}, {1, 0}});
  rig.side.message(1, 0, {{"next_layout_id", to_hex(layout->id())}});
  rig.side.message(1, 1, {});
  CHECK(contains(rig.missing(1), "layout of the next step has not come"));
  rig.side.layout(*layout);
  const SideStateOfStep found = rig.read(1);
  CHECK(found.next_layout == layout->id());
  CHECK(found.next_layout_json == text_bytes(layout->canonical_json()));
  // null, or what is no id: not known.
  for (const json& id : {json(nullptr), json(5), json("abc")}) {
    rig.side.message(2, 0, {{"next_layout_id", id}});
    rig.side.message(2, 1, {});
    CHECK(rig.read(2).next_layout == LayoutId{});
    CHECK(rig.read(2).next_layout_json.empty());
  }
}

}  // namespace gradtap::actors
