// LeaseTable: the leases that a node keeps for restores that read points through it (POST .../points/L/S/lease).
//
// Purpose: a trainer that speaks HTTP cannot write to the object store, so the node takes, renews and releases its
// lease (lease.h) and hands out an id that only the holder knows. Ownership: shares store, clock and randomness; all
// three must be usable from any thread. Threads: any; calls block on the store, never on each other's store calls but
// for the same lease. Invariants: at most leases_max at once; the lease is taken first and the point looked for
// afterwards; an id that was not renewed for timeout_ms on the monotonic clock is released, at the next call of any
// function that takes one (nothing is lost by that wait: retention judges leases on its own clock). The destructor
// releases nothing: a restore may go on through another node, and a lease without a holder runs out. Failure:
// LIMIT_REACHED (counted), POINT_NONE where the point is gone, OBJECT_MISSING for an id that is not held here (run out,
// or the node was started anew: take another), else the store's error.
#pragma once

#include <cstdint>
#include <map>
#include <memory>
#include <mutex>
#include <string>
#include <string_view>

#include "common/clock.h"
#include "common/random.h"
#include "storage/lease.h"
#include "storage/object_store.h"

namespace gradtap::storage {

struct LeaseTableOptions {
  std::string job;
  std::uint64_t leases_max = 64;
  std::uint64_t timeout_ms = 600'000;
};

class LeaseTable {
 public:
  LeaseTable(std::shared_ptr<ObjectStore> store, std::shared_ptr<const Clock> clock, std::shared_ptr<Random> random,
             LeaseTableOptions options);
  ~LeaseTable();
  LeaseTable(const LeaseTable&) = delete;
  LeaseTable& operator=(const LeaseTable&) = delete;

  // The id: 32 hexadecimal digits.
  [[nodiscard]] Result<std::string> take(LineageId lineage, StepNumber step, std::string_view holder);
  [[nodiscard]] Status renew(LineageId lineage, StepNumber step, std::string_view id);
  [[nodiscard]] Status release(LineageId lineage, StepNumber step, std::string_view id);

  // How often a holder should renew: several times before its lease runs out.
  [[nodiscard]] std::uint64_t renew_s() const;

  struct Counters {
    std::uint64_t held = 0;
    std::uint64_t taken = 0;
    std::uint64_t refused = 0;  // leases_max was reached
    std::uint64_t expired = 0;
  };
  [[nodiscard]] Counters counters() const;

 private:
  struct Held;
  using HeldPtr = std::shared_ptr<Held>;
  [[nodiscard]] HeldPtr find(LineageId lineage, StepNumber step, std::string_view id);
  void release_expired();
  [[nodiscard]] Error unknown(LineageId lineage, StepNumber step) const;

  const std::shared_ptr<ObjectStore> store_;
  const std::shared_ptr<const Clock> clock_;
  const std::shared_ptr<Random> random_;
  const LeaseTableOptions options_;

  mutable std::mutex mutex_;
  std::map<std::string, HeldPtr, std::less<>> held_;
  std::uint64_t pending_ = 0;  // being taken: their places are used
  Counters counters_;
};

// Takes a lease and then looks whether the point is there: POINT_NONE, and no lease, where it is not.
[[nodiscard]] Result<Lease> take_lease_of_point(ObjectStore& store, std::string_view job, LineageId lineage,
                                                StepNumber step, std::string_view holder, Random& random);

}  // namespace gradtap::storage
