// What a machine has of what a node's configuration asks for: cores, memory, rings, huge pages, disks, clock. Each
// function looks once and says what it saw; none waits longer than a write of 64 MiB takes. Failure behaviour: what
// cannot be looked at is a finding of its own.
#pragma once

#include "apps/commands/finding.h"
#include "common/config.h"

namespace gradtap::commands {

[[nodiscard]] Findings core_findings(const NodeConfig& config);
[[nodiscard]] Findings memory_findings(const NodeConfig& config);
[[nodiscard]] Findings ring_findings(const NodeConfig& config);
[[nodiscard]] Findings disk_findings(const NodeConfig& config);
[[nodiscard]] Findings object_findings(const NodeConfig& config);
[[nodiscard]] Findings clock_findings();

}  // namespace gradtap::commands
