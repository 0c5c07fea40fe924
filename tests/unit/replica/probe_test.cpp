// The numerics probe against real torch: which recipe it finds, and that it refuses what it does not know.
#include "replica/probe.h"

#include <map>
#include <optional>

#include <doctest/doctest.h>
#include <sys/wait.h>

#include "replica/schema_json.h"
#include "tests/unit/replica/trace_source.h"

namespace gradtap::replica {
namespace {

struct UploadedProbe {
  OptimizerSpec optimizer;
  std::vector<std::uint8_t> chunk;
};

std::optional<std::map<std::string, UploadedProbe>> torch_probes(const char* capability) {
  TraceSource source(std::string("ATEN_CPU_CAPABILITY=") + capability, "optimizer_trace.py probe");
  std::map<std::string, UploadedProbe> probes;
  Json head;
  while (source.header(head)) {
    const Result<Schema> schema = parse_schema(head["attach"]);
    REQUIRE_MESSAGE(schema, schema.error().text());
    probes[head["name"]] = {schema->optimizer, source.bytes(head["bytes"])};
  }
  const int status = source.close();
  if (status == 77) {
    MESSAGE("SKIPPED numerics probe (" << capability << "): torch is not installed");
    return std::nullopt;
  }
  REQUIRE(status == 0);
  return probes;
}

ProbeData parsed(const UploadedProbe& probe) {
  ProbeUpload upload(probe.optimizer, true);
  const Status added = upload.add_chunk(probe.chunk);
  REQUIRE_MESSAGE(added, added.error().text());
  REQUIRE(upload.complete());
  Result<ProbeData> data = upload.finish();
  REQUIRE_MESSAGE(data, data.error().text());
  return *data;
}

std::string found(const UploadedProbe& probe, const Kernels& kernels = best_kernels()) {
  const Result<Recipe> recipe = match_recipe(parsed(probe), kernels);
  return recipe ? recipe_name(*recipe) : recipe.error().text();
}

}  // namespace

TEST_CASE("the probe finds the recipe of the installed torch (C18)") {
  auto probes = torch_probes("avx2");
  if (!probes) return;
  REQUIRE(probes->size() == 5);
  for (const char* name : {"SGD plain", "SGD momentum", "Adam", "AdamW amsgrad"}) {
    CHECK(found((*probes)[name]) == "torch1+fma");
    CHECK(found((*probes)[name], generic_kernels()) == "torch1+fma");
  }

  SUBCASE("arithmetic that is not ours is refused, and the first difference is named") {
    const Result<Recipe> recipe = match_recipe(parsed((*probes)["foreign AdamW"]));
    REQUIRE(!recipe);
    CHECK(recipe.error().code == ErrorCode::kRecipeNoMatch);
    CHECK(recipe.error().where.find("param, step 1") != std::string::npos);
  }
  SUBCASE("one changed bit in the last step's last element is seen and named") {
    ProbeData data = parsed((*probes)["Adam"]);
    float& last = data.cases.back().steps.back().state_after[1].back();
    last = std::bit_cast<float>(std::bit_cast<std::uint32_t>(last) ^ 1U);
    const Result<Recipe> recipe = match_recipe(data);
    REQUIRE(!recipe);
    CHECK(recipe.error().where == "probe case 4, exp_avg_sq, step 4, element 65540, nearest recipe torch1+fma");
  }
  SUBCASE("a probe that cannot tell recipes apart is ambiguous") {
    ProbeData data = parsed((*probes)["Adam"]);
    data.cases = {ProbeCase{"zeros", {0, 0, 0}, {}}};
    for (std::size_t s = 0; s < kProbeSteps; ++s)
      data.cases[0].steps.push_back({{0, 0, 0}, {0, 0, 0}, {{0, 0, 0}, {0, 0, 0}}});
    const Result<Recipe> recipe = match_recipe(data);
    REQUIRE(!recipe);
    CHECK(recipe.error().code == ErrorCode::kRecipeAmbiguous);
  }
  SUBCASE("a probe of another optimizer, cut or doubled, is refused") {
    const UploadedProbe& adam = (*probes)["Adam"];
    OptimizerSpec sgd;
    sgd.groups.resize(1);
    CHECK_FALSE(ProbeUpload(sgd, true).add_chunk(adam.chunk));
    OptimizerSpec fused = adam.optimizer;
    fused.groups[0].fused = true;
    CHECK_FALSE(ProbeUpload(fused, true).add_chunk(adam.chunk));
    std::vector<std::uint8_t> cut = adam.chunk;
    cut.pop_back();
    CHECK_FALSE(ProbeUpload(adam.optimizer, true).add_chunk(cut));
    ProbeUpload upload(adam.optimizer, true);
    CHECK_FALSE(upload.complete());
    CHECK_FALSE(upload.finish());
    REQUIRE(upload.add_chunk(adam.chunk));
    CHECK(upload.add_chunk(adam.chunk));  // the same again
    std::vector<std::uint8_t> other = adam.chunk;
    other.at(other.size() - 1) ^= 1;
    CHECK_FALSE(upload.add_chunk(other));
  }
}

TEST_CASE("the probe finds that a host has no fma (C18)") {
  auto probes = torch_probes("default");
  if (!probes) return;
  for (const char* name : {"SGD plain", "SGD momentum", "Adam", "AdamW amsgrad"})
    CHECK(found((*probes)[name]) == "torch1+nofma");
}

TEST_CASE("recipes with equal formulas count as one") {
  CHECK(all_recipes().size() == 8);
  CHECK(canonical({true, false, true}, OptimizerClass::kAdam, false) == Recipe{true, false, false});
  CHECK(canonical({true, true, true}, OptimizerClass::kAdam, false) == Recipe{true, true, true});
  CHECK(canonical({true, true, true}, OptimizerClass::kSgd, true) == Recipe{false, true, true});
  CHECK(canonical({true, true, true}, OptimizerClass::kSgd, false) == Recipe{false, true, false});
  for (const Recipe& recipe : all_recipes()) {
    const auto back = recipe_of(recipe_name(recipe));
    REQUIRE(back);
    CHECK(*back == recipe);
  }
  CHECK_FALSE(recipe_of("torch3+fma"));
}

}  // namespace gradtap::replica
