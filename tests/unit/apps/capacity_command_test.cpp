// gradtap plan capacity, run beside this test.
#include <cmath>
#include <cstdio>
#include <filesystem>
#include <string>

#include <doctest/doctest.h>
#include <nlohmann/json.hpp>
#include <sys/wait.h>

#include "tests/unit/apps/run_gradtap.h"

namespace gradtap {
namespace {

using nlohmann::json;

testing::Answer plan(const std::string& arguments) {
  return testing::run_gradtap("plan capacity " + arguments);
}

json resource(const json& body, const std::string& name) {
  for (const json& row : body["resources"])
    if (row["resource"] == name) return row;
  FAIL("no row of " << name);
  return {};
}

bool has(const std::string& text, const std::string& part) {
  return text.find(part) != std::string::npos;
}

}  // namespace

TEST_CASE("plan capacity gives the sums, the verdict and an exit code") {
  // The rates of a core are round numbers: 100 ns a frame, 0.05 ns a byte; the sums by hand stand in the test of the
  // model.
  const std::string node =
      "--moved-bytes 60e9 --ranks 2 --step-time 1.5 --frame roce-4096 --replicas 1 --nodes 1 --port-rate 400e9 "
      "--receive-s-per-frame 100e-9 --receive-s-per-byte 0.05e-9 --memory-rate 800e9 --object-rate "
      "40e9 ";
  const testing::Answer fits = plan(node + "--disk-rate 40e9 --json");
  CAPTURE(fits.text);
  CHECK(fits.code == 0);
  const json body = json::parse(fits.text);
  CHECK(body["parameters"] == 7.5e9);
  CHECK(body["fits"] == true);
  CHECK(std::abs(resource(body, "receive queues")["needed"].get<double>() - 2.9765625) < 1e-9);
  CHECK(std::abs(resource(body, "memory bandwidth")["needed"].get<double>() - 404.35546875e9) < 1);
  CHECK(std::abs(resource(body, "disk write")["needed"].get<double>() - 20.9375e9) < 1);
  CHECK(body["node"]["receive_s_per_frame"]["source"] == "flag --receive-s-per-frame");
  CHECK(has(body["node"]["apply_parameters_per_s"]["source"], "docs/performance.md"));

  // A disk of 10 GB/s may be used for 7 of the 20.9.
  const testing::Answer slow = plan(node + "--disk-rate 10e9");
  CHECK(slow.code == 1);
  CHECK(has(slow.text, "disk write binds"));
  CHECK(has(slow.text, "DOES NOT FIT"));
  CHECK(has(slow.text, "owned gradient / step time"));
  CHECK(has(slow.text, "30 GB / 1.5 s"));
}

TEST_CASE("plan capacity says how many nodes a job takes") {
  // 12 GB of state; 1 GB of window and none held; 24 GB at attach, whatever the number of nodes is.
  const std::string job = "--parameters 1e9 --window-steps 0.25 --hold-steps 0 --shard-elements 0 --full-every 500 ";
  CHECK(plan(job + "--memory 24.1e9").code == 0);
  const testing::Answer never = plan(job + "--memory 20e9");
  CHECK(never.code == 1);
  CHECK(has(never.text, "more nodes do not help: memory at attach does not fall with them"));
  // A window of 24 GB, two owners of 12 GB of state: 24 + 24/N <= 30.1 from 4 nodes on.
  const testing::Answer four = plan(
      "--parameters 1e9 --window-steps 6 --hold-steps 0 --shard-elements 0 --full-every 500 "
      "--memory 30.1e9 --nodes 2");
  CHECK(four.code == 1);
  CHECK(has(four.text, "does not fit on 2 nodes: memory binds"));
  CHECK(has(four.text, "needs 4 nodes"));
  const testing::Answer chosen = plan(
      "--parameters 1e9 --window-steps 6 --hold-steps 0 --shard-elements 0 --full-every 500 "
      "--memory 30.1e9 --json");
  CHECK(chosen.code == 0);
  CHECK(json::parse(chosen.text)["nodes"] == 4);
}

TEST_CASE("plan capacity names what is wrong with a question") {
  CHECK(plan("").code == 2);
  CHECK(has(plan("").text, "one of --parameters, --gradient-bytes, --moved-bytes"));
  CHECK(plan("--parameters 1e9 --gradient-bytes 4e9").code == 2);
  CHECK(plan("--parameters 1e9 --frame roce-9").code == 2);
  CHECK(plan("--parameters 1e9 --encapsulation tar").code == 2);
  CHECK(plan("--parameters 1e9 --state param").code == 2);
  CHECK(plan("--parameters 1e9 --state param:0").code == 2);
  CHECK(plan("--parameters 1e9 --state param:4 --state master:4 --json").code == 0);
  CHECK(plan("--parameters -1").code > 2);  // the parser of flags has codes of its own
  const testing::Answer nobody = plan("--parameters 1e9 --cluster http://127.0.0.1:1");
  CHECK(nobody.code == 2);
  CHECK(has(nobody.text, "PEER_UNREACHABLE"));
}

}  // namespace gradtap
