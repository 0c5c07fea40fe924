#include "replica/schema_json.h"

#include <cmath>
#include <unordered_map>

#include <fmt/format.h>

#include "common/ids.h"
#include "replica/number_bits.h"

namespace gradtap::replica {
namespace {

constexpr std::uint64_t kMaxElements = 1ULL << 48;

Result<Number> number_field(const Json& object, const char* name, std::string_view where) {
  GRADTAP_LET(value, json_field(object, name, where));
  const std::string place = fmt::format("{}.{}", where, name);
  if (!value->is_string()) return json_wrong(place, "a number as bits", *value);
  return parse_number(value->get_ref<const std::string&>(), place);
}

std::unexpected<Error> bad_scalar(std::string_view where, const char* name, std::string_view expected,
                                  const Number& found) {
  return fail(ErrorCode::kRecipeUnsupported, "a hyper-parameter has a value that no recipe supports",
              fmt::format("{}.{}", where, name), std::string(expected), print_number(found));
}

Status real_field(const Json& object, const char* name, std::string_view where, double& target) {
  GRADTAP_LET(number, number_field(object, name, where));
  if (number.kind == Number::Kind::kInt)
    target = static_cast<double>(number.i64);
  else if (number.kind == Number::Kind::kF64)
    target = number.f64;
  else
    return bad_scalar(where, name, "f64 or i", number);
  if (!std::isfinite(target)) return bad_scalar(where, name, "a finite number", number);
  return {};
}

Status rate_field(const Json& object, std::string_view where, LearningRate& target) {
  GRADTAP_LET(number, number_field(object, "lr", where));
  target.f32_tensor = number.kind == Number::Kind::kF32Tensor;
  if (target.f32_tensor) {
    target.value = static_cast<double>(number.f32);
    if (!std::isfinite(target.value)) return bad_scalar(where, "lr", "a finite number", number);
    return {};
  }
  return real_field(object, "lr", where, target.value);
}

Status flag_field(const Json& object, const char* name, std::string_view where, bool& target) {
  GRADTAP_LET(number, number_field(object, name, where));
  if (number.kind != Number::Kind::kBool) return bad_scalar(where, name, "b:0 or b:1", number);
  target = number.i64 != 0;
  return {};
}

Status optional_flag_field(const Json& object, const char* name, std::string_view where, std::optional<bool>& target) {
  GRADTAP_LET(number, number_field(object, name, where));
  if (number.kind == Number::Kind::kNone) return {};
  if (number.kind != Number::Kind::kBool) return bad_scalar(where, name, "b:0, b:1 or none", number);
  target = number.i64 != 0;
  return {};
}

Result<std::vector<std::uint64_t>> uint_array(const Json& object, const char* name, std::string_view where,
                                              std::size_t length_limit, std::uint64_t value_limit) {
  GRADTAP_LET(array, json_array(object, name, where, length_limit));
  std::vector<std::uint64_t> values;
  for (const Json& element : *array) {
    GRADTAP_LET(value, json_uint_value(element, fmt::format("{}.{}", where, name), value_limit));
    values.push_back(value);
  }
  return values;
}

// Index by name of the parameters read so far.
using NameIndex = std::unordered_map<std::string, std::uint32_t>;

Status parse_alias(const Json& object, const NameIndex& so_far, const std::string& where, ParameterSpec& parameter) {
  const auto found = object.find("alias_of");
  if (found == object.end() || found->is_null()) return {};
  if (found->is_number_integer()) {
    GRADTAP_LET(index, json_uint_value(*found, where + ".alias_of", UINT32_MAX));
    parameter.alias_of = static_cast<std::uint32_t>(index);
    return {};
  }
  if (!found->is_string()) return json_wrong(where + ".alias_of", "null, a name or an index", *found);
  if (const auto named = so_far.find(found->get_ref<const std::string&>()); named != so_far.end()) {
    parameter.alias_of = named->second;
    return {};
  }
  return fail(ErrorCode::kSchemaInvalid, "an alias names no earlier parameter", where + ".alias_of");
}

Result<ParameterSpec> parse_parameter(const Json& object, const NameIndex& so_far, const std::string& where,
                                      const SchemaLimits& limits) {
  ParameterSpec parameter;
  GRADTAP_LET(name, json_text(object, "name", where));
  parameter.name = std::move(name);
  GRADTAP_LET(dtype, json_text(object, "dtype", where));
  if (dtype != "float32")
    return fail(ErrorCode::kRecipeUnsupported, "a parameter is not float32", where + ".dtype", "float32",
                dtype.substr(0, 32), "train this parameter in float32");
  GRADTAP_LET(shape, uint_array(object, "shape", where, limits.dims, kMaxElements));
  parameter.shape = std::move(shape);
  GRADTAP_LET(order, uint_array(object, "order", where, limits.dims, limits.dims));
  parameter.order.assign(order.begin(), order.end());
  GRADTAP_LET(numel, json_uint(object, "numel", where, kMaxElements));
  parameter.numel = numel;
  GRADTAP_LET(requires_grad, json_bool(object, "requires_grad", where));
  parameter.requires_grad = requires_grad;
  GRADTAP_LET(group, json_field(object, "group", where));
  if (*group == -1) {
    parameter.group = -1;
  } else {
    GRADTAP_LET(index, json_uint_value(*group, where + ".group", INT32_MAX));
    parameter.group = static_cast<std::int32_t>(index);
  }
  if (object.contains("group_index")) {
    GRADTAP_LET(group_index, json_uint(object, "group_index", where, UINT32_MAX));
    parameter.group_index = static_cast<std::uint32_t>(group_index);
  }
  GRADTAP_TRY(parse_alias(object, so_far, where, parameter));
  if (object.contains("aliases")) {
    GRADTAP_LET(aliases, json_array(object, "aliases", where, limits.aliases));
    for (const Json& alias : *aliases) {
      if (!alias.is_string()) return json_wrong(where + ".aliases", "names", alias);
      parameter.aliases.push_back(alias.get<std::string>());
    }
  }
  return parameter;
}

Result<OptimizerSpec> parse_optimizer(const Json& attach) {
  GRADTAP_LET(object, json_object(attach, "optimizer", ""));
  OptimizerSpec optimizer;
  GRADTAP_LET(class_name, json_text(*object, "class", "optimizer"));
  const std::optional<OptimizerClass> type = optimizer_class_of(class_name);
  if (!type)
    return fail(ErrorCode::kRecipeUnsupported, "the optimizer is not supported", "optimizer.class",
                "SGD, Adam or AdamW", class_name.substr(0, 64));
  optimizer.type = *type;
  GRADTAP_LET(kinds, json_array(*object, "kinds", "optimizer", 8));
  for (const Json& kind : *kinds) {
    if (!kind.is_string()) return json_wrong("optimizer.kinds", "state names", kind);
    const std::optional<StateKind> known = state_kind_of(kind.get_ref<const std::string&>());
    if (!known)
      return fail(ErrorCode::kRecipeUnsupported, "an optimizer state is not supported", "optimizer.kinds",
                  "momentum_buffer, exp_avg, exp_avg_sq, max_exp_avg_sq",
                  kind.get_ref<const std::string&>().substr(0, 64));
    optimizer.kinds.push_back(*known);
  }
  GRADTAP_LET(groups_json, json_field(*object, "groups", "optimizer"));
  GRADTAP_LET(groups, parse_groups(*groups_json, optimizer.type, "optimizer.groups"));
  optimizer.groups = std::move(groups);
  if (object->contains("group_sizes")) {
    GRADTAP_LET(sizes, uint_array(*object, "group_sizes", "optimizer", SchemaLimits{}.groups, UINT32_MAX));
    optimizer.group_sizes.assign(sizes.begin(), sizes.end());
  }
  return optimizer;
}

Status parse_buffers(const Json& attach, const SchemaLimits& limits, Schema& schema) {
  if (!attach.contains("buffers")) return {};
  GRADTAP_LET(buffers, json_array(attach, "buffers", "", limits.parameters));
  for (const Json& object : *buffers) {
    const std::string where = fmt::format("buffers[{}]", schema.buffers.size());
    BufferSpec buffer;
    GRADTAP_LET(name, json_text(object, "name", where));
    buffer.name = std::move(name);
    GRADTAP_LET(shape, uint_array(object, "shape", where, limits.dims, kMaxElements));
    buffer.shape = std::move(shape);
    GRADTAP_LET(dtype, json_text(object, "dtype", where));
    buffer.dtype = std::move(dtype);
    GRADTAP_LET(numel, json_uint(object, "numel", where, kMaxElements));
    buffer.numel = numel;
    if (object.contains("persistent")) {
      GRADTAP_LET(persistent, json_bool(object, "persistent", where));
      buffer.persistent = persistent;
    }
    schema.buffers.push_back(std::move(buffer));
  }
  return {};
}

}  // namespace

Result<GroupHyper> parse_group(const Json& group, OptimizerClass type, std::string_view where) {
  if (!group.is_object()) return json_wrong(where, "an object", group);
  GroupHyper hyper;
  GRADTAP_TRY(rate_field(group, where, hyper.lr));
  GRADTAP_TRY(real_field(group, "weight_decay", where, hyper.weight_decay));
  GRADTAP_TRY(flag_field(group, "maximize", where, hyper.maximize));
  GRADTAP_TRY(optional_flag_field(group, "fused", where, hyper.fused));
  GRADTAP_TRY(optional_flag_field(group, "foreach", where, hyper.foreach));
  if (type == OptimizerClass::kSgd) {
    GRADTAP_TRY(real_field(group, "momentum", where, hyper.momentum));
    GRADTAP_TRY(real_field(group, "dampening", where, hyper.dampening));
    GRADTAP_TRY(flag_field(group, "nesterov", where, hyper.nesterov));
    return hyper;
  }
  GRADTAP_TRY(real_field(group, "beta1", where, hyper.beta1));
  GRADTAP_TRY(real_field(group, "beta2", where, hyper.beta2));
  GRADTAP_TRY(real_field(group, "eps", where, hyper.eps));
  GRADTAP_TRY(flag_field(group, "amsgrad", where, hyper.amsgrad));
  return hyper;
}

Result<std::vector<GroupHyper>> parse_groups(const Json& groups, OptimizerClass type, std::string_view where) {
  if (!groups.is_array()) return json_wrong(where, "an array", groups);
  if (groups.size() > SchemaLimits{}.groups)
    return fail(ErrorCode::kSchemaInvalid, "there are too many parameter groups", std::string(where),
                fmt::format("at most {}", SchemaLimits{}.groups), fmt::format("{}", groups.size()));
  std::vector<GroupHyper> result;
  for (const Json& group : groups) {
    GRADTAP_LET(hyper, parse_group(group, type, fmt::format("{}[{}]", where, result.size())));
    result.push_back(hyper);
  }
  return result;
}

Result<Schema> parse_schema(const Json& attach, const SchemaLimits& limits) {
  Schema schema;
  GRADTAP_LET(optimizer, parse_optimizer(attach));
  schema.optimizer = std::move(optimizer);
  GRADTAP_LET(parameters, json_array(attach, "parameters", "", limits.parameters));
  NameIndex names;
  for (const Json& object : *parameters) {
    const std::string where = fmt::format("parameters[{}]", schema.parameters.size());
    if (!object.is_object()) return json_wrong(where, "an object", object);
    GRADTAP_LET(parameter, parse_parameter(object, names, where, limits));
    names.emplace(parameter.name, static_cast<std::uint32_t>(schema.parameters.size()));
    schema.parameters.push_back(std::move(parameter));
  }
  GRADTAP_TRY(parse_buffers(attach, limits, schema));
  GRADTAP_TRY(validate(schema, limits));
  return schema;
}

Result<Layout> parse_layout(const Json& layout, const Schema& schema) {
  GRADTAP_LET(dtype, json_text(layout, "dtype", "layout"));
  if (dtype != "float32")
    return fail(ErrorCode::kLayoutInvalid, "the gradient on the wire is not float32", "layout.dtype", "float32",
                dtype.substr(0, 32));
  GRADTAP_LET(buckets_json, json_array(layout, "buckets", "layout", schema.parameters.size()));
  std::vector<std::vector<LayoutEntry>> buckets;
  for (const Json& bucket_json : *buckets_json) {
    const std::string where = fmt::format("layout.buckets[{}]", buckets.size());
    if (!bucket_json.is_array() || bucket_json.size() > schema.parameters.size())
      return json_wrong(where, "an array of [parameter, numel]", bucket_json);
    std::vector<LayoutEntry> bucket;
    for (const Json& pair : bucket_json) {
      if (!pair.is_array() || pair.size() != 2) return json_wrong(where, "pairs of [parameter, numel]", pair);
      GRADTAP_LET(parameter, json_uint_value(pair[0], where, UINT32_MAX));
      GRADTAP_LET(numel, json_uint_value(pair[1], where, kMaxElements));
      bucket.push_back({static_cast<std::uint32_t>(parameter), numel});
    }
    buckets.push_back(std::move(bucket));
  }
  return Layout::create(std::move(buckets), schema);
}

Result<LayoutId> parse_layout_id(const Json& object, const char* name, std::string_view where) {
  GRADTAP_LET(text, json_text(object, name, where));
  LayoutId id;
  if (!from_hex(text, id.data(), id.size()))
    return fail(ErrorCode::kSchemaInvalid, "a layout id is not 64 hexadecimal digits",
                where.empty() ? std::string(name) : fmt::format("{}.{}", where, name));
  return id;
}

}  // namespace gradtap::replica
