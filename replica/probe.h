// Numerics probe: find the one recipe that reproduces the trainer's optimizer, bit for bit (PROTOCOLS 3.9).
//
// Purpose: at attach the trainer's own optimizer runs four steps on synthetic tensors; every recipe is tried on them.
// Pure; any thread. Recipes with the same formulas for this optimizer count as one. Failure behaviour: kRecipeNoMatch
// with the first differing element of the recipe that came furthest, kRecipeAmbiguous when more than one matches.
#pragma once

#include <cstdint>
#include <map>
#include <string>
#include <vector>

#include "replica/json_fields.h"
#include "replica/recipe.h"
#include "replica/safetensors.h"
#include "replica/schema.h"

namespace gradtap::replica {

struct ProbeStep {
  std::vector<float> gradient;
  std::vector<float> param_after;
  // In the order of OptimizerSpec::kinds; an empty array is not compared (state unknown or not created).
  std::vector<std::vector<float>> state_after;
};

// One tensor: its start (states absent) and what the trainer made of it.
struct ProbeCase {
  std::string name;
  std::vector<float> param;
  std::vector<ProbeStep> steps;
};

struct ProbeData {
  OptimizerClass type = OptimizerClass::kSgd;
  std::vector<StateKind> kinds;
  std::vector<GroupHyper> hyper;  // one per step
  std::vector<ProbeCase> cases;
};

[[nodiscard]] Result<Recipe> match_recipe(const ProbeData& probe, const Kernels& kernels = best_kernels());

// Collects the chunks of a probe upload (docs/side-channel.md, "Probe").
class ProbeUpload {
 public:
  // standard_cases: exactly the five sizes of the protocol, with every state after every step. Without it (replays of
  // recorded jobs) any sizes and missing states are taken; an ambiguous probe is refused all the same.
  ProbeUpload(OptimizerSpec optimizer, bool standard_cases)
      : optimizer_(std::move(optimizer)), standard_(standard_cases) {}

  [[nodiscard]] Status add_chunk(ByteSpan chunk);
  [[nodiscard]] bool complete() const;  // every standard case is there; always true without standard_cases
  [[nodiscard]] Result<ProbeData> finish() const;

 private:
  struct Part {
    std::vector<std::uint64_t> shape;
    std::vector<float> values;
  };
  [[nodiscard]] Status read_metadata(const Safetensors& file);
  [[nodiscard]] const Part* part(std::size_t probe_case, std::string_view kind, const std::string& when) const;
  [[nodiscard]] Result<ProbeCase> read_case(std::size_t probe_case) const;

  OptimizerSpec optimizer_;
  bool standard_;
  std::vector<GroupHyper> hyper_;
  std::map<std::string, Part, std::less<>> parts_;
  std::vector<bool> cases_;
};

inline constexpr std::uint64_t kProbeSizes[] = {1, 7, 63, 4099, 65541};
inline constexpr std::size_t kProbeSteps = 4;

}  // namespace gradtap::replica
