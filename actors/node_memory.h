// NodeMemory: the ledger of a node, and what the node takes of it in any case.
//
// Purpose: `limits.memory_bytes` (0: three quarters of the machine's) is for what grows with the job; the program, the
// packet library, the database and the measurement at the start take fixed amounts beside it, so that the ledger's
// bound is what the process may take at most. Pure but for the size of the machine; any thread. Failure behaviour:
// none.
#pragma once

#include <cstdint>
#include <memory>

#include "common/config.h"
#include "common/memory_ledger.h"

namespace gradtap::actors {

// What jobs may take.
[[nodiscard]] std::uint64_t job_memory_bytes(const NodeConfig& config);
// A ledger that holds that, and the fixed amounts, which are taken.
[[nodiscard]] std::shared_ptr<MemoryLedger> node_memory(const NodeConfig& config);

}  // namespace gradtap::actors
