// StateTensors: whole parameters and their moments out of the shards of one step.
//
// Purpose: what both forms of an export (safetensors, torch) read. Shards are rebuilt one after another; only those
// that the current parameter touches are kept, so parameters are asked for in ascending order. Threads: one at a time.
// Invariants: every shard's digest is checked when it is rebuilt. Failure behaviour: the source's error, by name.
#pragma once

#include <cstdint>
#include <map>
#include <memory>
#include <vector>

#include "common/error.h"
#include "recovery/job_plan.h"
#include "recovery/shard_source.h"
#include "replica/hyper.h"
#include "replica/safetensors.h"
#include "replica/shard.h"

namespace gradtap::recovery {

struct ParameterFacts {
  std::uint64_t counter = 0;  // the optimizer's step counter
  std::uint8_t present = 0;   // bit k: optimizer kind k exists
};

// What must be known before the first byte of an export is written.
struct StateFacts {
  std::vector<ParameterFacts> parameters;
  std::vector<Sha256> digests;  // by shard
  Sha256 root{};
  std::vector<replica::GroupHyper> groups;  // hyper-parameters that the step used; at the base those of the attach
};

enum class ElementOrder : std::uint8_t { kRowMajor, kMemory };

class StateTensors {
 public:
  StateTensors(std::shared_ptr<const ShardSource> source, JobPlanPtr plan, StepNumber step)
      : source_(std::move(source)), plan_(std::move(plan)), step_(step) {}

  // Rebuilds every shard once.
  [[nodiscard]] Result<StateFacts> facts() const;
  // Kind 0 is the parameter, kind k the optimizer's kind k-1. float32, little-endian.
  [[nodiscard]] Status write(std::uint32_t parameter, std::size_t kind, ElementOrder order,
                             const replica::ByteSink& sink);

  [[nodiscard]] const JobPlan& plan() const { return *plan_; }
  [[nodiscard]] StepNumber step() const { return step_; }

 private:
  [[nodiscard]] Result<const replica::Shard*> shard(ShardId id);

  std::shared_ptr<const ShardSource> source_;
  JobPlanPtr plan_;
  StepNumber step_;
  std::map<ShardId, replica::Shard> shards_;
};

}  // namespace gradtap::recovery
