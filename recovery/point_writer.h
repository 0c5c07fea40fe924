// PointWriter: the objects of a recovery point out of a shard source, and its record. Used by the publisher.
//
// Purpose: what a point references is uploaded once: objects of the previous point are taken over where they still
// serve. Pure but for the object store; any thread (each call its own); nothing is retried here. Failure behaviour: the
// error of the source or of the object store; an object that was put and is not referenced is an orphan, which
// retention finds.
#pragma once

#include <cstdint>
#include <string>
#include <vector>

#include "common/error.h"
#include "common/random.h"
#include "recovery/job_plan.h"
#include "recovery/shard_source.h"
#include "storage/object_store.h"
#include "storage/point_record.h"

namespace gradtap::recovery {

struct PointTarget {
  storage::ObjectStore& store;
  const JobPlan& plan;
  Random& random;  // for the uids
};

// Single objects, from bytes at hand.
[[nodiscard]] Result<schema::ObjectRef> put_full(const PointTarget& target, ShardId shard, StepNumber step,
                                                 const std::vector<FullKind>& kinds);
[[nodiscard]] Result<schema::ObjectRef> put_log(const PointTarget& target, ShardId shard, StepNumber step,
                                                ByteSpan gradient);
// `stored`: rank 0's encoded StepRecord.
[[nodiscard]] Result<schema::ObjectRef> put_step(const PointTarget& target, StepNumber step, ByteSpan stored);
[[nodiscard]] Result<schema::ObjectRef> put_side(const PointTarget& target, const schema::SideState& side);
[[nodiscard]] Result<schema::ObjectRef> put_meta(const PointTarget& target, const schema::LineageRecord& lineage);

// A shard's objects for a point at `step`: those of `previous` and the logs since; or, when the source has a newer full
// version, when the base is more than `logs_max` steps behind, or when logs are missing in the source, that newest full
// version and the logs after it, as far as `previous` has them without a second upload.
// `previous` may be null.
[[nodiscard]] Result<schema::ShardObjects> put_shard(const PointTarget& target, const ShardSource& source,
                                                     ShardId shard, StepNumber step,
                                                     const schema::ShardObjects* previous, std::uint64_t logs_max);
// Step objects for (lowest base, step], taken over from `previous` (may be empty) where it has them.
[[nodiscard]] Result<std::vector<schema::StepObject>> put_steps(const PointTarget& target, const ShardSource& source,
                                                                const std::vector<schema::ShardObjects>& shards,
                                                                StepNumber step,
                                                                const std::vector<schema::StepObject>& previous);

// What only the publisher knows of a point.
struct PointFacts {
  StepNumber step = 0;
  LineageId parent_lineage = 0;
  StepNumber parent_step = 0;
  Sha256 parent_record{};
  std::vector<Sha256> shard_digests;       // shard 0, 1, ...
  LayoutId layout_id{};                    // of step + 1; zero: not known
  std::vector<std::uint8_t> layout_json;   // its canonical JSON; empty: not known
  std::vector<std::uint8_t> step_message;  // rank 0's message JSON; empty at the baseline
  schema::Verdict verdict = schema::Verdict::kApplied;
  std::string qualified_by = "baseline";
  std::vector<schema::ShardObjects> shards;
  std::vector<schema::StepObject> steps;
  schema::ObjectRef side;
  schema::ObjectRef meta;
  StepNumber previous_step = 0;
  Sha256 previous_record{};
  std::string publisher;
  std::uint64_t created_wall_ms = 0;
  StepNumber training = 0, verified = 0, durable = 0, published = 0;
  std::string software;
};

// STATE_INCOMPLETE when a shard or rank is missing.
[[nodiscard]] Result<schema::PointRecord> assemble_point(const JobPlan& plan, const schema::SideState& side,
                                                         PointFacts facts);

}  // namespace gradtap::recovery
