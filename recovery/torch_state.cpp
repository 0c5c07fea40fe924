#include "recovery/torch_state.h"

#include <cstring>
#include <utility>

#include "common/number_text.h"
#include "recovery/pickle_writer.h"
#include "recovery/torch_file.h"

namespace gradtap::recovery {

namespace {

// Where the bytes of a storage come from: a tensor of the state, or one float32 (a step counter, a learning rate).
struct Storage {
  std::uint32_t parameter = 0;
  std::size_t kind = 0;
  bool scalar = false;
  float value = 0;
};

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
  TorchState(const JobPlan& plan, const StateFacts& facts, StepNumber step, bool optimizer)
      : plan_(plan), facts_(facts), step_(step), optimizer_(optimizer), version_(version_of(plan.torch_version)) {
    // Before torch 1.12 the counter of Adam was a plain integer.
    counter_is_tensor_ = version_ == std::pair(0U, 0U) || version_ >= std::pair(1U, 12U);
    number_storages();
  }

  Status write(StateTensors& tensors, const replica::ByteSink& sink) {
    const std::string pickle = describe();
    std::vector<std::uint64_t> bytes;
    bytes.reserve(storages_.size());
    for (const Storage& storage : storages_)
      bytes.push_back(4 * (storage.scalar ? 1 : plan_.schema.parameters[storage.parameter].numel));
    return write_torch_file(
        pickle, bytes,
        [&](std::size_t index, const replica::ByteSink& out) -> Status {
          const Storage& storage = storages_[index];
          if (!storage.scalar) return tensors.write(storage.parameter, storage.kind, ElementOrder::kMemory, out);
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
      numbers_[p].value = add_storage({p, 0, false, 0});
      if (!optimizer_) continue;
      for (std::size_t k = 0; k < plan_.schema.optimizer.kinds.size(); ++k)
        if ((facts_.parameters[p].present >> k & 1) != 0)
          numbers_[p].kinds.push_back(add_storage({p, k + 1, false, 0}));
      if (has_counter(p) && counter_is_tensor_)
        numbers_[p].counter = add_storage({p, 0, true, static_cast<float>(facts_.parameters[p].counter)});
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
    for (std::size_t g = 0; g < facts_.groups.size(); ++g) {
      pickle_.begin_dict();
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
      scalar_tensor(add_storage({0, 0, true, static_cast<float>(group.lr.value)}));
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
};

}  // namespace

Status write_torch_state(StateTensors& tensors, const StateFacts& facts, bool optimizer,
                         const replica::ByteSink& sink) {
  return TorchState(tensors.plan(), facts, tensors.step(), optimizer).write(tensors, sink);
}

}  // namespace gradtap::recovery
