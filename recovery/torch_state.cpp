#include "recovery/torch_state.h"

#include <algorithm>
#include <array>
#include <cstring>
#include <utility>

#include "common/number_text.h"
#include "recovery/pickle_writer.h"
#include "recovery/side_value.h"
#include "recovery/torch_file.h"

namespace gradtap::recovery {

namespace {

// Where the bytes of a storage come from: a tensor of the state, one float32 (a step counter, a learning rate), or
// bytes of the side state.
struct Storage {
  enum class From : std::uint8_t { kState, kScalar, kSide };
  From from = From::kState;
  std::uint32_t parameter = 0;
  std::size_t kind = 0;
  float value = 0;
  ByteSpan bytes{};
};

Storage scalar(float value) {
  return {Storage::From::kScalar, 0, 0, value, {}};
}

constexpr std::size_t kLeftOutMax = 1000;  // names in the file

std::string_view storage_class(std::string_view dtype) {
  constexpr std::array<std::pair<std::string_view, std::string_view>, 12> kClasses = {
      {{"float32", "FloatStorage"},
       {"float64", "DoubleStorage"},
       {"float16", "HalfStorage"},
       {"bfloat16", "BFloat16Storage"},
       {"uint8", "ByteStorage"},
       {"int8", "CharStorage"},
       {"int16", "ShortStorage"},
       {"int32", "IntStorage"},
       {"int64", "LongStorage"},
       {"bool", "BoolStorage"},
       {"complex64", "ComplexFloatStorage"},
       {"complex128", "ComplexDoubleStorage"}}};
  for (const auto& [name, type] : kClasses)
    if (name == dtype) return type;
  return {};
}

std::vector<std::uint64_t> row_major_strides(const std::vector<std::uint64_t>& shape) {
  std::vector<std::uint64_t> strides(shape.size(), 1);
  for (std::size_t i = shape.size(); i > 1; --i)
    strides[i - 2] = strides[i - 1] * std::max<std::uint64_t>(shape[i - 1], 1);
  return strides;
}

// Whether a pickle of ours can say it. Tensors beyond what one can hold in memory are not there in the first place.
bool can_say(const SideValue& value) {
  using Kind = SideValue::Kind;
  if (value.kind == Kind::kOther || value.kind == Kind::kBytes) return false;
  if (value.kind == Kind::kTensor) return !storage_class(value.dtype).empty();
  if (value.kind == Kind::kDict)
    for (std::size_t i = 0; i < value.items.size(); i += 2)
      if (value.items[i].kind != Kind::kText && value.items[i].kind != Kind::kInteger) return false;
  return std::all_of(value.items.begin(), value.items.end(), can_say);
}

std::vector<std::uint64_t> strides_of(const replica::ParameterSpec& spec) {
  std::vector<std::uint64_t> strides(spec.shape.size(), 1);
  std::uint64_t step = 1;
  for (std::size_t i = spec.order.size(); i > 0; --i) {
    strides[spec.order[i - 1]] = step;
    step *= spec.shape[spec.order[i - 1]];
  }
  return strides;
}

// Major and minor number of "2.1.0+cu118"; zero where there is none.
std::pair<unsigned, unsigned> version_of(std::string_view text) {
  const std::size_t dot = text.find('.');
  if (dot == std::string_view::npos) return {0, 0};
  const std::string_view rest = text.substr(dot + 1);
  const auto major = parse_integer<unsigned>(text.substr(0, dot));
  const auto minor = parse_integer<unsigned>(rest.substr(0, rest.find_first_not_of("0123456789")));
  return {major.value_or(0), minor.value_or(0)};
}

// The optimizer's own numbering: its parameters, group after group.
struct OptimizerNumbers {
  std::vector<std::uint32_t> sizes;  // of the groups
  std::vector<std::uint32_t> of;     // by parameter; meaningless where the parameter is in no group
};

OptimizerNumbers number_parameters(const replica::Schema& schema) {
  OptimizerNumbers numbers;
  const bool announced = !schema.optimizer.group_sizes.empty();
  numbers.sizes =
      announced ? schema.optimizer.group_sizes : std::vector<std::uint32_t>(schema.optimizer.groups.size(), 0);
  std::vector<std::uint32_t> in_group(schema.parameters.size(), 0);
  for (std::size_t p = 0; p < in_group.size(); ++p) {
    const replica::ParameterSpec& spec = schema.parameters[p];
    if (spec.group < 0 || spec.alias_of) continue;
    in_group[p] = announced ? spec.group_index : numbers.sizes[static_cast<std::size_t>(spec.group)]++;
  }
  numbers.of.resize(in_group.size(), 0);
  for (std::size_t p = 0; p < in_group.size(); ++p) {
    for (std::int32_t g = 0; g < schema.parameters[p].group; ++g)
      numbers.of[p] += numbers.sizes[static_cast<std::size_t>(g)];
    numbers.of[p] += in_group[p];
  }
  return numbers;
}

// Numbers of the storages of one parameter.
struct Numbers {
  std::uint64_t value = 0;
  std::vector<std::uint64_t> kinds;  // of those present, in order
  std::uint64_t counter = 0;
};

class TorchState {
 public:
  TorchState(const JobPlan& plan, const StateFacts& facts, const SideBlobs& side, StepNumber step, bool optimizer)
      : plan_(plan), facts_(facts), step_(step), optimizer_(optimizer), version_(version_of(plan.torch_version)) {
    for (const auto& [name, bytes] : side) {
      if (auto value = parse_side_value(bytes))
        side_.emplace(name, std::move(*value));
      else
        left_out(name + ": " + value.error().what);
    }
    // Before torch 1.12 the counter of Adam was a plain integer.
    counter_is_tensor_ = version_ == std::pair(0U, 0U) || version_ >= std::pair(1U, 12U);
    number_storages();
  }

