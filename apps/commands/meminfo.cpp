#include "apps/commands/meminfo.h"

#include <fstream>

namespace gradtap::commands {

std::uint64_t meminfo(const std::string& name) {
  std::ifstream in("/proc/meminfo");
  for (std::string word; in >> word;) {
    std::uint64_t value = 0;
    if (word == name + ":" && in >> value) return value;
  }
  return 0;
}

}  // namespace gradtap::commands
