// MemoryReport: what of a node's memory is taken, as status shows it. Pure but for the size of the process; any thread.
#pragma once

#include <nlohmann/json.hpp>

#include "common/memory_ledger.h"

namespace gradtap::actors {

// {limit_bytes, in_use_bytes, peak_bytes, refused, job_bytes, resident_bytes, accounts: {name: {in_use_bytes,
// peak_bytes, refused}}}. job_bytes: in use but for the fixed amounts. resident_bytes is what the kernel counts for the
// process, pages of files among it.
[[nodiscard]] nlohmann::json memory_report(const MemoryLedger& ledger);

}  // namespace gradtap::actors
