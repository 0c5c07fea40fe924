#include "actors/point_answers.h"

#include <algorithm>

#include <doctest/doctest.h>
#include <nlohmann/json.hpp>

#include "common/clock.h"
#include "common/random.h"
#include "storage/object_key.h"
#include "tests/unit/storage/memory_store.h"

namespace gradtap::actors {
namespace {

using nlohmann::json;

struct AnsweringNode {
  std::shared_ptr<storage::test::MemoryStore> store = std::make_shared<storage::test::MemoryStore>();
  std::shared_ptr<ManualClock> clock = std::make_shared<ManualClock>();
  std::unique_ptr<PointAnswers> points;

  explicit AnsweringNode(bool with_leases = true, std::uint64_t leases_max = 2) {
    store->objects[storage::point_key("gpt", 1, 7)] = {1};
    PointAnswersOptions options{"gpt", store};
    storage::LeaseTableOptions leasing;
    leasing.job = "gpt";
    leasing.leases_max = leases_max;
    leasing.timeout_ms = 20'000;
    if (with_leases)
      options.leases = std::make_shared<storage::LeaseTable>(store, clock, std::make_shared<SeededRandom>(1), leasing);
    points = std::make_unique<PointAnswers>(std::move(options));
  }
  HttpAnswer ask(const std::string& method, const std::string& path, const std::string& body = {}) const {
    HttpRequest request;
    request.method = method;
    request.path = "/v1/jobs/gpt/" + path;
    request.body = body;
    std::vector<std::string_view> parts;
    for (std::string_view rest = path;;) {
      const std::size_t slash = rest.find('/');
      parts.push_back(rest.substr(0, slash));
      if (slash == std::string_view::npos) break;
      rest.remove_prefix(slash + 1);
    }
    return points->answer(request, parts);
  }
  [[nodiscard]] std::size_t leases() const {
    return static_cast<std::size_t>(std::count_if(store->objects.begin(), store->objects.end(), [](const auto& entry) {
      return entry.first.find("/lease/") != std::string::npos;
    }));
  }
};

std::string error_of(const HttpAnswer& answer) {
  return json::parse(answer.body)["error"]["name"];
}

constexpr const char* kHolder = R"({"holder": "rank 0 on host-a"})";

}  // namespace

TEST_CASE("a lease over HTTP: taken, renewed, released") {
  const AnsweringNode node;
  const HttpAnswer taken = node.ask("POST", "points/1/7/lease", kHolder);
  REQUIRE(taken.status == 200);
  const json body = json::parse(taken.body);
  CHECK(body["renew_s"] == 5);
  const std::string at = "points/1/7/lease/" + body["lease"].get<std::string>();
  CHECK(node.leases() == 1);
  CHECK(node.points->leases().held == 1);
  node.clock->advance_ms(15'000);
  const HttpAnswer renewed = node.ask("POST", at);
  CHECK(renewed.status == 200);
  CHECK(json::parse(renewed.body) == body);
  node.clock->advance_ms(15'000);
  CHECK(node.ask("POST", at).status == 200);
  const HttpAnswer released = node.ask("DELETE", at);
  CHECK(released.status == 200);
  CHECK(json::parse(released.body) == json::object());
  CHECK(node.leases() == 0);
  CHECK(node.ask("DELETE", at).status == 404);
  CHECK(node.ask("POST", at).status == 404);

  // One that nobody renews is gone.
  const std::string lost = json::parse(node.ask("POST", "points/1/7/lease", kHolder).body)["lease"];
  node.clock->advance_ms(20'000);
  CHECK(error_of(node.ask("POST", "points/1/7/lease/" + lost)) == "OBJECT_MISSING");
  CHECK(node.leases() == 0);
}

TEST_CASE("leases that are not given, each by its name") {
  const AnsweringNode node;
  const HttpAnswer gone = node.ask("POST", "points/1/8/lease", kHolder);
  CHECK(gone.status == 404);
  CHECK(error_of(gone) == "POINT_NONE");
  for (const std::string& body : {std::string(), std::string("{"), std::string("[]"), std::string("{}"),
                                  std::string(R"({"holder": 7})"), std::string("{\"holder\": \"\xff\"}"),
                                  R"({"holder": ")" + std::string(4096, 'x') + "\"}", std::string(4000, '[')}) {
    const HttpAnswer answer = node.ask("POST", "points/1/7/lease", body);
    CHECK(answer.status == 400);
    CHECK(error_of(answer) == "REQUEST_MALFORMED");
  }
  CHECK(error_of(node.ask("POST", "points/x/7/lease", kHolder)) == "BAD_NUMBER");
  CHECK(error_of(node.ask("POST", "points/1/-7/lease", kHolder)) == "BAD_NUMBER");
  CHECK(node.ask("DELETE", "points/1/7/lease").status == 404);
  CHECK(node.ask("GET", "points/1/7/lease").status == 404);
  CHECK(node.ask("PUT", "points/1/7/lease/x").status == 404);
  CHECK(node.ask("POST", "points/1/7/lease/x/y").status == 404);
  CHECK(node.leases() == 0);
  CHECK(node.ask("POST", "points/1/7/lease", kHolder).status == 200);
  CHECK(node.ask("POST", "points/1/7/lease", kHolder).status == 200);
  const HttpAnswer full = node.ask("POST", "points/1/7/lease", kHolder);
  CHECK(full.status == 429);
  CHECK(error_of(full) == "LIMIT_REACHED");
  CHECK(node.points->leases().refused == 1);
  CHECK(AnsweringNode(false).ask("POST", "points/1/7/lease", kHolder).status == 404);
}

TEST_CASE("what is only read answers to GET alone") {
  const AnsweringNode node;
  CHECK(node.ask("GET", "points").status == 200);
  CHECK(node.ask("GET", "lineages").status == 200);
  for (const char* const method : {"POST", "PUT", "DELETE"})
    for (const char* const path : {"points", "lineages", "points/1/7", "points/1/7/verify"})
      CHECK(node.ask(method, path).status == 404);
}

TEST_CASE("no more points are read at once than the bound, nor than the memory holds; the others are told so") {
  const auto store = std::make_shared<storage::test::MemoryStore>();
  PointAnswersOptions options{"gpt", store};
  options.streams_max = 0;  // as if all places were taken
  options.turn_wait = std::chrono::milliseconds(10);
  options.memory = std::make_shared<MemoryLedger>(100);
  options.read_bytes = [] { return std::uint64_t{60}; };
  const auto memory = options.memory;
  PointAnswers points(std::move(options));
  HttpRequest request;
  request.path = "/v1/jobs/gpt/points/1/7/state";
  const auto late = points.stream(request, {"points", "1", "7", "state"});
  REQUIRE_FALSE(late);
  CHECK(late.error().code == ErrorCode::kNodeBusy);
  CHECK(points.refused() == 1);
  CHECK(memory->total().in_use_bytes == 0);
  REQUIRE(memory->take(MemoryAccount::kShards, 41));
  const auto full = points.stream(request, {"points", "1", "7", "state"});
  REQUIRE_FALSE(full);
  CHECK(full.error().code == ErrorCode::kMemoryExhausted);
  CHECK(memory->usage(MemoryAccount::kPoints).refused == 1);
}

}  // namespace gradtap::actors
