// Logging: one line an event on standard error, text first, then key=value fields that tools can split.
//
// Purpose: a thin wrapper, so that no other file names the logging library. Threads: any. Failure: none (a line that
// cannot be written is lost). Hot paths count (common/metrics.h); they do not log.
#pragma once

#include <concepts>
#include <cstdint>
#include <initializer_list>
#include <string>
#include <string_view>

namespace gradtap {

enum class LogLevel : std::uint8_t { kDebug, kInfo, kWarn, kError };

[[nodiscard]] std::string_view log_level_name(LogLevel level);

struct LogField {
  std::string key;
  std::string value;
  LogField(std::string_view name, std::string_view text) : key(name), value(text) {}
  LogField(std::string_view name, const char* text) : key(name), value(text) {}
  LogField(std::string_view name, bool flag) : key(name), value(flag ? "true" : "false") {}
  template <std::integral T>
    requires(!std::same_as<T, bool>)
  LogField(std::string_view name, T number) : key(name), value(std::to_string(number)) {}
};

// Lines below `level` are dropped. Call once at start; before that lines of kInfo and above are written.
void log_init(LogLevel level, std::string_view node_name);

void log_line(LogLevel level, std::string_view text, std::initializer_list<LogField> fields = {});

inline void log_debug(std::string_view text, std::initializer_list<LogField> fields = {}) {
  log_line(LogLevel::kDebug, text, fields);
}
inline void log_info(std::string_view text, std::initializer_list<LogField> fields = {}) {
  log_line(LogLevel::kInfo, text, fields);
}
inline void log_warn(std::string_view text, std::initializer_list<LogField> fields = {}) {
  log_line(LogLevel::kWarn, text, fields);
}
inline void log_error(std::string_view text, std::initializer_list<LogField> fields = {}) {
  log_line(LogLevel::kError, text, fields);
}

// The line without time and level: `text key=value key="a b"`; control characters, quotes and backslashes are escaped,
// so that a hostile value cannot forge a line.
[[nodiscard]] std::string log_text(std::string_view text, std::initializer_list<LogField> fields);

}  // namespace gradtap
