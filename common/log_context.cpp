#include "common/log_context.h"

#include <mutex>

#include "common/log.h"

namespace gradtap {

namespace {

struct ContextField {
  std::string start;  // " job=", as it stands in a line
  std::string text;   // " job=gpt"
};

std::mutex context_mutex;
std::vector<ContextField> context;  // under context_mutex

}  // namespace

void set_log_context(std::vector<std::pair<std::string, std::string>> fields) {
  std::vector<ContextField> next;
  for (const auto& [key, value] : fields) next.push_back({" " + key + "=", log_text("", {{key, value}})});
  const std::lock_guard lock(context_mutex);
  context = std::move(next);
}

std::string with_log_context(std::string line) {
  const std::lock_guard lock(context_mutex);
  for (const ContextField& field : context)
    if (line.find(field.start) == std::string::npos) line += field.text;
  return line;
}

}  // namespace gradtap
