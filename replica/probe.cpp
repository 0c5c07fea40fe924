#include "replica/probe.h"

#include <algorithm>
#include <bit>
#include <optional>
#include <tuple>

#include <fmt/format.h>

namespace gradtap::replica {
namespace {

// Where a recipe first differs, ordered by how far it came.
struct Mismatch {
  std::size_t step = 0, probe_case = 0, kind = 0, element = 0;
  float expected = 0, actual = 0;
  [[nodiscard]] auto order() const { return std::tie(step, probe_case, kind, element); }
};

struct CaseState {
  std::vector<float> param;
  std::vector<std::vector<float>> states;
};

std::optional<std::size_t> first_difference(const std::vector<float>& expected, const std::vector<float>& actual) {
  for (std::size_t i = 0; i < expected.size(); ++i)
    if (std::bit_cast<std::uint32_t>(expected[i]) != std::bit_cast<std::uint32_t>(actual[i])) return i;
  return std::nullopt;
}

TensorRange whole_tensor(CaseState& state, const std::vector<StateKind>& kinds) {
  TensorRange range;
  range.param = state.param.data();
  range.count = range.tensor_numel = state.param.size();
  for (std::size_t k = 0; k < kinds.size(); ++k) {
    float* const array = state.states[k].data();
    if (kinds[k] == StateKind::kMomentumBuffer) range.momentum = array;
    if (kinds[k] == StateKind::kExpAvg) range.exp_avg = array;
    if (kinds[k] == StateKind::kExpAvgSq) range.exp_avg_sq = array;
    if (kinds[k] == StateKind::kMaxExpAvgSq) range.max_exp_avg_sq = array;
  }
  return range;
}

std::optional<Mismatch> try_recipe(const ProbeData& probe, const Recipe& recipe, const Kernels& kernels) {
  const StepContext context{probe.type, recipe, &kernels};
  std::vector<CaseState> states;
  states.reserve(probe.cases.size());
  for (const ProbeCase& probe_case : probe.cases)
    states.push_back({probe_case.param, std::vector<std::vector<float>>(probe.kinds.size(),
                                                                        std::vector<float>(probe_case.param.size()))});
  for (std::size_t s = 0; s < probe.hyper.size(); ++s)
    for (std::size_t c = 0; c < probe.cases.size(); ++c) {
      const ProbeStep& step = probe.cases[c].steps[s];
      apply_range(context, probe.hyper[s], s + 1, s == 0, {}, whole_tensor(states[c], probe.kinds),
                  step.gradient.data());
      if (const auto i = first_difference(step.param_after, states[c].param))
        return Mismatch{s, c, 0, *i, step.param_after[*i], states[c].param[*i]};
      for (std::size_t k = 0; k < probe.kinds.size(); ++k)
        if (const auto i = first_difference(step.state_after[k], states[c].states[k]))
          return Mismatch{s, c, k + 1, *i, step.state_after[k][*i], states[c].states[k][*i]};
    }
  return std::nullopt;
}

Status check_shape(const ProbeData& probe) {
  const auto bad = [](std::string what) { return fail(ErrorCode::kRecipeNoMatch, std::move(what), "probe"); };
  if (probe.cases.empty() || probe.hyper.empty()) return bad("the probe is empty");
  const OptimizerSpec optimizer{probe.type, probe.kinds, probe.hyper};
  GRADTAP_TRY(validate_groups(optimizer, probe.hyper, "probe.groups"));
  for (const ProbeCase& probe_case : probe.cases) {
    if (probe_case.steps.size() != probe.hyper.size()) return bad("a case of the probe lacks steps");
    for (const ProbeStep& step : probe_case.steps) {
      bool fits = step.gradient.size() == probe_case.param.size() &&
                  step.param_after.size() == probe_case.param.size() && step.state_after.size() == probe.kinds.size();
      for (const std::vector<float>& state : step.state_after)
        fits = fits && (state.empty() || state.size() == probe_case.param.size());
      if (!fits) return bad("a case of the probe has arrays of different sizes");
    }
  }
  return {};
}

std::string kind_name(const ProbeData& probe, std::size_t kind) {
  return kind == 0 ? "param" : std::string(state_kind_name(probe.kinds[kind - 1]));
}

std::string bits(float value) {
  return fmt::format("{:08x}", std::bit_cast<std::uint32_t>(value));
}

}  // namespace

Result<Recipe> match_recipe(const ProbeData& probe, const Kernels& kernels) {
  GRADTAP_TRY(check_shape(probe));
  const bool momentum =
      std::any_of(probe.hyper.begin(), probe.hyper.end(), [](const GroupHyper& hyper) { return hyper.momentum != 0; });
  std::vector<Recipe> tried, matching;
  std::optional<std::pair<Mismatch, Recipe>> nearest;
  for (const Recipe& candidate : all_recipes()) {
    const Recipe recipe = canonical(candidate, probe.type, momentum);
    if (std::find(tried.begin(), tried.end(), recipe) != tried.end()) continue;
    tried.push_back(recipe);
    const std::optional<Mismatch> mismatch = try_recipe(probe, recipe, kernels);
    if (!mismatch)
      matching.push_back(recipe);
    else if (!nearest || nearest->first.order() < mismatch->order())
      nearest = {*mismatch, recipe};
  }
  if (matching.size() == 1) return matching[0];
  if (matching.size() > 1) {
    std::string names;
    for (const Recipe& recipe : matching) names += (names.empty() ? "" : ", ") + recipe_name(recipe);
    return fail(ErrorCode::kRecipeAmbiguous, "the probe cannot tell recipes apart", "probe", "one matching recipe",
                names, "probe with more elements or other gradients");
  }
  if (!nearest) return fail(ErrorCode::kRecipeNoMatch, "there is no recipe to try", "probe");
  const auto& [mismatch, recipe] = *nearest;
  return fail(
      ErrorCode::kRecipeNoMatch, "no recipe reproduces the trainer's optimizer",
      fmt::format("probe case {}, {}, step {}, element {}, nearest recipe {}", probe.cases[mismatch.probe_case].name,
                  kind_name(probe, mismatch.kind), mismatch.step + 1, mismatch.element, recipe_name(recipe)),
      bits(mismatch.expected), bits(mismatch.actual), "use a supported optimizer, or report this build of torch");
}

}  // namespace gradtap::replica