  Status write(StateTensors& tensors, const replica::ByteSink& sink) {
    const std::string pickle = describe();
    std::vector<std::uint64_t> bytes;
    bytes.reserve(storages_.size());
    for (const Storage& storage : storages_)
      bytes.push_back(storage.from == Storage::From::kState    ? 4 * parameters()[storage.parameter].numel
                      : storage.from == Storage::From::kScalar ? 4
                                                               : storage.bytes.size());
    return write_torch_file(
        pickle, bytes,
        [&](std::size_t index, const replica::ByteSink& out) -> Status {
          const Storage& storage = storages_[index];
          if (storage.from == Storage::From::kSide) return out(storage.bytes);
          if (storage.from == Storage::From::kState)
            return tensors.write(storage.parameter, storage.kind, ElementOrder::kMemory, out);
          std::uint8_t value[sizeof(float)];
          std::memcpy(value, &storage.value, sizeof value);
          return out(value);
        },
        sink);
  }

 private:
  [[nodiscard]] const std::vector<replica::ParameterSpec>& parameters() const { return plan_.schema.parameters; }
  [[nodiscard]] bool has_counter(std::size_t p) const {
    return plan_.schema.optimizer.type != replica::OptimizerClass::kSgd && facts_.parameters[p].counter > 0;
  }

  std::uint64_t add_storage(Storage storage) {
    storages_.push_back(storage);
    return storages_.size() - 1;
  }

  // Parameter by parameter: tensors are read, and so written, in canonical order.
  void number_storages() {
    numbers_.resize(parameters().size());
    for (std::uint32_t p = 0; p < parameters().size(); ++p) {
      if (parameters()[p].alias_of) continue;
      numbers_[p].value = add_storage({Storage::From::kState, p, 0, 0, {}});
      if (!optimizer_) continue;
      for (std::size_t k = 0; k < plan_.schema.optimizer.kinds.size(); ++k)
        if ((facts_.parameters[p].present >> k & 1) != 0)
          numbers_[p].kinds.push_back(add_storage({Storage::From::kState, p, k + 1, 0, {}}));
      if (has_counter(p) && counter_is_tensor_)
        numbers_[p].counter = add_storage(scalar(static_cast<float>(facts_.parameters[p].counter)));
    }
  }

  std::string describe() {
    pickle_.begin_dict();
    pickle_.text("model");
    describe_model();
    if (optimizer_) {
      pickle_.text("optimizer");
      describe_optimizer();
    }
    pickle_.text("gradtap");
    describe_origin();
    pickle_.end_dict();
    return pickle_.finish();
  }

  void left_out(std::string name) {
    if (left_out_.size() < kLeftOutMax) left_out_.push_back(std::move(name));
  }

