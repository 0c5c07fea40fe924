#include "storage/kill_points.h"

#include <csignal>
#include <cstdlib>

#include <unistd.h>

namespace gradtap::storage {

EnvironmentKillPoints::EnvironmentKillPoints() {
  const char* text = std::getenv("GRADTAP_KILL_POINT");
  if (text == nullptr || *text == 0) return;
  name_ = text;
  countdown_ = 1;
  if (const std::size_t colon = name_.find(':'); colon != std::string::npos) {
    countdown_ = std::strtoull(name_.c_str() + colon + 1, nullptr, 10);
    name_.resize(colon);
  }
}

void EnvironmentKillPoints::reached(std::string_view name) {
  if (name != name_ || countdown_.load() == 0) return;
  if (countdown_.fetch_sub(1) == 1) ::kill(::getpid(), SIGKILL);
}

}  // namespace gradtap::storage
