// Metrics and probes of a status, read back by the test's own reader of the exposition format.
#include "actors/metrics_text.h"

#include <map>
#include <set>
#include <sstream>

#include <doctest/doctest.h>
#include <nlohmann/json.hpp>

#include "actors/probes.h"
#include "common/random.h"

namespace gradtap::actors {
namespace {

using nlohmann::json;

json node_status() {
  return json::parse(R"({
    "node": "tap1", "uptime_s": 61, "epoch": 4, "home": "tap0", "absent": [], "warnings": ["security is none"],
    "jobs": [{"job": "gpt \"a\"", "lineage": 3, "training": 120, "verified": 118, "durable": 117, "published": 112,
      "lag_steps": 2, "shards": 12, "shards_here": 8, "shards_brought_up": 0, "state": "tracking",
      "binding": {"fetched_steps": 5},
      "gaps": [{"reason": 21, "name": "FLUSH_LAG", "since_step": 118, "evidence": "", "action": ""}]}],
    "actors": {"ingress.0": {"frames": 1000}, "ingress.1": {"frames": 2000}, "keeper": {"free_bytes": 17179869184},
      "publisher": {"publish_us_last": 250000}, "odd": 5, "gateway": {"requests": "many"}},
    "link": {"link.bytes_in": 77, "link.tunnels": 2, "link.certificate_expires_s": 1800000000},
    "members": [{"name": "tap0", "state": "up", "membership": "in", "self": false},
      {"name": "tap1", "state": "up", "membership": "in", "self": true},
      {"name": "tap2", "state": "down", "membership": "in", "self": false},
      {"name": "tap3", "state": "down", "membership": "out", "self": false}]})");
}

struct Exposition {
  std::map<std::string, std::string> series;  // name{labels}: value
  std::map<std::string, std::string> types;
};

Exposition read(const std::string& text) {
  Exposition found;
  std::istringstream lines(text);
  for (std::string line; std::getline(lines, line);) {
    if (line.rfind("# TYPE ", 0) == 0) {
      const std::size_t space = line.find(' ', 7);
      CHECK(found.types.emplace(line.substr(7, space - 7), line.substr(space + 1)).second);
      continue;
    }
    if (line.empty() || line[0] == '#') continue;
    const std::size_t space = line.rfind(' ');
    CHECK(found.series.emplace(line.substr(0, space), line.substr(space + 1)).second);  // a series stands once
  }
  return found;
}

}  // namespace

TEST_CASE("what the metrics say is what the status says") {
  const Exposition found = read(metrics_text(node_status()));
  const std::string job = R"({node="tap1",training_job="gpt \"a\"",lineage="3"})";
  const std::map<std::string, std::string> expected = {
      {"gradtap_training_step" + job, "120"},
      {"gradtap_verified_step" + job, "118"},
      {"gradtap_durable_step" + job, "117"},
      {"gradtap_published_step" + job, "112"},
      {"gradtap_lag_steps" + job, "2"},
      {"gradtap_steps_fetched_total" + job, "5"},
      {R"(gradtap_tap_frames_total{node="tap1",part="0"})", "1000"},
      {R"(gradtap_tap_frames_total{node="tap1",part="1"})", "2000"},
      {R"(gradtap_publish_last_seconds{node="tap1"})", "0.25"},
      {R"(gradtap_link_bytes_in_total{node="tap1"})", "77"},
      {R"(gradtap_link_tunnels{node="tap1"})", "2"},
      {R"(gradtap_home{node="tap1"})", "0"},
      {R"(gradtap_member_up{node="tap1",member="tap0"})", "1"},
      {R"(gradtap_member_up{node="tap1",member="tap2"})", "0"},
      {R"(gradtap_build_info{node="tap1",version="0.1.0"})", "1"},
      {R"(gradtap_warnings{node="tap1"})", "1"},
      {R"(gradtap_gap{node="tap1",training_job="gpt \"a\"",lineage="3",reason="FLUSH_LAG"})", "1"},
      {R"(gradtap_gap{node="tap1",training_job="gpt \"a\"",lineage="3",reason="TAP_DOWN"})", "0"},
      {R"(gradtap_gap_since_step{node="tap1",training_job="gpt \"a\"",lineage="3",reason="FLUSH_LAG"})", "118"},
  };
  for (const auto& [series, value] : expected) {
    CAPTURE(series);
    const auto at = found.series.find(series);
    REQUIRE(at != found.series.end());
    CHECK(at->second == value);
  }
  CHECK(std::stod(found.series.at(R"(gradtap_store_free_bytes{node="tap1"})")) == 17179869184.0);
  CHECK(std::stod(found.series.at(R"(gradtap_link_certificate_expires_timestamp_seconds{node="tap1"})")) == 1.8e9);
  // No series for what the status does not say, nor of a member that left.
  for (const auto& [series, value] : found.series) {
    CHECK(series.find("tap3") == std::string::npos);
    CHECK(series.rfind("gradtap_http_requests_total", 0) != 0);
  }
}

