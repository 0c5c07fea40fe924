// GroupHyper and StepScalars: what one optimizer step used, by value.
//
// Purpose: with the gradient bytes, everything that turns state s-1 into state s. Plain values; any thread; immutable
// once parsed and shared by all shards of a step.
#pragma once

#include <cstdint>
#include <optional>
#include <string_view>
#include <vector>

#include "common/ids.h"
#include "replica/transform.h"

namespace gradtap::replica {

enum class OptimizerClass : std::uint8_t { kSgd, kAdam, kAdamW };

[[nodiscard]] std::string_view optimizer_class_name(OptimizerClass type);
[[nodiscard]] std::optional<OptimizerClass> optimizer_class_of(std::string_view name);

// A Python float or a 0-dim float32 tensor: torch forms the step's scalars in double or in float32 accordingly.
struct LearningRate {
  double value = 0;
  bool f32_tensor = false;
};

struct GroupHyper {
  LearningRate lr;
  double beta1 = 0, beta2 = 0, eps = 0;  // Adam, AdamW
  double momentum = 0, dampening = 0;    // SGD
  double weight_decay = 0;
  bool nesterov = false;
  bool amsgrad = false;
  bool maximize = false;
  std::optional<bool> fused, foreach;  // absent: None in torch
};

enum class Verdict : std::uint8_t { kApplied, kSkipped, kAmbiguous };

// Where the gradient of a parameter is in this step.
enum class ParamState : std::uint8_t { kWire = 0, kNone = 1, kStale = 2 };

struct StepScalars {
  StepNumber step = 0;
  Verdict verdict = Verdict::kApplied;
  std::vector<GroupHyper> groups;
  TransformChain transforms;
  std::vector<ParamState> param_state;  // one per parameter of the schema, aliases included
};

}  // namespace gradtap::replica
