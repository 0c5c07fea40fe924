#include "actors/memory_report.h"

#include <algorithm>
#include <fstream>
#include <string>

#include <unistd.h>

namespace gradtap::actors {

namespace {

nlohmann::json usage_json(const MemoryLedger::Usage& usage) {
  return {{"in_use_bytes", usage.in_use_bytes}, {"peak_bytes", usage.peak_bytes}, {"refused", usage.refused}};
}

// The second number of the file, in pages.
std::uint64_t resident_bytes() {
  std::ifstream in("/proc/self/statm");
  std::uint64_t size = 0;
  std::uint64_t resident = 0;
  in >> size >> resident;
  return in ? resident * static_cast<std::uint64_t>(::sysconf(_SC_PAGESIZE)) : 0;
}

}  // namespace

nlohmann::json memory_report(const MemoryLedger& ledger) {
  nlohmann::json report = usage_json(ledger.total());
  report["limit_bytes"] = ledger.limit_bytes();
  report["resident_bytes"] = resident_bytes();
  std::uint64_t fixed = 0;
  for (const MemoryAccount account :
       {MemoryAccount::kProgram, MemoryAccount::kPackets, MemoryAccount::kStore, MemoryAccount::kMeasuring})
    fixed += ledger.usage(account).in_use_bytes;
  report["job_bytes"] = ledger.total().in_use_bytes - std::min(fixed, ledger.total().in_use_bytes);
  nlohmann::json accounts = nlohmann::json::object();
  for (std::size_t i = 0; i < kMemoryAccounts; ++i) {
    const auto account = static_cast<MemoryAccount>(i);
    accounts[std::string(memory_account_name(account))] = usage_json(ledger.usage(account));
  }
  report["accounts"] = std::move(accounts);
  return report;
}

}  // namespace gradtap::actors
