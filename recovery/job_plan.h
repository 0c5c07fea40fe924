// JobPlan: what is fixed for a job's lineage from attach on, shared read-only by its actors.
//
// Built once, at attach or from the store's lineage record; immutable; any thread.
#pragma once

#include <cstdint>
#include <memory>
#include <string>
#include <vector>

#include "common/error.h"
#include "common/ids.h"
#include "replica/recipe.h"
#include "replica/schema.h"
#include "replica/shard_map.h"
#include "schema/record_codec.h"

namespace gradtap::recovery {

struct JobPlan {
  JobId job{};
  std::string job_name;
  LineageId lineage = 0;
  std::uint32_t world = 0;
  std::uint64_t sequence_at_attach = 0;
  StepNumber base_step = 0;
  std::uint64_t shard_elements = 0;
  replica::Schema schema;
  Sha256 schema_id{};  // SHA-256 of the attach message as received
  replica::Recipe recipe;
  replica::ShardMap shards;
  bool resumed = false;  // the baseline is the state of a recovery point of the parent lineage, at base_step
  std::vector<std::string> unknown_leaves;  // block publication, by name
  bool recorded_probe = false;              // the probe was taken from a recorded job, not run by the trainer at attach
  std::string torch_version;                // of the trainer, as it says itself; may be empty
  std::vector<std::uint64_t> expected_op_bytes;  // sizes that ops may have later, as the client guesses
};
using JobPlanPtr = std::shared_ptr<const JobPlan>;

// Bytes of a shard's parameters and optimizer state in memory, and of one gradient of it.
[[nodiscard]] std::uint64_t state_bytes(const JobPlan& plan, ShardId shard);
[[nodiscard]] std::uint64_t gradient_bytes(const JobPlan& plan, ShardId shard);

// The attach message of rank 0, parsed and checked against the node's configuration. The recipe is not known yet.
[[nodiscard]] Result<JobPlan> plan_from_attach(const std::string& attach_json, const std::string& job_name,
                                               std::uint32_t world, std::uint64_t shard_elements);
// A plan whose baseline is durable, as the store holds it.
[[nodiscard]] Result<JobPlan> plan_from_record(const schema::LineageRecord& record);

}  // namespace gradtap::recovery
