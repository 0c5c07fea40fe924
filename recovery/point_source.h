// PointSource: a recovery point in an object store as a ShardSource, and its plan.
//
// Purpose: a point is rebuilt by the same path as a node's store. Ownership: shares the object store. Threads: any, at
// once. Invariants: every object has passed the SHA-256 of the record; the lineage record is the one that the point
// names; the only state digests are those of the point's own step. Failure behaviour: the object store's errors, with
// the key; a plan that does not fit the record is OBJECT_FOREIGN.
#pragma once

#include <map>
#include <memory>
#include <mutex>
#include <string_view>

#include "recovery/job_plan.h"
#include "recovery/shard_source.h"
#include "storage/object_store.h"
#include "storage/point_record.h"

namespace gradtap::recovery {

using ObjectStorePtr = std::shared_ptr<const storage::ObjectStore>;

class PointSource final : public ShardSource {
 public:
  // `object_bytes_max`: of one full version or log.
  PointSource(ObjectStorePtr store, std::shared_ptr<const schema::PointRecord> record, std::uint64_t object_bytes_max)
      : store_(std::move(store)), record_(std::move(record)), object_bytes_max_(object_bytes_max) {}

  [[nodiscard]] Result<std::vector<StepNumber>> full_steps(ShardId shard) const override;
  [[nodiscard]] Result<std::vector<FullKind>> full_version(ShardId shard, StepNumber step) const override;
  [[nodiscard]] Result<SourceBytes> log(ShardId shard, StepNumber step) const override;
  [[nodiscard]] Result<std::vector<std::uint8_t>> step_message(StepNumber step) const override;
  [[nodiscard]] Result<std::optional<Sha256>> state_digest(ShardId shard, StepNumber step) const override;

 private:
  [[nodiscard]] Result<const schema::ShardObjects*> objects_of(ShardId shard) const;
  [[nodiscard]] Result<SourceBytes> read(const schema::ObjectRef& ref) const;

  ObjectStorePtr store_;
  std::shared_ptr<const schema::PointRecord> record_;
  std::uint64_t object_bytes_max_;
  mutable std::mutex mutex_;
  // Every shard replays with the same few messages.
  mutable std::map<StepNumber, std::vector<std::uint8_t>> messages_;
};

// A point that is ready to be read.
struct OpenPoint {
  ObjectStorePtr store;
  std::shared_ptr<const schema::PointRecord> record;
  Sha256 record_digest{};
  schema::LineageRecord lineage;
  JobPlanPtr plan;
  std::shared_ptr<const ShardSource> source;
};

// Reads the record's lineage record and checks that plan and record speak of the same state.
[[nodiscard]] Result<OpenPoint> open_point(ObjectStorePtr store, const storage::StoredPoint& point);
[[nodiscard]] Result<OpenPoint> open_point(ObjectStorePtr store, std::string_view job, LineageId lineage,
                                           StepNumber step);

// Side state of all ranks at the point's step, each checked against the record.
[[nodiscard]] Result<schema::SideState> read_side_state(const OpenPoint& point);

}  // namespace gradtap::recovery
