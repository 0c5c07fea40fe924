// Retention of recovery points (PROTOCOLS 6.6 without floors, pins and revokes: only the publisher deletes).
//
// Purpose: keep the newest N valid points of each live lineage (the newest lineage and its ancestors) and what they
// need; delete older points first, durably, then data objects that nothing needs. Threads: one (blocking).
// Invariants, whatever N is: never deleted are the newest valid point of a lineage, the newest valid point of an
// ancestor up to the fork step (what a child without points restores from), a point that a lease holds, anything that a
// remaining record references, objects at or above the base of the points kept, lineages that are not live, keys that
// do not parse, other jobs. A record that cannot be read, or a lease on a point that is gone, stops the deletion of
// data objects of its lineage for this run: what it needs is not known. Data objects go only when they were seen
// without need for `orphan_grace_ms` on the monotonic clock, so that a publish of another node in progress keeps its
// uploads. Failure: an error ends the run; what was deleted until then was not needed; the next run goes on.
#pragma once

#include <cstdint>
#include <map>
#include <string>
#include <string_view>
#include <vector>

#include "common/clock.h"
#include "storage/lease.h"
#include "storage/object_store.h"
#include "storage/point_list.h"

namespace gradtap::storage {

struct PointRetainOptions {
  std::uint64_t points_kept = 8;  // 0 counts as 1
  std::uint64_t lease_timeout_ms = 600'000;
  std::uint64_t orphan_grace_ms = 30'000;
};

struct PointRetainReport {
  std::uint64_t points_left = 0;  // of live lineages
  std::uint64_t points_deleted = 0;
  std::uint64_t objects_deleted = 0;
  std::uint64_t objects_waiting = 0;  // without need, still within their grace
  std::uint64_t leases_held = 0;
  std::uint64_t leases_expired = 0;
  std::uint64_t stray_files_deleted = 0;
  std::vector<Error> blocked;  // why data objects of a lineage were spared
};

class PointRetention {
 public:
  PointRetention(ObjectStore& store, const Clock& clock, const PointRetainOptions& options)
      : store_(store), clock_(clock), options_(options), leases_(clock, options.lease_timeout_ms) {}

  [[nodiscard]] Result<PointRetainReport> run(const std::string& job);

 private:
  struct Window {
    StepNumber cut = 0;  // points below it are beyond the newest N
    bool blocked = false;
  };
  using Windows = std::map<LineageId, Window>;
  using PointName = std::pair<LineageId, StepNumber>;

  [[nodiscard]] Status delete_points(const PointListing& listing, const std::vector<LineageReach>& live,
                                     const std::vector<PointName>& leased, Windows& windows);
  [[nodiscard]] Status delete_objects(const std::string& job, const PointListing& before, Windows& windows);
  void block(Windows& windows, LineageId lineage, Error why);

  ObjectStore& store_;
  const Clock& clock_;
  const PointRetainOptions options_;
  LeaseWatch leases_;
  std::map<std::string, std::uint64_t> waiting_;  // data objects without need: when first seen so
  PointRetainReport report_;
};

}  // namespace gradtap::storage
