// Reading TOML by a table of rows: types, ranges, unknown and missing keys. Internal to the parsers of configuration
// files (config.cpp, cluster_config.cpp).
//
// Functions without state, any thread. Failure: the first wrong key as an Error whose `where` is file:line:key.
#pragma once

// The distribution's library is built with exceptions: these files compile their own parser without.
#undef TOML_HEADER_ONLY
#undef TOML_SHARED_LIB
#define TOML_HEADER_ONLY 1
#define TOML_EXCEPTIONS 0

#include <algorithm>
#include <array>
#include <cstdio>
#include <memory>
#include <set>
#include <string>
#include <string_view>
#include <vector>

#include <arpa/inet.h>
#include <fmt/format.h>
#include <toml++/toml.h>

#include "common/config.h"
#include "common/config_table.h"

namespace gradtap::config_detail {

inline constexpr std::size_t kConfigBytesMax = std::size_t{1} << 20;

inline std::string_view type_name(const toml::node& node) {
  switch (node.type()) {
    case toml::node_type::table:
      return "a table";
    case toml::node_type::array:
      return "a list";
    case toml::node_type::string:
      return "a string";
    case toml::node_type::integer:
      return "an integer";
    case toml::node_type::floating_point:
      return "a floating-point number";
    case toml::node_type::boolean:
      return "a boolean";
    default:
      return "a date or time";
  }
}

struct Place {
  std::string_view file;
  std::string_view section;
  std::string_view key;
  [[nodiscard]] std::string at(std::uint64_t line) const {
    return fmt::format("{}:{}:{}{}{}", file, line, section, section.empty() ? "" : ".", key);
  }
  [[nodiscard]] std::string at(const toml::node& node) const { return at(node.source().begin.line); }
};

inline std::unexpected<Error> wrong_type(const Place& place, const toml::node& node, std::string_view expected) {
  return fail(ErrorCode::kConfigWrongType, "value has a wrong type", place.at(node), std::string(expected),
              std::string(type_name(node)), fmt::format("write {} = with {}", place.key, expected));
}

inline std::unexpected<Error> impossible(const Place& place, const toml::node& node, std::string expected,
                                         std::string actual) {
  std::string remedy = fmt::format("give {} a value like the expected one", place.key);
  return fail(ErrorCode::kConfigImpossibleValue, "value is impossible", place.at(node), std::move(expected),
              std::move(actual), std::move(remedy));
}

inline bool is_name(std::string_view text) {
  return !text.empty() && text.size() <= 64 && std::all_of(text.begin(), text.end(), [](char c) {
    return (c >= 'a' && c <= 'z') || (c >= 'A' && c <= 'Z') || (c >= '0' && c <= '9') || c == '.' || c == '_' ||
           c == '-';
  });
}

inline bool is_address(const std::string& text) {
  std::array<std::uint8_t, 16> bytes{};
  return ::inet_pton(AF_INET, text.c_str(), bytes.data()) == 1 ||
         ::inet_pton(AF_INET6, text.c_str(), bytes.data()) == 1;
}

inline Status set_uint(std::uint64_t& target, std::uint64_t min, std::uint64_t max, const Place& place,
                       const toml::node& node) {
  const auto* value = node.as_integer();
  if (value == nullptr) return wrong_type(place, node, "an integer");
  const std::int64_t number = value->get();
  if (number < 0 || static_cast<std::uint64_t>(number) < min || static_cast<std::uint64_t>(number) > max)
    return impossible(place, node, fmt::format("{}..{}", min, max), fmt::format("{}", number));
  target = static_cast<std::uint64_t>(number);
  return {};
}

inline Status set_text(std::string& target, TextRule rule, const Place& place, const toml::node& node) {
  const auto* value = node.as_string();
  if (value == nullptr) return wrong_type(place, node, "a string");
  const std::string& text = value->get();
  if (text.find('\0') != std::string::npos) return impossible(place, node, "text without a zero byte", "a zero byte");
  if (rule == TextRule::kNotEmpty && text.empty()) return impossible(place, node, "text", "an empty string");
  if (rule == TextRule::kName && !is_name(text))
    return impossible(place, node, "1 to 64 of A-Z a-z 0-9 . _ -", fmt::format("\"{}\"", text));
  if (rule == TextRule::kAddressPort) {
    const auto parsed = parse_host_port(text);
    if (!parsed || parsed->port == 0 || !is_address(parsed->host))
      return impossible(place, node, "address:port with an IP address and a port 1..65535",
                        fmt::format("\"{}\"", text));
  }
  if (rule == TextRule::kHttp) {
    constexpr std::string_view kScheme = "http://";
    const auto parsed = text.starts_with(kScheme) ? parse_host_port(std::string_view(text).substr(kScheme.size()))
                                                  : Result<HostPort>(fail(ErrorCode::kBadText, "no scheme"));
    if (!parsed || parsed->port == 0)
      return impossible(place, node, "http://host:port, port 1..65535", fmt::format("\"{}\"", text));
  }
  if (rule == TextRule::kHostPort)
    if (const auto parsed = parse_host_port(text); !parsed)
      return impossible(place, node, "host:port, port 0..65535", fmt::format("\"{}\"", text));
  target = text;
  return {};
}

inline Status set_addresses(std::vector<std::string>& target, const Place& place, const toml::node& node) {
  const auto* list = node.as_array();
  if (list == nullptr) return wrong_type(place, node, "a list of strings");
  std::set<std::string> seen;
  for (const toml::node& element : *list) {
    const auto* text = element.as_string();
    if (text == nullptr) return wrong_type(place, element, "a list of strings");
    if (!is_address(text->get()))
      return impossible(place, element, "an IP address", fmt::format("\"{}\"", text->get()));
    if (!seen.insert(text->get()).second)
      return impossible(place, element, "a different address for every rank", fmt::format("\"{}\" twice", text->get()));
    target.push_back(text->get());
  }
  if (target.size() < 2 || target.size() > 4096)
    return impossible(place, node, "2 to 4096 addresses", fmt::format("{}", target.size()));
  return {};
}

inline Status set_ranks(std::vector<std::uint64_t>& target, const Place& place, const toml::node& node) {
  if (const auto* text = node.as_string()) {
    if (text->get() == "all") return {};
    return impossible(place, node, "\"all\" or a list of ranks", fmt::format("\"{}\"", text->get()));
  }
  const auto* list = node.as_array();
  if (list == nullptr) return wrong_type(place, node, "\"all\" or a list of integers");
  for (const toml::node& element : *list) {
    std::uint64_t rank = 0;
    GRADTAP_TRY(set_uint(rank, 0, 4095, place, element));
    if (std::find(target.begin(), target.end(), rank) != target.end())
      return impossible(place, element, "each rank once", fmt::format("{} twice", rank));
    target.push_back(rank);
  }
  if (target.empty()) return impossible(place, node, "\"all\" or at least one rank", "an empty list");
  return {};
}

template <class Owner>
Status set(const Row<Owner>& row, Owner& owner, std::string_view file, const toml::node& node) {
  const Place place{file, row.section, row.key};
  return std::visit(
      [&]<class Field>(const Field& field) -> Status {
        if constexpr (std::is_same_v<Field, UintField<Owner>>) {
          return set_uint(field.at(owner), field.min, field.max, place, node);
        } else if constexpr (std::is_same_v<Field, BoolField<Owner>>) {
          const auto* value = node.as_boolean();
          if (value == nullptr) return wrong_type(place, node, "a boolean");
          field.at(owner) = value->get();
          return {};
        } else if constexpr (std::is_same_v<Field, TextField<Owner>>) {
          return set_text(field.at(owner), field.rule, place, node);
        } else if constexpr (std::is_same_v<Field, ChoiceField<Owner>>) {
          const auto* value = node.as_string();
          if (value == nullptr) return wrong_type(place, node, "a string");
          for (std::size_t i = 0; i < field.words.size(); ++i)
            if (field.words[i] == value->get()) {
              field.set(owner, i);
              return {};
            }
          return impossible(place, node, fmt::format("one of {}", fmt::join(field.words, ", ")),
                            fmt::format("\"{}\"", value->get()));
        } else if constexpr (std::is_same_v<Field, AddressesField<Owner>>) {
          return set_addresses(field.at(owner), place, node);
        } else {
          return set_ranks(field.at(owner), place, node);
        }
      },
      row.field);
}

// Levenshtein distance, for "did you mean".
inline std::size_t distance(std::string_view a, std::string_view b) {
  std::vector<std::size_t> row(b.size() + 1);
  for (std::size_t j = 0; j <= b.size(); ++j) row[j] = j;
  for (std::size_t i = 1; i <= a.size(); ++i) {
    std::size_t diagonal = row[0];
    row[0] = i;
    for (std::size_t j = 1; j <= b.size(); ++j) {
      const std::size_t above = row[j];
      row[j] = std::min({above + 1, row[j - 1] + 1, diagonal + (a[i - 1] == b[j - 1] ? 0U : 1U)});
      diagonal = above;
    }
  }
  return row[b.size()];
}

inline std::unexpected<Error> unknown(std::string where, std::string_view found,
                                      const std::vector<std::string_view>& known) {
  const std::string_view shown = found.substr(0, 64);
  std::string_view nearest;
  for (const std::string_view word : known)
    if (nearest.empty() || distance(shown, word) < distance(shown, nearest)) nearest = word;
  return fail(ErrorCode::kConfigUnknownKey, "key is unknown", std::move(where), {}, std::string(shown),
              nearest.empty() ? "remove it" : fmt::format("did you mean {}? else remove it", nearest));
}

template <class Owner>
Status parse_table(std::span<const Row<Owner>> rows, std::string_view section, Owner& owner, std::string_view file,
                   const toml::table& table, std::string_view except = {}) {
  for (const auto& [key, node] : table) {
    if (key.str() == except) continue;
    const auto row = std::find_if(rows.begin(), rows.end(), [&](const Row<Owner>& candidate) {
      return candidate.section == section && candidate.key == key.str();
    });
    if (row == rows.end()) {
      std::vector<std::string_view> known;
      for (const auto& candidate : rows)
        if (candidate.section == section) known.push_back(candidate.key);
      return unknown(Place{file, section, key.str()}.at(key.source().begin.line), key.str(), known);
    }
    GRADTAP_TRY(set(*row, owner, file, node));
  }
  for (const auto& row : rows)
    if (row.section == section && row.required && !table.contains(row.key))
      return fail(ErrorCode::kConfigMissingKey, "key is missing",
                  Place{file, section, row.key}.at(table.source().begin.line), std::string(row.meaning), "nothing",
                  section.empty() ? fmt::format("add {} to the file", row.key)
                                  : fmt::format("add {} to [[{}]]", row.key, section));
  return {};
}

// Calls each(table) for every [[name]] of the file.
template <class Each>
Status parse_list(std::string_view name, std::size_t count_max, const std::string& where, const toml::node& node,
                  Each each) {
  const auto wrong = [&](const toml::node& found) {
    return fail(ErrorCode::kConfigWrongType, "value has a wrong type", where, fmt::format("[[{}]] tables", name),
                std::string(type_name(found)), fmt::format("write [[{}]] with two brackets", name));
  };
  const auto* list = node.as_array();
  if (list == nullptr) return wrong(node);
  if (list->size() > count_max)
    return fail(ErrorCode::kConfigImpossibleValue, fmt::format("too many [[{}]] tables", name), where,
                fmt::format("at most {}", count_max), fmt::format("{}", list->size()), "remove some");
  for (const toml::node& element : *list) {
    const auto* table = element.as_table();
    if (table == nullptr) return wrong(element);
    GRADTAP_TRY(each(*table));
  }
  return {};
}

inline Result<toml::table> parse_toml(std::string_view text, std::string_view file) {
  if (text.size() > kConfigBytesMax)
    return fail(ErrorCode::kLimitReached, "configuration is too large", std::string(file),
                fmt::format("at most {} bytes", kConfigBytesMax), fmt::format("{} bytes", text.size()));
  toml::parse_result parsed = toml::parse(text, std::string(file));
  if (!parsed) {
    const auto& error = parsed.error();
    return fail(ErrorCode::kConfigSyntax, "not TOML",
                fmt::format("{}:{}:{}", file, error.source().begin.line, error.source().begin.column), {},
                std::string(error.description()), "correct this line");
  }
  return std::move(parsed).table();
}

// The text of a file; one byte more than allowed is enough for parse_toml to refuse a longer one.
inline Result<std::string> read_config_file(const std::string& path, std::string remedy) {
  const std::unique_ptr<std::FILE, int (*)(std::FILE*)> file(std::fopen(path.c_str(), "rb"), &std::fclose);
  std::string text(kConfigBytesMax + 1, '\0');
  if (file != nullptr) text.resize(std::fread(text.data(), 1, text.size(), file.get()));
  if (file == nullptr || std::ferror(file.get()) != 0)
    return fail(ErrorCode::kFileUnreadable, "configuration cannot be read", path, "a readable file", {},
                std::move(remedy));
  return text;
}

}  // namespace gradtap::config_detail
