// MemoryLedger: what of this node's memory is taken, and by what; whoever needs much takes it here first.
//
// Purpose: one bound for all that grows with the job, the mirror or its callers (`limits.memory_bytes`): op buffers,
// waiting frames, shards, versions on their way to the disk, bodies, answers of peers. Taken before it is allocated, so
// that the sum cannot pass the bound; what is taken and the bound are told in status and by `gradtap limits`.
// Ownership: shared by those who take; it owns no memory itself. Threads: any; atomics, no lock.
// Invariants: the accounts' sum is at most the limit; a MemoryLease gives back exactly what it took.
// Failure behaviour: take() yields false, lease() MEMORY_EXHAUSTED; both are counted for the account.
#pragma once

#include <array>
#include <atomic>
#include <cstddef>
#include <cstdint>
#include <memory>
#include <string>
#include <string_view>
#include <utility>

#include "common/error.h"

namespace gradtap {

enum class MemoryAccount : std::uint8_t {
  kProgram,    // code, stacks, tables, texts: a fixed amount
  kPackets,    // the packet library, and the kernel's rings: a fixed amount
  kStore,      // the database's write buffers, caches and tables: a fixed amount
  kOps,        // op buffers of the assemblers
  kLimbo,      // bytes of ops whose place is not known yet
  kReorder,    // frames that wait for an earlier one
  kRetention,  // gradients kept for owners that are away
  kShards,     // parameters and optimizer state
  kVersions,   // full versions on their way to the disk or to another node
  kPeers,      // requests to other nodes, requests of theirs, and the answers
  kRequests,   // bodies of HTTP requests
  kPoints,     // recovery points being written or read, state being exported
  kMeasuring,  // the measurement at the start: a fixed amount
  kCount,
};
inline constexpr std::size_t kMemoryAccounts = static_cast<std::size_t>(MemoryAccount::kCount);
[[nodiscard]] std::string_view memory_account_name(MemoryAccount account);  // "op_buffers"

class MemoryLedger;

// What one thing has taken; gives it back when it dies. Moved, not copied.
class MemoryLease {
 public:
  MemoryLease() = default;
  MemoryLease(MemoryLease&& other) noexcept { swap(other); }
  MemoryLease& operator=(MemoryLease&& other) noexcept {
    MemoryLease taken(std::move(other));
    swap(taken);
    return *this;
  }
  ~MemoryLease();

  // More for the same thing; false: it keeps what it had.
  [[nodiscard]] bool grow(std::uint64_t bytes);
  [[nodiscard]] std::uint64_t bytes() const { return bytes_; }

 private:
  friend class MemoryLedger;
  MemoryLease(std::shared_ptr<MemoryLedger> ledger, MemoryAccount account, std::uint64_t bytes)
      : ledger_(std::move(ledger)), account_(account), bytes_(bytes) {}
  void swap(MemoryLease& other) noexcept {
    std::swap(ledger_, other.ledger_);
    std::swap(account_, other.account_);
    std::swap(bytes_, other.bytes_);
  }
  std::shared_ptr<MemoryLedger> ledger_;
  MemoryAccount account_ = MemoryAccount::kProgram;
  std::uint64_t bytes_ = 0;
};

class MemoryLedger : public std::enable_shared_from_this<MemoryLedger> {
 public:
  static constexpr std::uint64_t kUnlimited = ~std::uint64_t{0} >> 1;

  explicit MemoryLedger(std::uint64_t limit_bytes = kUnlimited);

  [[nodiscard]] bool take(MemoryAccount account, std::uint64_t bytes);
  void give_back(MemoryAccount account, std::uint64_t bytes);
  // `what`: for the error; what the memory is for.
  [[nodiscard]] Result<MemoryLease> lease(MemoryAccount account, std::uint64_t bytes, std::string_view what);

  struct Usage {
    std::uint64_t in_use_bytes = 0;
    std::uint64_t peak_bytes = 0;
    std::uint64_t refused = 0;
  };
  [[nodiscard]] Usage usage(MemoryAccount account) const;
  [[nodiscard]] Usage total() const;
  [[nodiscard]] std::uint64_t limit_bytes() const { return limit_; }

 private:
  struct alignas(64) Account {
    std::atomic<std::uint64_t> in_use{0};
    std::atomic<std::uint64_t> peak{0};
    std::atomic<std::uint64_t> refused{0};
    [[nodiscard]] Usage usage() const;
    void added(std::uint64_t now);
  };
  const std::uint64_t limit_;
  Account total_;
  std::array<Account, kMemoryAccounts> accounts_;
};

}  // namespace gradtap
