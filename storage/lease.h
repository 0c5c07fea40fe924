// Lease: a restore holds the point it reads, so that retention spares it (PROTOCOLS 6.6, pins in their simple form).
//
// Purpose: take() creates jobs/J/L/lease/SSS-uid-k with k = 0; renew() creates the next k and deletes the one before;
// release() deletes it. The holder's order is: take the lease, *then* check that the point is still there and read it.
// LeaseWatch is retention's side: a lease counts until its k has not changed for `timeout` on the watcher's own
// monotonic clock, in one process life; no wall clock is compared with another machine's. Ownership: a Lease belongs to
// its holder and is not released by its destructor (a dead holder's lease runs out). Threads: one each; the store may
// be shared. Failure: named errors; a holder whose renew() fails goes on reading: what vanishes is a named error too.
#pragma once

#include <compare>
#include <cstdint>
#include <map>
#include <string>
#include <string_view>
#include <vector>

#include "common/clock.h"
#include "common/random.h"
#include "storage/object_key.h"
#include "storage/object_store.h"

namespace gradtap::storage {

class Lease {
 public:
  // `holder` is for people: who restores, and where.
  [[nodiscard]] static Result<Lease> take(ObjectStore& store, std::string_view job, LineageId lineage, StepNumber step,
                                          std::string_view holder, Random& random);
  [[nodiscard]] Status renew();
  [[nodiscard]] Status release();
  [[nodiscard]] std::string key() const { return build_key(key_); }

 private:
  Lease(ObjectStore& store, ObjectKey key, std::vector<std::uint8_t> content)
      : store_(&store), key_(std::move(key)), content_(std::move(content)) {}

  ObjectStore* store_;
  ObjectKey key_;
  std::vector<std::uint8_t> content_;
};

class LeaseWatch {
 public:
  LeaseWatch(const Clock& clock, std::uint64_t timeout_ms) : clock_(clock), timeout_ns_(timeout_ms * 1'000'000) {}

  struct Seen {
    std::vector<std::pair<LineageId, StepNumber>> held;  // points that a live lease holds, ascending, each once
    std::vector<std::string> expired;                    // keys to delete
  };
  // Judges the lease keys among `keys` (a listing of the job); all others are passed over.
  [[nodiscard]] Seen look(std::string_view job, const std::vector<std::string>& keys);

 private:
  struct Name {
    std::string job;
    LineageId lineage = 0;
    StepNumber step = 0;
    std::string uid;
    friend auto operator<=>(const Name&, const Name&) = default;
  };
  struct Last {
    std::uint64_t counter = 0;
    std::uint64_t changed_ns = 0;
  };
  const Clock& clock_;
  const std::uint64_t timeout_ns_;
  std::map<Name, Last> last_;
};

}  // namespace gradtap::storage
