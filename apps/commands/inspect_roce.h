// The half of `gradtap inspect` that reads captures of RoCE traffic.
#pragma once

#include <optional>

#include "apps/commands/commands.h"
#include "dataplane/nccl_survey.h"

namespace gradtap::commands {

// `survey` has seen every frame of the file, up to `damage`. Prints; returns the exit code.
int inspect_roce(const InspectOptions& options, const dataplane::NcclSurvey& survey,
                 const std::optional<Error>& damage);

}  // namespace gradtap::commands
