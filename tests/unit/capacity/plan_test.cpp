#include "capacity/plan.h"

#include <array>
#include <limits>

#include <doctest/doctest.h>

#include "capacity/node_json.h"

namespace gradtap::capacity {
namespace {

// 1e9 parameters with 12 B of state; gradients of 4 GB. No step time: memory and disk space alone.
JobShape job() {
  JobShape shape;
  shape.parameters = 1e9;
  shape.state = {{"param", 4}, {"exp_avg", 4}, {"exp_avg_sq", 4}};
  shape.replicas = 1;
  shape.window_steps = 0;
  shape.hold_steps = 0;
  shape.full_every_steps = 1'000'000;
  return shape;
}

NodeShape node(double memory) {
  NodeShape shape;
  shape.memory_bytes = memory;
  return shape;
}

}  // namespace

TEST_CASE("the number of nodes is the smallest that fits, and a refusal says how many to add") {
  // State alone: 12 GB / N and 24 kB being written. The home's baseline takes 24 GB whatever N is.
  JobShape shape = job();
  const auto fits = plan_capacity(shape, node(24e9), 1);
  REQUIRE(fits);
  CHECK(fits->fits);
  CHECK(fits->nodes_needed == 1);

  // A window of 10 steps of 4 GB: 40 GB on every node, 12 GB / N of state. 44.1 GB: N >= 12 / 4.1, so 3.
  shape.window_steps = 10;
  const auto plan = plan_capacity(shape, node(44.1e9), 1);
  REQUIRE(plan);
  CHECK_FALSE(plan->fits);
  CHECK(plan->rows[*plan->binding].resource == Resource::kMemory);
  CHECK(plan->nodes_needed == 3);
  const Error error = refusal(*plan);
  CHECK(error.code == ErrorCode::kCapacityExceeded);
  CHECK(error.where == "capacity.memory");
  CHECK(error.expected == "at most 44.1 GB of a node");
  CHECK(error.actual == "52 GB");
  CHECK(error.remedy == "add 2 nodes");
  CHECK(verdict(*plan) == "does not fit on 1 node: memory binds (1.18 of 1.00), needs 3 nodes");
  const auto two = plan_capacity(shape, node(44.1e9), 2);
  CHECK(refusal(*two).remedy == "add 1 node");
  const auto three = plan_capacity(shape, node(44.1e9), 0);
  CHECK(three->nodes == 3);
  CHECK(three->fits);

  // 40 GB of window: no number of nodes helps.
  const auto never = plan_capacity(shape, node(39e9), 1);
  CHECK_FALSE(never->nodes_needed);
  CHECK(never->stuck == Resource::kMemory);
  CHECK(refusal(*never).remedy.starts_with("more nodes do not help, memory does not fall with them"));
}

TEST_CASE("who lacks room adds: that fewer nodes hold nothing for one another is no answer") {
  // Two owners: state 12 GB, held 8 x 4 GB, at attach 24 GB. One node would hold nothing and fit 40 GB; two do not, and
  // of three each owns two thirds: 8 + 32.
  JobShape shape = job();
  shape.replicas = 2;
  shape.hold_steps = 8;
  const auto plan = plan_capacity(shape, node(40.1e9), 2);
  CHECK_FALSE(plan->fits);
  CHECK(plan->nodes_needed == 3);
  CHECK(refusal(*plan).remedy == "add 1 node");
  CHECK(plan_capacity(shape, node(40.1e9), 6)->nodes_needed == 3);
}

TEST_CASE("a map in force counts as it is") {
  // 12 GB of state on two nodes, of which the fullest owns 0.9: 10.8 GB and no more than that.
  JobShape shape = job();
  shape.window_steps = 4;  // 16 GB
  const auto even = plan_capacity(shape, node(25e9), 2);
  CHECK(even->fits);
  const auto uneven = plan_capacity(shape, node(25e9), 2, 0.9);
  CHECK_FALSE(uneven->fits);
  CHECK(uneven->share == 0.9);
}

TEST_CASE("the binding resource is the one with the most pressure on its limit") {
  JobShape shape = job();
  shape.step_time_s = 1;
  NodeShape fast = node(100e9);        // 0.24 of 1 at attach
  fast.disk_write_bytes_per_s = 10e9;  // 0.4 of 0.7
  fast.mirror_port_bits_per_s = 80e9;  // 2 x 2 x 1/2 x 4 GB x 1106/1024 x 8 = 69.1: 0.864 of 0.9
  const auto plan = plan_capacity(shape, fast, 1);
  REQUIRE(plan);
  CHECK(plan->fits);
  CHECK(plan->rows[*plan->binding].resource == Resource::kMirrorPort);
  CHECK(verdict(*plan) == "fits on 1 node: mirror port binds (0.86 of 0.90)");
  const auto body = to_json(*plan);
  CHECK(body["binds"] == "mirror port");
  CHECK(body["fits"] == true);
  CHECK(body["nodes_needed"] == 1);
}

TEST_CASE("what a node says of itself comes back; the weakest counts") {
  NodeShape a;
  a.name = "tap0";
  a.source = "measured at start";
  a.memory_bytes = 64e9;
  a.receive_s_per_frame = 1e-7;
  a.apply_parameters_per_s = 1e9;
  NodeShape b = a;
  b.memory_bytes = 32e9;
  b.receive_s_per_frame = 2e-7;
  b.apply_parameters_per_s = 0;  // not known
  const auto read = node_from_json(nlohmann::json::parse(to_json(a).dump()));
  REQUIRE(read);
  CHECK(read->name == "tap0");
  CHECK(read->source == "measured at start");
  CHECK(read->memory_bytes == 64e9);
  CHECK(read->disk_bytes == 0);
  const NodeShape least = weakest(std::array{a, b});
  CHECK(least.memory_bytes == 32e9);
  CHECK(least.receive_s_per_frame == 2e-7);
  CHECK(least.apply_parameters_per_s == 1e9);
}

TEST_CASE("hostile rates are refused") {
  using nlohmann::json;
  const auto refused = [](const json& body) {
    const auto read = node_from_json(body);
    return !read && read.error().code == ErrorCode::kRequestMalformed;
  };
  CHECK(refused(json::array()));
  CHECK(refused({{"cores", "many"}}));
  CHECK(refused({{"cores", -1}}));
  CHECK(refused({{"cores", 1e19}}));
  CHECK(refused({{"cores", std::numeric_limits<double>::infinity()}}));
  CHECK(refused({{"cores", nullptr}}));
  CHECK(refused({{"name", 7}}));
  CHECK(refused({{"name", std::string(257, 'x')}}));
  CHECK(node_from_json({{"something else", "x"}}));
}

}  // namespace gradtap::capacity
