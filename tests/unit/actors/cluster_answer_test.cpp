#include "actors/cluster_answer.h"

#include <doctest/doctest.h>

#include "common/random.h"

namespace gradtap::actors {
namespace {

using nlohmann::json;

json holder(const char* node, const char* role, std::uint64_t version, std::uint64_t durable) {
  return {{"node", node}, {"role", role}, {"live", true}, {"version", version}, {"durable", durable}, {"from", 1}};
}

json placement(std::uint64_t epoch, std::vector<json> holders, std::uint64_t lineage = 1) {
  return {{"epoch", epoch}, {"lineage", lineage},
          {"training", 12}, {"durable", 9},
          {"published", 8}, {"shards", {{{"shard", 0}, {"state_bytes", 1000}, {"holders", std::move(holders)}}}}};
}

json merged(const char* what, ClusterParts parts) {
  const ClusterQuestion* question = cluster_question(what);
  REQUIRE(question != nullptr);
  return merge_answer(*question, parts);
}

// Without what says who was asked, and how old things are.
json content(json body) {
  for (const char* key : {"node", "age_ms"}) body.erase(key);
  if (body.contains("members"))
    for (json& member : body["members"]) member.erase("age_ms");
  return body;
}

}  // namespace

TEST_CASE("what a node says of itself counts, whichever node is asked") {
  ClusterParts all;
  // a lags behind in what it knows of b; b has released shard 0 to c and nobody but c and b knows.
  all.parts["a"] =
      placement(3, {holder("a", "in_sync", 10, 9), holder("c", "syncing", 2, 2), holder("b", "releasing", 4, 4)});
  all.parts["b"] = placement(4, {holder("a", "in_sync", 7, 7), holder("c", "in_sync", 11, 10)});
  all.parts["c"] =
      placement(4, {holder("a", "in_sync", 8, 8), holder("c", "in_sync", 12, 11), holder("b", "releasing", 5, 5)});
  for (const char* asked : {"a", "b", "c"}) {
    all.asked = asked;
    const json body = merged("placement", all);
    CHECK(body["node"] == asked);
    CHECK(body["epoch"] == 4);
    const json expected = {holder("a", "in_sync", 10, 9), holder("c", "in_sync", 12, 11)};
    CHECK(body["shards"][0]["holders"] == expected);
    CHECK(content(body) == content(merged("placement", {"a", all.parts, {}, 7})));
  }
}

TEST_CASE("of a node that does not answer the newest known is shown, and that it does not live") {
  ClusterParts all{"a", {}, {"b"}, 1000};
  all.parts["a"] = placement(3, {holder("a", "in_sync", 10, 9), holder("b", "in_sync", 9, 8)});
  all.parts["c"] = placement(3, {holder("a", "in_sync", 9, 9), holder("b", "in_sync", 9, 9)});
  const json body = merged("placement", all);
  json gone = holder("b", "in_sync", 9, 9);
  gone["live"] = false;
  CHECK(body["shards"][0]["holders"] == json{holder("a", "in_sync", 10, 9), gone});
  CHECK(body["absent"] == json{"b"});
  CHECK(body["age_ms"] == 1000);
  CHECK(body["answered"].size() == 2);
}

TEST_CASE("the base is the newest epoch of the newest lineage that names shards") {
  ClusterParts all{"a", {}, {"d"}, 0};
  all.parts["a"] = placement(3, {holder("a", "in_sync", 10, 9)});
  // The newest: d holds too, which does not answer, and b lets go, which b has done already.
  all.parts["b"] = placement(4, {holder("a", "in_sync", 7, 7)});
  all.parts["c"] = placement(5, {holder("a", "in_sync", 8, 8), holder("b", "releasing", 3, 3),
                                 holder("c", "syncing", 2, 2), holder("d", "in_sync", 6, 6)});
  all.parts["e"] = {{"epoch", 9}, {"lineage", 1}, {"shards", json::array()}};
  json gone = holder("d", "in_sync", 6, 6);
  gone["live"] = false;
  CHECK(merged("placement", all)["shards"][0]["holders"] ==
        json{holder("a", "in_sync", 10, 9), holder("c", "syncing", 2, 2), gone});
  // Who answers about an older lineage is shown as others see it; what it says of its own is of another run.
  all.parts["c"]["lineage"] = 2;
  all.parts["a"]["lineage"] = 2;
  all.parts["b"] = placement(7, {holder("a", "in_sync", 99, 99), holder("b", "in_sync", 99, 99)}, 1);
  CHECK(merged("placement", all)["shards"][0]["holders"] ==
        json{holder("a", "in_sync", 10, 9), holder("b", "releasing", 3, 3), holder("c", "syncing", 2, 2), gone});
}

TEST_CASE("status: the node that is asked, and the others beside it; digests and shards of all in order") {
  ClusterParts all{"b", {}, {}, 0};
  all.parts["a"] = {{"node", "a"}, {"absent", {"keeper", 3}}};
  all.parts["b"] = {{"node", "b"}, {"jobs", {{{"job", "gpt"}}}}, {"absent", {"tap"}}};
  all.parts["c"] = 7;
  json body = merged("status", all);
  CHECK(body["jobs"].size() == 1);
  CHECK(body["nodes"] == json{all.parts["a"]});
  CHECK(body["absent"] == json{"a: keeper", "tap"});
  const auto root = [](std::uint64_t step, const char* text) { return json{{"step", step}, {"root", text}}; };
  all.parts["a"]["digests"] = {root(7, "g"), root(2, "")};
  all.parts["b"]["digests"] = {root(2, "b"), root(7, "other")};
  CHECK(merged("digests", all)["digests"] == json{root(2, "b"), root(7, "g")});
  all.parts["a"]["shards"] = {{{"shard", 5}}, {{"shard", 1}}};
  all.parts["b"]["shards"] = {{{"shard", 1}}};
  body = merged("shards", all);
  CHECK(body["shards"] ==
        json{{{"shard", 1}, {"node", "a"}}, {{"shard", 1}, {"node", "b"}}, {{"shard", 5}, {"node", "a"}}});
}

TEST_CASE("members: who answered is up or syncing by its own word, the others are down, with who heard them last") {
  const auto node = [](bool ready, std::uint64_t heard_b, std::uint64_t epoch) {
    json members = json::array();
    for (const char* name : {"a", "b", "c"}) members.push_back({{"name", name}, {"membership", "in"}, {"tap", false}});
    members[0]["age_ms"] = members[2]["age_ms"] = 1;
    members[1]["age_ms"] = heard_b;
    members[1]["tap"] = heard_b < 500;
    json part = {{"epoch", epoch}, {"lineage", 1},       {"ready", ready}, {"tap", true},
                 {"home", "a"},    {"members", members}, {"replicas", 2},  {"store_error", nullptr}};
    part["placement"] =
        placement(epoch, {holder("a", "in_sync", 5, 5), holder("b", "syncing", 3, 3), holder("c", "releasing", 4, 4)});
    return part;
  };
  ClusterParts all{"c", {{"a", node(true, 400, 2)}, {"c", node(false, 900, 2)}}, {"b"}, 11};
  all.parts["a"]["store_error"] = "away";
  const json body = merged("nodes", all);
  REQUIRE(body["members"].size() == 3);
  CHECK(body["members"][0]["state"] == "up");
  CHECK(body["members"][0]["age_ms"] == 11);
  CHECK(body["members"][1]["state"] == "down");
  CHECK(body["members"][1]["age_ms"] == 400);
  CHECK(body["members"][1]["tap"] == true);
  CHECK(body["members"][2]["state"] == "syncing");
  CHECK(body["members"][0]["in_sync"] == 1);
  CHECK(body["members"][0]["bytes_left"] == 0);
  CHECK(body["members"][1]["syncing"] == 1);
  CHECK(body["members"][1]["bytes_left"] == 1000);
  CHECK(body["members"][2]["releasing"] == 1);
  CHECK(body["members"][2]["assigned"] == 0);
  CHECK(body["store_error"] == "a: away");
  CHECK(body["training"] == 12);
  all.parts["a"]["members"][1]["age_ms"] = "0";  // no number: c heard it last
  CHECK(merged("nodes", all)["members"][1]["age_ms"] == 900);
  all.parts["c"]["members"][1]["age_ms"] = "0";
  CHECK(merged("nodes", all)["members"][1]["age_ms"].is_null());
}

TEST_CASE("a version: equal digests are one, different ones are named, and who can produce it") {
  const auto said = [](const char* digest, bool produces) {
    return json{{"shard", 1}, {"step", 7},   {"shards", 4}, {"digest", digest}, {"can_produce", produces},
                {"full", 4},  {"durable", 9}};
  };
  ClusterParts all{"a", {{"a", said("aa", true)}, {"b", said("aa", false)}, {"c", json::object()}}, {}, 0};
  json body = merged("version", all);
  CHECK(body["digest"] == "aa");
  CHECK(body["diverged"] == false);
  CHECK(body["producers"] == json{"a"});
  CHECK(body["holders"].size() == 2);
  CHECK(body["shards"] == 4);
  all.parts["b"] = said("bb", true);
  body = merged("version", all);
  CHECK(body["digest"].is_null());
  CHECK(body["diverged"] == true);
  CHECK(body["producers"] == json{"a", "b"});
}

TEST_CASE("events of all nodes in the order of their clocks, each with where to go on") {
  const auto event = [](std::uint64_t seq, std::uint64_t wall_ms) { return json{{"seq", seq}, {"wall_ms", wall_ms}}; };
  ClusterParts all{"a", {}, {}, 0};
  all.parts["a"] = {{"events", {event(1, 10), event(2, 30)}}, {"next", 3}};
  all.parts["b"] = {{"events", {event(7, 20)}}, {"next", 8}};
  const json body = merged("events", all);
  REQUIRE(body["events"].size() == 3);
  CHECK(body["events"][1]["node"] == "b");
  CHECK(body["events"][2]["seq"] == 2);
  CHECK(body["next"] == json{{"a", 3}, {"b", 8}});
  for (std::uint64_t i = 0; i < kMergedEventsMax; ++i) all.parts["a"]["events"].push_back(event(3 + i, 40 + i));
  const json cut = merged("events", all);
  CHECK(cut["events"].size() == kMergedEventsMax);
  CHECK(cut["events"][0]["wall_ms"] == 40);
}

TEST_CASE("parts of any form are merged without harm") {
  SeededRandom random(11);
  const std::vector<json> odd = {nullptr,
                                 5,
                                 -1,
                                 "text",
                                 true,
                                 json::array({1, "x", nullptr}),
                                 json::object(),
                                 {{"shards", {{{"shard", "x"}, {"holders", 3}}, 7}},
                                  {"members", {1, {{"name", 4}}}},
                                  {"events", {{{"wall_ms", "x"}}, 0}},
                                  {"absent", 3},
                                  {"digests", {{{"root", 1}}}},
                                  {"epoch", "high"},
                                  {"placement", 4},
                                  {"digest", 6},
                                  {"jobs", {0}}},
                                 placement(2, {json{{"node", 3}}, json::object()})};
  for (const ClusterQuestion& question : cluster_questions())
    for (int i = 0; i < 200; ++i) {
      ClusterParts all{"a", {}, {"z"}, 3};
      for (const char* name : {"a", "b", "c"})
        if (const auto pick = random.below(odd.size() + 1); pick < odd.size()) all.parts[name] = odd[pick];
      const json body = merge_answer(question, all);
      CHECK(body["node"] == "a");
      CHECK(body["absent"].back() == "z");
    }
}

}  // namespace gradtap::actors