  // can_say(value).
  void say(const SideValue& value) {
    using Kind = SideValue::Kind;
    switch (value.kind) {
      case Kind::kBool:
        return pickle_.boolean(value.integer != 0);
      case Kind::kInteger:
        return pickle_.signed_integer(value.integer);
      case Kind::kReal:
        return pickle_.real(value.real);
      case Kind::kText:
        return pickle_.text(value.text());
      case Kind::kTensor: {
        const std::uint64_t numel = value.bytes.size() / torch_dtype_bytes(value.dtype);
        const std::uint64_t storage = add_storage({Storage::From::kSide, 0, 0, 0, value.bytes});
        return pickle_.tensor(
            {storage, numel, value.shape, row_major_strides(value.shape), storage_class(value.dtype)});
      }
      case Kind::kDict:
        pickle_.begin_dict();
        for (const SideValue& item : value.items) say(item);
        return pickle_.end_dict();
      case Kind::kList:
        pickle_.begin_list();
        for (const SideValue& item : value.items) say(item);
        return pickle_.end_list();
      case Kind::kTuple:
        pickle_.begin_tuple();
        for (const SideValue& item : value.items) say(item);
        return pickle_.end_tuple();
      default:
        return pickle_.none();
    }
  }

  // Tensors that no gradient moves; only those that belong to the framework's own checkpoint.
  void describe_fixed(std::string_view part) {
    const auto found = side_.find(part);
    if (found == side_.end()) return;
    const std::vector<SideValue>& items = found->second.items;
    for (std::size_t i = 0; found->second.kind == SideValue::Kind::kDict && i + 1 < items.size(); i += 2) {
      const std::string name(items[i].text());
      const auto& buffers = plan_.schema.buffers;
      if (std::any_of(buffers.begin(), buffers.end(),
                      [&](const replica::BufferSpec& buffer) { return buffer.name == name && !buffer.persistent; }))
        continue;
      if (items[i + 1].kind != SideValue::Kind::kTensor || !can_say(items[i + 1])) {
        left_out(std::string(part) + "." + name);  // a large one that never changed is only its digest
        continue;
      }
      pickle_.text(name);
      say(items[i + 1]);
    }
  }

  // The groups as the trainer has them after the step; null when they are not there or do not fit.
  [[nodiscard]] const std::vector<SideValue>* groups_of_trainer() const {
    const auto found = side_.find("optimizer");
    const SideValue* const groups = found == side_.end() ? nullptr : found->second.find("groups");
    if (groups == nullptr || groups->kind != SideValue::Kind::kList || groups->items.size() != facts_.groups.size())
      return nullptr;
    return &groups->items;
  }

  void describe_trainer_group(const SideValue& group, std::size_t index) {
    for (std::size_t i = 0; i + 1 < group.items.size(); i += 2) {
      const std::string name(group.items[i].text());
      if (name.empty() || name == "params") continue;
      if (!can_say(group.items[i + 1])) {
        left_out("optimizer.groups." + std::to_string(index) + "." + name);
        continue;
      }
      pickle_.text(name);
      say(group.items[i + 1]);
    }
  }

  void tensor_like(const replica::ParameterSpec& spec, std::uint64_t storage) {
    pickle_.tensor({storage, spec.numel, spec.shape, strides_of(spec)});
  }

  void scalar_tensor(std::uint64_t storage) { pickle_.tensor({storage, 1, {}, {}}); }

  void describe_model() {
    pickle_.begin_ordered_dict();
    for (std::size_t p = 0; p < parameters().size(); ++p) {
      const replica::ParameterSpec& spec = parameters()[p];
      const std::uint64_t storage = numbers_[spec.alias_of.value_or(static_cast<std::uint32_t>(p))].value;
      pickle_.text(spec.name);
      tensor_like(spec, storage);
      for (const std::string& alias : spec.aliases) {
        pickle_.text(alias);
        tensor_like(spec, storage);
      }
    }
    describe_fixed("buffers");
    describe_fixed("frozen");
    pickle_.end_dict();
  }

  void describe_optimizer() {
    const OptimizerNumbers order = number_parameters(plan_.schema);
    pickle_.begin_dict();
    pickle_.text("state");
    pickle_.begin_dict();
    for (std::size_t p = 0; p < parameters().size(); ++p) {
      const bool has_state = !numbers_[p].kinds.empty() || has_counter(p);
      if (parameters()[p].alias_of || parameters()[p].group < 0 || !has_state) continue;
      pickle_.integer(order.of[p]);
      describe_state(p);
    }
    pickle_.end_dict();
    pickle_.text("param_groups");
    pickle_.begin_list();
    std::uint32_t first = 0;
    const std::vector<SideValue>* const trainer = groups_of_trainer();
    for (std::size_t g = 0; g < facts_.groups.size(); ++g) {
      pickle_.begin_dict();
      if (trainer != nullptr && (*trainer)[g].kind == SideValue::Kind::kDict)
        describe_trainer_group((*trainer)[g], g);
      else
        describe_group(facts_.groups[g]);
      pickle_.text("params");
      pickle_.begin_list();
      for (std::uint32_t i = 0; i < order.sizes[g]; ++i) pickle_.integer(first + i);
      pickle_.end_list();
      pickle_.end_dict();
      first += order.sizes[g];
    }
    pickle_.end_list();
    pickle_.end_dict();
  }

