// PointAnswers: what a node says about the recovery points of its job (/v1/jobs/J/points..., .../lineages), and the
// leases that restores take through it.
//
// Purpose: recovery's functions behind the gateway's paths; no actor takes part. Ownership: shares the object store.
// Threads: the server's, any number; every call blocks on the store. Invariants: at most streams_max points are read
// at once (each takes the memory of a shard), one verification at a time. Failure behaviour: errors as answers;
// NODE_BUSY when no turn came within the deadline, MEMORY_EXHAUSTED when no memory is left; a stream that fails half
// way ends without its end.
#pragma once

#include <chrono>
#include <condition_variable>
#include <functional>
#include <memory>
#include <mutex>
#include <string>
#include <string_view>
#include <vector>

#include "actors/http_server.h"
#include "common/error.h"
#include "common/memory_ledger.h"
#include "recovery/point_choice.h"
#include "storage/lease_table.h"

namespace gradtap::actors {

struct PointAnswersOptions {
  std::string job;
  recovery::ObjectStorePtr store;
  unsigned streams_max = 4;
  std::chrono::milliseconds turn_wait{30'000};
  std::shared_ptr<storage::LeaseTable> leases = nullptr;  // null: none are given
  std::shared_ptr<MemoryLedger> memory = std::make_shared<MemoryLedger>();
  std::function<std::uint64_t()> read_bytes = {};  // what reading a point takes; empty: nothing is taken for it
};

class PointAnswers {
 public:
  explicit PointAnswers(PointAnswersOptions options) : options_(std::move(options)) {}

  // `parts`: the path without v1/jobs/J, so it begins with "points" or "lineages".
  [[nodiscard]] HttpAnswer answer(const HttpRequest& request, const std::vector<std::string_view>& parts);
  // points/L/S/state and points/L/S/side
  [[nodiscard]] Result<std::function<bool(const ByteSink&)>> stream(const HttpRequest& request,
                                                                    const std::vector<std::string_view>& parts);

  [[nodiscard]] std::uint64_t refused() const;  // requests that got no turn
  [[nodiscard]] storage::LeaseTable::Counters leases() const;

 private:
  class Turn;
  [[nodiscard]] HttpAnswer lease(const HttpRequest& request, const std::vector<std::string_view>& parts);
  [[nodiscard]] Result<std::shared_ptr<Turn>> take_turn(unsigned& used, unsigned most);

  const PointAnswersOptions options_;
  mutable std::mutex mutex_;
  std::condition_variable free_;
  unsigned streams_ = 0;
  unsigned verifications_ = 0;
  std::uint64_t refused_ = 0;
};

}  // namespace gradtap::actors
