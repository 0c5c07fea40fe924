// Schema: what the trainer declared at attach: parameters in canonical order, and the optimizer.
//
// Purpose: the fixed frame that shards, layouts and step messages are checked against. Plain values, shared read-only
// after validate(). Invariants after validate(): names are unique, numel is the product of the shape, order is a
// permutation, groups exist, limits hold. An alias (tied weight) keeps its index but owns no elements. Failure
// behaviour: a named Error, never a half-valid Schema.
#pragma once

#include <cstdint>
#include <optional>
#include <string>
#include <string_view>
#include <vector>

#include "common/error.h"
#include "replica/hyper.h"

namespace gradtap::replica {

struct ParameterSpec {
  std::string name;
  std::vector<std::uint64_t> shape;
  std::vector<std::uint32_t> order;  // dims from slowest to fastest in memory
  std::uint64_t numel = 0;
  bool requires_grad = true;
  std::int32_t group = -1;                // index in the optimizer's groups; -1: not optimised
  std::uint32_t group_index = 0;          // place in its group; meaningful where group_sizes are announced
  std::vector<std::string> aliases{};     // other names of the same tensor
  std::optional<std::uint32_t> alias_of;  // an earlier parameter that owns the storage

  [[nodiscard]] bool owns_elements() const { return !alias_of && numel > 0; }
  [[nodiscard]] bool has_gradient() const { return requires_grad && !alias_of; }
};

struct BufferSpec {
  std::string name;
  std::vector<std::uint64_t> shape;
  std::string dtype;
  std::uint64_t numel = 0;
  bool persistent = true;  // part of the framework's own checkpoint
};

// Per-element optimizer state. The order of enumerators is the order used by chunks and digests.
enum class StateKind : std::uint8_t { kMomentumBuffer, kExpAvg, kExpAvgSq, kMaxExpAvgSq };

[[nodiscard]] std::string_view state_kind_name(StateKind kind);
[[nodiscard]] std::optional<StateKind> state_kind_of(std::string_view name);

struct OptimizerSpec {
  OptimizerClass type = OptimizerClass::kSgd;
  std::vector<StateKind> kinds;
  std::vector<GroupHyper> groups;
  // Parameters of each group, also those that the schema does not list (frozen ones). Empty: not announced; then the
  // parameters of a group are in attach order.
  std::vector<std::uint32_t> group_sizes{};
};

struct SchemaLimits {
  std::size_t parameters = 1U << 20;
  std::size_t name_bytes = 1024;
  std::size_t dims = 32;
  std::size_t groups = 4096;
  std::size_t aliases = 1024;  // of one parameter
  std::uint64_t elements = 1ULL << 40;
};

struct Schema {
  std::vector<ParameterSpec> parameters;
  std::vector<BufferSpec> buffers;
  OptimizerSpec optimizer;

  [[nodiscard]] std::uint64_t elements() const;
};

[[nodiscard]] Status validate(const Schema& schema, const SchemaLimits& limits = {});

// The hyper-parameters of a step fit the schema: same number of groups, state kinds for the flags in use, and the
// same fused flag as at attach (the recipe was found with it).
[[nodiscard]] Status validate_groups(const OptimizerSpec& optimizer, const std::vector<GroupHyper>& groups,
                                     std::string_view where);

}  // namespace gradtap::replica
