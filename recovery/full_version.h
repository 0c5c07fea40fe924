// FullVersion: a copy of a shard at one version, in the form the store takes, and back.
//
// Purpose: the owner goes on applying while the keeper writes. Ownership: the copy owns its bytes; a ShardRecord keeps
// it alive until it is durable. The kind kKindPresence (docs/formats.md) holds, per piece in order, the step counter
// (u64, little-endian) and the presence bits (u8). Failure behaviour: bytes that do not fit the shard are
// STATE_INCOMPLETE or the store's own error.
#pragma once

#include <cstdint>
#include <memory>
#include <vector>

#include "common/error.h"
#include "recovery/job_plan.h"
#include "recovery/shard_source.h"
#include "replica/shard.h"
#include "storage/shard_store.h"

namespace gradtap::recovery {

class FullVersion {
 public:
  explicit FullVersion(const replica::Shard& shard);
  // Parts that point into this object.
  [[nodiscard]] std::vector<storage::FullPart> parts() const;

 private:
  std::vector<std::pair<std::uint8_t, std::vector<std::uint8_t>>> kinds_;
};

// Reads full version `step` of a shard into a shard of the plan.
[[nodiscard]] Result<replica::Shard> read_full_version(const ShardSource& source, const JobPlan& plan, ShardId shard,
                                                       StepNumber step);

}  // namespace gradtap::recovery
