#include "common/memory_ledger.h"

#include <algorithm>

#include <fmt/format.h>

namespace gradtap {

namespace {

constexpr std::array<std::string_view, kMemoryAccounts> kAccountNames{
    "program", "packets",  "store", "op_buffers", "limbo",  "reorder",  "retention",
    "shards",  "versions", "peers", "requests",   "points", "measuring"};

}  // namespace

std::string_view memory_account_name(MemoryAccount account) {
  return kAccountNames[static_cast<std::size_t>(account)];
}

MemoryLease::~MemoryLease() {
  if (ledger_) ledger_->give_back(account_, bytes_);
}

bool MemoryLease::grow(std::uint64_t bytes) {
  if (ledger_ && !ledger_->take(account_, bytes)) return false;
  bytes_ += bytes;
  return true;
}

MemoryLedger::MemoryLedger(std::uint64_t limit_bytes) : limit_(std::min(limit_bytes, kUnlimited)) {}

void MemoryLedger::Account::added(std::uint64_t now) {
  std::uint64_t seen = peak.load(std::memory_order_relaxed);
  while (seen < now && !peak.compare_exchange_weak(seen, now, std::memory_order_relaxed)) {
  }
}

bool MemoryLedger::take(MemoryAccount account, std::uint64_t bytes) {
  Account& own = accounts_[static_cast<std::size_t>(account)];
  std::uint64_t taken = total_.in_use.load(std::memory_order_relaxed);
  do {
    if (bytes > limit_ - taken) {
      own.refused.fetch_add(1, std::memory_order_relaxed);
      total_.refused.fetch_add(1, std::memory_order_relaxed);
      return false;
    }
  } while (!total_.in_use.compare_exchange_weak(taken, taken + bytes, std::memory_order_relaxed));
  total_.added(taken + bytes);
  own.added(own.in_use.fetch_add(bytes, std::memory_order_relaxed) + bytes);
  return true;
}

void MemoryLedger::give_back(MemoryAccount account, std::uint64_t bytes) {
  accounts_[static_cast<std::size_t>(account)].in_use.fetch_sub(bytes, std::memory_order_relaxed);
  total_.in_use.fetch_sub(bytes, std::memory_order_relaxed);
}

Result<MemoryLease> MemoryLedger::lease(MemoryAccount account, std::uint64_t bytes, std::string_view what) {
  if (take(account, bytes)) return MemoryLease(shared_from_this(), account, bytes);
  const std::uint64_t taken = total_.in_use.load(std::memory_order_relaxed);
  return fail(ErrorCode::kMemoryExhausted, fmt::format("no memory is left for {}", what), "limits.memory_bytes",
              fmt::format("{} bytes free", bytes),
              fmt::format("{} of {} bytes free", limit_ - std::min(limit_, taken), limit_),
              "raise limits.memory_bytes if the machine has more, or add nodes; gradtap limits says what takes it");
}

MemoryLedger::Usage MemoryLedger::Account::usage() const {
  return {in_use.load(std::memory_order_relaxed), peak.load(std::memory_order_relaxed),
          refused.load(std::memory_order_relaxed)};
}

MemoryLedger::Usage MemoryLedger::usage(MemoryAccount account) const {
  return accounts_[static_cast<std::size_t>(account)].usage();
}

MemoryLedger::Usage MemoryLedger::total() const {
  return total_.usage();
}

}  // namespace gradtap
