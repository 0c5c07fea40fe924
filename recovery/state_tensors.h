// StateTensors: whole parameters and their moments out of the shards of one step.
//
// Purpose: what both forms of an export (safetensors, torch) read. facts() rebuilds every shard once, several at a time
// if it may, and keeps the first of them as far as its memory reaches; write() rebuilds the others when their turn
// comes and gives up what lies behind the current parameter, so parameters are asked for in ascending order. Threads:
// one at a time; facts() has its own. Invariants: every shard's digest is checked when it is rebuilt. Failure
// behaviour: the source's error, by name; of several shards the lowest one's.
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

struct RebuildLimits {
  unsigned threads = 1;          // shards rebuilt at once; each takes an object and a shard beside what is kept
  std::uint64_t kept_bytes = 0;  // of rebuilt shards that wait to be written
};

enum class ElementOrder : std::uint8_t { kRowMajor, kMemory };

class StateTensors {
 public:
  StateTensors(std::shared_ptr<const ShardSource> source, JobPlanPtr plan, StepNumber step, RebuildLimits limits = {})
      : source_(std::move(source)), plan_(std::move(plan)), step_(step), limits_(limits) {}

  [[nodiscard]] Result<StateFacts> facts();
  // Kind 0 is the parameter, kind k the optimizer's kind k-1. float32, little-endian.
  [[nodiscard]] Status write(std::uint32_t parameter, std::size_t kind, ElementOrder order,
                             const replica::ByteSink& sink);

  [[nodiscard]] const JobPlan& plan() const { return *plan_; }
  [[nodiscard]] StepNumber step() const { return step_; }

 private:
  [[nodiscard]] Result<const replica::Shard*> shard(ShardId id);
  // By shard: what facts() needs of it. The shards themselves go to shards_ as far as they may be kept.
  struct ShardFacts {
    std::vector<replica::PieceState> states;
    Sha256 digest{};
  };
  [[nodiscard]] Result<std::vector<ShardFacts>> rebuild_all();

  std::shared_ptr<const ShardSource> source_;
  JobPlanPtr plan_;
  StepNumber step_;
  RebuildLimits limits_;
  std::map<ShardId, replica::Shard> shards_;
};

}  // namespace gradtap::recovery
