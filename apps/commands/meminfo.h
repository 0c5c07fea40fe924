// meminfo: what the kernel says of memory.
//
// Any thread. Failure behaviour: 0 where the kernel does not say.
#pragma once

#include <cstdint>
#include <string>

namespace gradtap::commands {

// The number behind NAME: in /proc/meminfo, in its own unit (kB for most).
[[nodiscard]] std::uint64_t meminfo(const std::string& name);

}  // namespace gradtap::commands
