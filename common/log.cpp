#include "common/log.h"

#include <memory>

#include <fmt/format.h>
#include <spdlog/sinks/stdout_sinks.h>
#include <spdlog/spdlog.h>

#include "common/log_context.h"

namespace gradtap {
namespace {

spdlog::logger& logger() {
  static const std::shared_ptr<spdlog::logger> instance = [] {
    auto made = std::make_shared<spdlog::logger>("gradtap", std::make_shared<spdlog::sinks::stderr_sink_mt>());
    made->set_pattern("%Y-%m-%dT%H:%M:%S.%e%z %l %v");
    made->flush_on(spdlog::level::debug);
    return made;
  }();
  return *instance;
}

spdlog::level::level_enum native(LogLevel level) {
  switch (level) {
    case LogLevel::kDebug:
      return spdlog::level::debug;
    case LogLevel::kInfo:
      return spdlog::level::info;
    case LogLevel::kWarn:
      return spdlog::level::warn;
    case LogLevel::kError:
      return spdlog::level::err;
  }
  return spdlog::level::err;
}

void append_escaped(std::string& out, std::string_view value) {
  for (const char c : value) {
    const auto byte = static_cast<unsigned char>(c);
    if (c == '"' || c == '\\') {
      out += '\\';
      out += c;
    } else if (byte < 0x20 || byte == 0x7F) {
      out += fmt::format("\\x{:02x}", byte);
    } else {
      out += c;
    }
  }
}

void append_value(std::string& out, std::string_view value) {
  const bool plain = !value.empty() && value.find_first_of(" \"\\=") == std::string_view::npos;
  if (!plain) out += '"';
  append_escaped(out, value);
  if (!plain) out += '"';
}

}  // namespace

std::string_view log_level_name(LogLevel level) {
  switch (level) {
    case LogLevel::kDebug:
      return "debug";
    case LogLevel::kInfo:
      return "info";
    case LogLevel::kWarn:
      return "warn";
    case LogLevel::kError:
      return "error";
  }
  return "error";
}

std::string log_text(std::string_view text, std::initializer_list<LogField> fields) {
  std::string out;
  append_escaped(out, text);
  for (const LogField& field : fields) {
    out += ' ';
    append_escaped(out, field.key);
    out += '=';
    append_value(out, field.value);
  }
  return out;
}

void log_init(LogLevel level, std::string_view node_name) {
  logger().set_level(native(level));
  std::string name;
  append_escaped(name, node_name);
  // A percent sign would start a pattern flag.
  std::string safe;
  for (const char c : name) safe += c == '%' ? std::string("%%") : std::string(1, c);
  logger().set_pattern("%Y-%m-%dT%H:%M:%S.%e%z %l " + safe + ": %v");
}

void log_line(LogLevel level, std::string_view text, std::initializer_list<LogField> fields) {
  if (!logger().should_log(native(level))) return;
  logger().log(native(level), "{}", with_log_context(log_text(text, fields)));
}

}  // namespace gradtap
