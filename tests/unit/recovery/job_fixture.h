// Small jobs: an attach message, its plan, gradients, shards, digests.
#pragma once

#include <bit>
#include <cstdint>
#include <memory>
#include <string>
#include <vector>

#include <doctest/doctest.h>
#include <fmt/format.h>
#include <nlohmann/json.hpp>

#include "common/random.h"
#include "common/sha256.h"
#include "recovery/job_plan.h"
#include "replica/schema_json.h"
#include "replica/shard.h"

namespace gradtap::recovery::test {

using nlohmann::json;

inline std::string f64(double value) {
  return fmt::format("f64:{:016x}", std::bit_cast<std::uint64_t>(value));
}

inline json sgd_group(double lr, double momentum) {
  return {{"lr", f64(lr)},     {"momentum", f64(momentum)}, {"dampening", f64(0)}, {"weight_decay", f64(0)},
          {"nesterov", "b:0"}, {"maximize", "b:0"},         {"fused", "none"},     {"foreach", "none"}};
}

inline json adam_group(double lr) {
  return {{"lr", f64(lr)},     {"beta1", f64(0.9)},         {"beta2", f64(0.999)},
          {"eps", f64(1e-8)},  {"weight_decay", f64(0.01)}, {"amsgrad", "b:0"},
          {"maximize", "b:0"}, {"fused", "none"},           {"foreach", "none"}};
}

inline json parameter(const std::string& name, const std::vector<std::uint64_t>& shape,
                      std::vector<std::uint32_t> order = {}) {
  std::uint64_t numel = 1;
  for (const std::uint64_t dim : shape) numel *= dim;
  if (order.empty())
    for (std::uint32_t i = 0; i < shape.size(); ++i) order.push_back(i);
  return {{"name", name},   {"shape", shape},        {"order", order}, {"dtype", "float32"},
          {"numel", numel}, {"requires_grad", true}, {"group", 0},     {"alias_of", nullptr}};
}

inline json attach(json parameters, const json& optimizer) {
  return {{"world", 2},
          {"sequence", 3},
          {"backend", "gloo"},
          {"step", 0},
          {"parameters", std::move(parameters)},
          {"buffers", json::array()},
          {"optimizer", optimizer},
          {"inventory", json::array()}};
}

inline json sgd(double momentum = 0.9) {
  return {{"class", "SGD"}, {"kinds", {"momentum_buffer"}}, {"groups", {sgd_group(0.1, momentum)}}};
}
inline json adamw() {
  return {{"class", "AdamW"}, {"kinds", {"exp_avg", "exp_avg_sq"}}, {"groups", {adam_group(0.01)}}};
}

inline JobPlanPtr plan_of(const json& body, std::uint64_t shard_elements = 65'536, LineageId lineage = 1) {
  auto plan = plan_from_attach(body.dump(), "job", 2, shard_elements);
  if (!plan) FAIL(plan.error().text());
  plan->lineage = lineage;
  return std::make_shared<const JobPlan>(std::move(*plan));
}

// Three shards: a's first block | the rest of a, b, c's first block | the rest of c.
inline json three_shards(const json& optimizer) {
  return attach({parameter("a", {70'000}), parameter("b", {5}), parameter("c", {66, 1'000})}, optimizer);
}

// A gradient that is a function of its name only.
inline float gradient_at(StepNumber step, std::uint32_t parameter, std::uint64_t element) {
  const std::uint64_t bits = splitmix64_mix(step * 1'000'003 + parameter * 7919 + element * 3 + 1);
  return static_cast<float>(static_cast<std::int64_t>(bits % 2001) - 1000) / 1024.0F;
}
inline float start_at(std::uint32_t parameter, std::uint64_t element) {
  return gradient_at(99'999, parameter, element);
}

// A shard at step 0 with start_at() as parameters and no optimizer state.
inline std::shared_ptr<replica::Shard> fresh_shard(const JobPlan& plan, ShardId id) {
  auto shard = replica::Shard::create(plan.schema, plan.shards.shards()[id], plan.recipe);
  if (!shard) FAIL(shard.error().text());
  for (const replica::Piece& piece : plan.shards.shards()[id].pieces) {
    std::vector<float> values(piece.count);
    for (std::uint64_t i = 0; i < piece.count; ++i) values[i] = start_at(piece.parameter, piece.begin + i);
    const Status loaded = shard->load_range(piece.parameter, piece.begin, 0,
                                            {reinterpret_cast<const std::uint8_t*>(values.data()), values.size() * 4});
    if (!loaded) FAIL(loaded.error().text());
  }
  if (const Status done = shard->finish_baseline(plan.base_step); !done) FAIL(done.error().text());
  return std::make_shared<replica::Shard>(std::move(*shard));
}

inline std::vector<float> shard_gradient(const JobPlan& plan, ShardId id, StepNumber step) {
  std::vector<float> values(plan.shards.shards()[id].elements);
  for (const replica::Piece& piece : plan.shards.shards()[id].pieces)
    for (std::uint64_t i = 0; i < piece.count; ++i)
      values[piece.shard_offset + i] = gradient_at(step, piece.parameter, piece.begin + i);
  return values;
}

inline replica::StepScalars scalars_of(const JobPlan& plan, StepNumber step,
                                       replica::Verdict verdict = replica::Verdict::kApplied) {
  replica::StepScalars scalars;
  scalars.step = step;
  scalars.verdict = verdict;
  scalars.groups = plan.schema.optimizer.groups;
  scalars.param_state.assign(plan.schema.parameters.size(), replica::ParamState::kWire);
  return scalars;
}

inline Sha256 sha_of_all(const std::vector<Sha256>& digests) {
  Sha256Stream stream;
  for (const Sha256& digest : digests) stream.add(digest.data(), digest.size());
  return stream.finish();
}

inline void require_ok(const Status& status) {
  if (!status) FAIL(status.error().text());
}

}  // namespace gradtap::recovery::test
