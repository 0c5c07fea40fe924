// Recorded jobs of torch 1.13 and torch 2.6: the recipe is found on the first two tensors, the rest must follow.
#include <cstring>
#include <filesystem>
#include <fstream>
#include <optional>
#include <set>

#include <doctest/doctest.h>
#include <nlohmann/json.hpp>

#include "replica/probe.h"
#include "replica/shard.h"
#include "tests/test_files.h"
#include "tests/unit/replica/trace_source.h"

namespace gradtap::replica {
namespace {

struct Recording {
  Schema schema;
  std::size_t steps = 0, total = 0;
  std::vector<std::size_t> starts;
  std::vector<float> grads, params, state;

  [[nodiscard]] const float* grad(std::size_t step, std::size_t parameter) const {
    return grads.data() + (step - 1) * total + starts[parameter];
  }
  [[nodiscard]] const float* param(std::size_t step, std::size_t parameter) const {
    return params.data() + step * total + starts[parameter];
  }
};

std::vector<float> read_floats(const std::filesystem::path& path) {
  std::ifstream file(path, std::ios::binary);
  std::vector<float> values(std::filesystem::file_size(path) / 4);
  file.read(reinterpret_cast<char*>(values.data()), static_cast<std::streamsize>(values.size() * 4));
  REQUIRE(file);
  return values;
}

std::optional<Recording> read_recording(const std::string& name) {
  const std::string path = gradtap::testing::capture_path(name + "/meta.json", "capture_recipe " + name);
  if (path.empty()) return std::nullopt;
  const std::filesystem::path folder = std::filesystem::path(path).parent_path();
  std::ifstream file(folder / "meta.json");
  const nlohmann::json meta = nlohmann::json::parse(file);
  Recording recording;
  recording.steps = meta["steps"];
  for (std::size_t i = 0; i < meta["names"].size(); ++i) {
    ParameterSpec parameter;
    parameter.name = meta["names"][i];
    parameter.shape = meta["shapes"][i].get<std::vector<std::uint64_t>>();
    parameter.numel = 1;
    for (std::size_t d = 0; d < parameter.shape.size(); ++d) {
      parameter.order.push_back(static_cast<std::uint32_t>(d));
      parameter.numel *= parameter.shape[d];
    }
    parameter.group = 0;
    recording.starts.push_back(recording.total);
    recording.total += parameter.numel;
    recording.schema.parameters.push_back(parameter);
  }
  const nlohmann::json& optimizer = meta["optimizer"];
  REQUIRE(optimizer["class"] == "AdamW");
  GroupHyper hyper;
  hyper.lr.value = optimizer["lr"];
  hyper.weight_decay = optimizer["weight_decay"];
  hyper.beta1 = optimizer["betas"][0];
  hyper.beta2 = optimizer["betas"][1];
  hyper.eps = optimizer["eps"];
  recording.schema.optimizer = {OptimizerClass::kAdamW, {StateKind::kExpAvg, StateKind::kExpAvgSq}, {hyper}};
  REQUIRE(validate(recording.schema));
  recording.grads = read_floats(folder / "grads.f32");
  recording.params = read_floats(folder / "params.f32");
  recording.state = read_floats(folder / "state.f32");
  REQUIRE(recording.grads.size() == recording.steps * recording.total);
  REQUIRE(recording.params.size() == (recording.steps + 1) * recording.total);
  REQUIRE(recording.state.size() == 2 * recording.total);
  return recording;
}

// The first two tensors as a probe; moments are known after the last step only.
ProbeData probe_of(const Recording& recording) {
  ProbeData probe{OptimizerClass::kAdamW, recording.schema.optimizer.kinds, {}, {}};
  probe.hyper.assign(recording.steps, recording.schema.optimizer.groups[0]);
  for (std::size_t p = 0; p < 2; ++p) {
    const std::size_t n = recording.schema.parameters[p].numel;
    ProbeCase probe_case{recording.schema.parameters[p].name, {recording.param(0, p), recording.param(0, p) + n}, {}};
    for (std::size_t s = 1; s <= recording.steps; ++s) {
      ProbeStep step{{recording.grad(s, p), recording.grad(s, p) + n},
                     {recording.param(s, p), recording.param(s, p) + n},
                     {{}, {}}};
      for (std::size_t k = 0; k < 2 && s == recording.steps; ++k) {
        const float* const state = recording.state.data() + k * recording.total + recording.starts[p];
        step.state_after[k] = {state, state + n};
      }
      probe_case.steps.push_back(std::move(step));
    }
    probe.cases.push_back(std::move(probe_case));
  }
  return probe;
}

void check_recording(const std::string& name, const std::string& recipe_expected) {
  const std::optional<Recording> recording = read_recording(name);
  if (!recording) return;
  const Result<Recipe> recipe = match_recipe(probe_of(*recording));
  REQUIRE_MESSAGE(recipe, recipe.error().text());
  CHECK(recipe_name(*recipe) == recipe_expected);

  const Result<ShardMap> map = ShardMap::cut(recording->schema, 4096);
  REQUIRE(map);
  CHECK(map->shards().size() >= 3);
  for (const ShardRange& range : map->shards()) {
    Result<Shard> shard = Shard::create(recording->schema, range, *recipe);
    REQUIRE(shard);
    for (const Piece& piece : range.pieces)
      REQUIRE(shard->load_range(piece.parameter, piece.begin, 0,
                                as_bytes(recording->param(0, piece.parameter) + piece.begin, piece.count)));
    REQUIRE(shard->finish_baseline(0));
    for (std::size_t s = 1; s <= recording->steps; ++s) {
      StepScalars scalars;
      scalars.step = s;
      scalars.groups = recording->schema.optimizer.groups;
      scalars.param_state.assign(recording->schema.parameters.size(), ParamState::kWire);
      std::vector<const float*> pieces;
      for (const Piece& piece : range.pieces) pieces.push_back(recording->grad(s, piece.parameter) + piece.begin);
      REQUIRE(shard->apply(scalars, {pieces}));
      for (const Piece& piece : range.pieces)
        REQUIRE(std::memcmp(shard->kind(0).data() + piece.shard_offset,
                            recording->param(s, piece.parameter) + piece.begin, piece.count * 4) == 0);
    }
    for (const Piece& piece : range.pieces)
      for (std::size_t k = 0; k < 2; ++k)
        CHECK(std::memcmp(
                  shard->kind(k + 1).data() + piece.shard_offset,
                  recording->state.data() + k * recording->total + recording->starts[piece.parameter] + piece.begin,
                  piece.count * 4) == 0);
  }
}

}  // namespace

TEST_CASE("the recorded job of torch 1.13 is replayed bit for bit") {
  check_recording("gloo-n4", "torch1+fma");
}

TEST_CASE("the recorded job of torch 2.6 is replayed bit for bit") {
  check_recording("gloo-torch2/f32", "lerp+fma");
}

}  // namespace gradtap::replica
