// parse_integer: a decimal integer out of untrusted text. Pure; any thread.
//
// Invariant: every integer has exactly one text (no sign but the minus of a negative number, no leading zero, nothing
// before or after), so that two different keys never name one thing. Failure: nothing is returned.
#pragma once

#include <charconv>
#include <concepts>
#include <optional>
#include <string_view>
#include <system_error>

namespace gradtap {

template <std::integral T>
[[nodiscard]] std::optional<T> parse_integer(std::string_view text) {
  const bool negative = text.starts_with('-');
  const std::string_view digits = text.substr(negative ? 1 : 0);
  if (digits.starts_with('0') && (negative || digits.size() > 1)) return std::nullopt;
  T value{};
  const auto [end, error] = std::from_chars(text.data(), text.data() + text.size(), value);
  if (error != std::errc{} || end != text.data() + text.size()) return std::nullopt;
  return value;
}

}  // namespace gradtap
