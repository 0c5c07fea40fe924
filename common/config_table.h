// The tables behind NodeConfig and ClusterConfig: one row a key, with accessor, range, and meaning. Internal to the
// parsers.
//
// Constant data, any thread. A key that is not in a row does not exist: parser and documentation both walk these rows.
#pragma once

#include <cstdint>
#include <span>
#include <string_view>
#include <variant>
#include <vector>

#include "common/cluster_config.h"
#include "common/config.h"

namespace gradtap::config_detail {

template <class Owner>
struct UintField {
  std::uint64_t& (*at)(Owner&);
  std::uint64_t min;
  std::uint64_t max;
};
template <class Owner>
struct BoolField {
  bool& (*at)(Owner&);
};
enum class TextRule : std::uint8_t { kAny, kNotEmpty, kName, kHostPort, kAddressPort, kHttp };
template <class Owner>
struct TextField {
  std::string& (*at)(Owner&);
  TextRule rule;
};
// One of a closed list of words; index in the list = value.
template <class Owner>
struct ChoiceField {
  std::span<const std::string_view> words;
  void (*set)(Owner&, std::size_t index);
  std::size_t (*get)(Owner&);
};
template <class Owner>
struct AddressesField {
  std::vector<std::string>& (*at)(Owner&);
};
template <class Owner>
struct RanksField {  // "all" or a list of ranks
  std::vector<std::uint64_t>& (*at)(Owner&);
};

template <class Owner>
struct Row {
  std::string_view section;
  std::string_view key;
  std::string_view meaning;
  std::variant<UintField<Owner>, BoolField<Owner>, TextField<Owner>, ChoiceField<Owner>, AddressesField<Owner>,
               RanksField<Owner>>
      field;
  bool required = false;
};

[[nodiscard]] std::span<const Row<NodeConfig>> node_rows();
[[nodiscard]] std::span<const Row<JobSection>> job_rows();
[[nodiscard]] std::span<const Row<ClusterConfig>> cluster_rows();  // of the cluster file; section "" is its top
[[nodiscard]] std::span<const Row<MemberSection>> member_rows();

}  // namespace gradtap::config_detail
