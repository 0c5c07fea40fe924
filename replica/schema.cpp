#include "replica/schema.h"

#include <algorithm>
#include <array>
#include <unordered_set>

#include <fmt/format.h>

namespace gradtap::replica {
namespace {

constexpr std::array kStateKinds = {StateKind::kMomentumBuffer, StateKind::kExpAvg, StateKind::kExpAvgSq,
                                    StateKind::kMaxExpAvgSq};

bool has_kind(const OptimizerSpec& optimizer, StateKind kind) {
  return std::find(optimizer.kinds.begin(), optimizer.kinds.end(), kind) != optimizer.kinds.end();
}

bool kinds_possible(const OptimizerSpec& optimizer) {
  using K = std::vector<StateKind>;
  if (optimizer.type == OptimizerClass::kSgd)
    return optimizer.kinds.empty() || optimizer.kinds == K{StateKind::kMomentumBuffer};
  return optimizer.kinds == K{StateKind::kExpAvg, StateKind::kExpAvgSq} ||
         optimizer.kinds == K{StateKind::kExpAvg, StateKind::kExpAvgSq, StateKind::kMaxExpAvgSq};
}

Status validate_parameter(const Schema& schema, std::size_t index, const SchemaLimits& limits) {
  const ParameterSpec& parameter = schema.parameters[index];
  const std::string where = fmt::format("parameters[{}]", index);
  if (parameter.name.empty() || parameter.name.size() > limits.name_bytes)
    return fail(ErrorCode::kSchemaInvalid, "a parameter's name is empty or too long", where + ".name",
                fmt::format("1 to {} bytes", limits.name_bytes), fmt::format("{}", parameter.name.size()));
  if (parameter.shape.size() > limits.dims)
    return fail(ErrorCode::kSchemaInvalid, "a parameter has too many dimensions", where + ".shape",
                fmt::format("at most {}", limits.dims), fmt::format("{}", parameter.shape.size()));
  std::uint64_t product = 1;
  for (const std::uint64_t dim : parameter.shape) {
    if (__builtin_mul_overflow(product, dim, &product) || product > limits.elements)
      return fail(ErrorCode::kSchemaInvalid, "a parameter has too many elements", where + ".shape",
                  fmt::format("at most {}", limits.elements));
  }
  if (product != parameter.numel)
    return fail(ErrorCode::kSchemaInvalid, "numel is not the product of the shape", where + ".numel",
                fmt::format("{}", product), fmt::format("{}", parameter.numel));
  std::vector<std::uint32_t> sorted = parameter.order;
  std::sort(sorted.begin(), sorted.end());
  bool permutation = sorted.size() == parameter.shape.size();
  for (std::size_t i = 0; permutation && i < sorted.size(); ++i) permutation = sorted[i] == i;
  if (!permutation)
    return fail(ErrorCode::kSchemaInvalid, "order is not a permutation of the dimensions", where + ".order");
  if (parameter.group < -1 || parameter.group >= static_cast<std::int64_t>(schema.optimizer.groups.size()))
    return fail(ErrorCode::kSchemaInvalid, "a parameter names a group that does not exist", where + ".group",
                fmt::format("-1 to {}", static_cast<std::int64_t>(schema.optimizer.groups.size()) - 1),
                fmt::format("{}", parameter.group));
  if (parameter.alias_of) {
    if (*parameter.alias_of >= index || schema.parameters[*parameter.alias_of].alias_of ||
        schema.parameters[*parameter.alias_of].numel != parameter.numel)
      return fail(ErrorCode::kSchemaInvalid, "an alias does not name an earlier parameter of its size",
                  where + ".alias_of");
  }
  return {};
}

// Announced places in the groups: each parameter has one of its own.
Status validate_places(const Schema& schema, const SchemaLimits& limits) {
  const std::vector<std::uint32_t>& sizes = schema.optimizer.group_sizes;
  if (sizes.empty()) return {};
  if (sizes.size() != schema.optimizer.groups.size())
    return fail(ErrorCode::kSchemaInvalid, "group_sizes is not one number a group", "optimizer.group_sizes",
                fmt::format("{}", schema.optimizer.groups.size()), fmt::format("{}", sizes.size()));
  std::uint64_t total = 0;
  for (const std::uint32_t size : sizes) total += size;
  if (total > limits.parameters)
    return fail(ErrorCode::kSchemaInvalid, "the groups have too many parameters", "optimizer.group_sizes",
                fmt::format("at most {}", limits.parameters), fmt::format("{}", total));
  std::vector<std::vector<bool>> taken(sizes.size());
  for (std::size_t g = 0; g < sizes.size(); ++g) taken[g].resize(sizes[g]);
  for (std::size_t i = 0; i < schema.parameters.size(); ++i) {
    const ParameterSpec& parameter = schema.parameters[i];
    if (parameter.group < 0 || parameter.alias_of) continue;
    auto places = taken[static_cast<std::size_t>(parameter.group)].begin();
    const std::uint32_t size = sizes[static_cast<std::size_t>(parameter.group)];
    if (parameter.group_index >= size || places[parameter.group_index])
      return fail(ErrorCode::kSchemaInvalid, "a parameter has no place of its own in its group",
                  fmt::format("parameters[{}].group_index", i), fmt::format("a free one below {}", size),
                  fmt::format("{}", parameter.group_index));
    places[parameter.group_index] = true;
  }
  return {};
}

}  // namespace

std::string_view state_kind_name(StateKind kind) {
  switch (kind) {
    case StateKind::kMomentumBuffer:
      return "momentum_buffer";
    case StateKind::kExpAvg:
      return "exp_avg";
    case StateKind::kExpAvgSq:
      return "exp_avg_sq";
    case StateKind::kMaxExpAvgSq:
      return "max_exp_avg_sq";
  }
  return "momentum_buffer";
}

std::optional<StateKind> state_kind_of(std::string_view name) {
  for (const StateKind kind : kStateKinds)
    if (state_kind_name(kind) == name) return kind;
  return std::nullopt;
}

std::uint64_t Schema::elements() const {
  std::uint64_t total = 0;
  for (const ParameterSpec& parameter : parameters)
    if (parameter.owns_elements()) total += parameter.numel;
  return total;
}

Status validate_groups(const OptimizerSpec& optimizer, const std::vector<GroupHyper>& groups, std::string_view where) {
  if (groups.size() != optimizer.groups.size())
    return fail(ErrorCode::kSchemaInvalid, "the number of parameter groups changed", std::string(where),
                fmt::format("{}", optimizer.groups.size()), fmt::format("{}", groups.size()),
                "attach again after add_param_group");
  for (std::size_t i = 0; i < groups.size(); ++i) {
    const GroupHyper& group = groups[i];
    const std::string place = fmt::format("{}[{}]", where, i);
    if (group.fused.value_or(false) != optimizer.groups[0].fused.value_or(false))
      return fail(ErrorCode::kRecipeUnsupported, "a group's fused flag differs from the one at attach",
                  place + ".fused", {}, {}, "use one fused setting for all groups, from the start");
    if (group.momentum != 0 && !has_kind(optimizer, StateKind::kMomentumBuffer))
      return fail(ErrorCode::kRecipeUnsupported, "momentum is used but no momentum_buffer was declared",
                  place + ".momentum");
    if (group.nesterov && (group.momentum <= 0 || group.dampening != 0))
      return fail(ErrorCode::kRecipeUnsupported, "nesterov needs a momentum and zero dampening", place + ".nesterov");
    if (group.amsgrad && !has_kind(optimizer, StateKind::kMaxExpAvgSq))
      return fail(ErrorCode::kRecipeUnsupported, "amsgrad is used but no max_exp_avg_sq was declared",
                  place + ".amsgrad");
  }
  return {};
}

Status validate(const Schema& schema, const SchemaLimits& limits) {
  if (schema.parameters.empty() || schema.parameters.size() > limits.parameters)
    return fail(ErrorCode::kSchemaInvalid, "the number of parameters is impossible", "parameters",
                fmt::format("1 to {}", limits.parameters), fmt::format("{}", schema.parameters.size()));
  if (schema.optimizer.groups.empty() || schema.optimizer.groups.size() > limits.groups)
    return fail(ErrorCode::kSchemaInvalid, "the number of parameter groups is impossible", "optimizer.groups",
                fmt::format("1 to {}", limits.groups), fmt::format("{}", schema.optimizer.groups.size()));
  if (!kinds_possible(schema.optimizer))
    return fail(ErrorCode::kRecipeUnsupported, "the optimizer cannot have these state kinds", "optimizer.kinds",
                "SGD: none or momentum_buffer; Adam, AdamW: exp_avg, exp_avg_sq and, with amsgrad, max_exp_avg_sq");
  GRADTAP_TRY(validate_groups(schema.optimizer, schema.optimizer.groups, "optimizer.groups"));
  std::unordered_set<std::string_view> names;
  std::uint64_t total = 0;
  for (std::size_t i = 0; i < schema.parameters.size(); ++i) {
    GRADTAP_TRY(validate_parameter(schema, i, limits));
    const ParameterSpec& parameter = schema.parameters[i];
    if (!names.insert(parameter.name).second)
      return fail(ErrorCode::kSchemaInvalid, "two parameters have one name", fmt::format("parameters[{}].name", i), {},
                  parameter.name);
    for (const std::string& alias : parameter.aliases)
      if (alias.empty() || alias.size() > limits.name_bytes || !names.insert(alias).second)
        return fail(ErrorCode::kSchemaInvalid, "an alias is not a name of its own",
                    fmt::format("parameters[{}].aliases", i), {}, alias.substr(0, limits.name_bytes));
    if (parameter.owns_elements()) total += parameter.numel;
    if (total > limits.elements)
      return fail(ErrorCode::kSchemaInvalid, "the model has too many elements", "parameters",
                  fmt::format("at most {}", limits.elements));
  }
  return validate_places(schema, limits);
}

}  // namespace gradtap::replica
