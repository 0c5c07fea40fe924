// What the mirror port delivers: listens for some seconds and judges it against the job (dataplane/mirror_sample.h).
//
// Needs CAP_NET_RAW; runs beside a node on the same interface without taking anything from it. Failure behaviour: what
// cannot be listened to is a finding of its own.
#pragma once

#include "apps/commands/finding.h"
#include "common/config.h"
#include "dataplane/mirror_sample.h"

namespace gradtap::commands {

[[nodiscard]] Findings mirror_findings(const NodeConfig& config, unsigned seconds);

}  // namespace gradtap::commands