TEST_CASE("names follow the conventions") {
  const Exposition found = read(metrics_text(node_status()));
  CHECK(found.types.size() > 20);
  for (const auto& [name, type] : found.types) {
    CAPTURE(name);
    CHECK(name.rfind("gradtap_", 0) == 0);
    CHECK(name.find_first_not_of("abcdefghijklmnopqrstuvwxyz_") == std::string::npos);
    CHECK(name.ends_with("_total") == (type == "counter"));
    for (const char* unit : {"_ms", "_us", "_s", "_kb", "_mib"}) CHECK_FALSE(name.ends_with(unit));
  }
}

TEST_CASE("probes: healthy while every actor answers; ready while the node does its part, with reasons") {
  json status = node_status();
  CHECK(health_answer(status).status == 200);
  CHECK(readiness_answer(status).status == 200);
  CHECK(json::parse(readiness_answer(status).body) ==
        json{{"ready", true}, {"node", "tap1"}, {"reasons", json::array()}});
  const auto reasons_of = [](const json& said) {
    const HttpAnswer answer = readiness_answer(said);
    CHECK(answer.status == 503);
    return json::parse(answer.body)["reasons"];
  };
  status["absent"] = {"keeper"};
  CHECK(health_answer(status).status == 503);
  CHECK(reasons_of(status) == json{"keeper does not answer"});
  status = node_status();
  status["members"][1]["membership"] = "draining";
  status["members"][1]["state"] = "syncing";
  CHECK(reasons_of(status).size() == 2);
  CHECK(health_answer(status).status == 200);
  status = node_status();
  status["jobs"][0]["shards_brought_up"] = 3;
  CHECK(reasons_of(status) == json{"3 of its shards are being copied"});
  status = node_status();
  status["jobs"][0]["gaps"].push_back({{"name", "TAP_DOWN"}, {"evidence", "no carrier"}});
  CHECK(reasons_of(status) == json{"TAP_DOWN: no carrier"});
  status["jobs"][0]["gaps"] = json::array({{{"name", "TRAINER_SILENT"}, {"evidence", "60 s"}}});
  CHECK(readiness_answer(status).status == 200);
  status["jobs"] = json::array();
  CHECK(readiness_answer(status).status == 200);
  for (const json& none : {json(), json(5), json::array()}) {
    CHECK(health_answer(none).status == 503);
    CHECK(readiness_answer(none).status == 503);
    CHECK(metrics_answer(none).status == 200);
  }
}

TEST_CASE("a status of any form does no harm") {
  SeededRandom random(5);
  const std::vector<json> odd = {nullptr,     3, -1, "x\"\n\\", true, json::array({1, nullptr, json::object()}),
                                 {{"a", {1}}}};
  for (int i = 0; i < 500; ++i) {
    json status = node_status();
    for (int j = 0; j < 3; ++j) {
      const json flat = status.flatten();
      auto at = flat.begin();
      std::advance(at, static_cast<std::ptrdiff_t>(random.below(flat.size())));
      json::json_pointer place(at.key());
      while (random.below(2) == 0 && !place.parent_pointer().empty()) place = place.parent_pointer();
      status[place] = odd[random.below(odd.size())];
    }
    CHECK(metrics_text(status).find("gradtap_build_info") != std::string::npos);
    CHECK(readiness_answer(status).body.size() > 2);
    CHECK(health_answer(status).body.size() > 2);
  }
}

}  // namespace gradtap::actors
