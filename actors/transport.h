// Transport: all that a tap needs to know of what carries a job's collectives.
//
// Made once at the start of a node from its configuration; immutable, shared by reference. Everything behind it is the
// same for every transport: assembly, binding, shards.
#pragma once

#include <functional>
#include <memory>

#include "common/clock.h"
#include "common/config.h"
#include "common/error.h"
#include "common/memory_ledger.h"
#include "dataplane/coverage_plan.h"
#include "dataplane/decoder.h"
#include "dataplane/flow_directory.h"
#include "dataplane/schedule.h"

namespace gradtap::actors {

struct Transport {
  dataplane::RingDirection direction{};
  std::shared_ptr<const dataplane::Schedule> schedule;
  std::function<std::unique_ptr<dataplane::Decoder>(std::uint16_t queue)> make_decoder;
};

// What the configuration says of NCCL and cannot be is refused by name. `memory`: for frames that wait; may be null.
[[nodiscard]] Result<Transport> make_transport(const TapSection& tap, const JobSection& job,
                                               const std::shared_ptr<dataplane::FlowDirectory>& directory,
                                               const std::shared_ptr<const Clock>& clock,
                                               const std::shared_ptr<MemoryLedger>& memory);

}  // namespace gradtap::actors