  void describe_state(std::size_t p) {
    pickle_.begin_dict();
    if (has_counter(p)) {
      pickle_.text("step");
      if (counter_is_tensor_)
        scalar_tensor(numbers_[p].counter);
      else
        pickle_.integer(facts_.parameters[p].counter);
    }
    std::size_t at = 0;
    for (std::size_t k = 0; k < plan_.schema.optimizer.kinds.size(); ++k) {
      if ((facts_.parameters[p].present >> k & 1) == 0) continue;
      pickle_.text(replica::state_kind_name(plan_.schema.optimizer.kinds[k]));
      tensor_like(parameters()[p], numbers_[p].kinds[at++]);
    }
    pickle_.end_dict();
  }

  void number(std::string_view key, double value) {
    pickle_.text(key);
    pickle_.real(value);
  }
  void flag(std::string_view key, bool value) {
    pickle_.text(key);
    pickle_.boolean(value);
  }
  void flag(std::string_view key, const std::optional<bool>& value) {
    if (value) return flag(key, *value);
    pickle_.text(key);
    pickle_.none();
  }

  void describe_group(const replica::GroupHyper& group) {
    pickle_.text("lr");
    if (group.lr.f32_tensor)
      scalar_tensor(add_storage(scalar(static_cast<float>(group.lr.value))));
    else
      pickle_.real(group.lr.value);
    if (plan_.schema.optimizer.type == replica::OptimizerClass::kSgd) {
      number("momentum", group.momentum);
      number("dampening", group.dampening);
      number("weight_decay", group.weight_decay);
      flag("nesterov", group.nesterov);
    } else {
      pickle_.text("betas");
      pickle_.begin_tuple();
      pickle_.real(group.beta1);
      pickle_.real(group.beta2);
      pickle_.end_tuple();
      number("eps", group.eps);
      number("weight_decay", group.weight_decay);
      flag("amsgrad", group.amsgrad);
      flag("capturable", false);  // an attach refuses it otherwise, and differentiable too
      // torch 2 has one class for both forms of decay and asks the group.
      if (plan_.schema.optimizer.type == replica::OptimizerClass::kAdamW && version_.first >= 2)
        flag("decoupled_weight_decay", true);
    }
    flag("maximize", group.maximize);
    flag("foreach", group.foreach);
    flag("differentiable", false);
    flag("fused", group.fused);
  }

  void describe_origin() {
    pickle_.begin_dict();
    pickle_.text("format");
    pickle_.integer(1);
    pickle_.text("job");
    pickle_.text(plan_.job_name);
    pickle_.text("lineage");
    pickle_.integer(plan_.lineage);
    pickle_.text("step");
    pickle_.integer(step_);
    pickle_.text("root");
    pickle_.text(to_hex(facts_.root));
    pickle_.text("torch");
    pickle_.text(plan_.torch_version);
    pickle_.text("optimizer_class");
    pickle_.text(replica::optimizer_class_name(plan_.schema.optimizer.type));
    pickle_.text("contents");
    pickle_.text(optimizer_ ? "full" : "weights-only");
    pickle_.text("groups_of");
    pickle_.text(groups_of_trainer() != nullptr ? "next step" : "step");
    pickle_.text("left_out");
    pickle_.begin_list();
    for (const std::string& name : left_out_) pickle_.text(name);
    pickle_.end_list();
    pickle_.end_dict();
  }

  const JobPlan& plan_;
  const StateFacts& facts_;
  StepNumber step_;
  bool optimizer_;
  bool counter_is_tensor_ = true;
  std::pair<unsigned, unsigned> version_;
  PickleWriter pickle_;
  std::vector<Storage> storages_;
  std::vector<Numbers> numbers_;
  std::map<std::string, SideValue, std::less<>> side_;
  std::vector<std::string> left_out_;
};

}  // namespace

Status write_torch_state(StateTensors& tensors, const StateFacts& facts, const SideBlobs& side, bool optimizer,
                         const replica::ByteSink& sink) {
  return TorchState(tensors.plan(), facts, side, tensors.step(), optimizer).write(tensors, sink);
}

}  // namespace gradtap::recovery
