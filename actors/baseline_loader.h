// BaselineLoader: from uploaded chunks to shards at the base step (docs/side-channel.md, "Baseline").
//
// Purpose: the blocking upload at attach. Ownership: owns the shards until finish(). One thread. Invariants: the same
// chunk number with other bytes is refused; finish() succeeds only when every element of every kind that exists is
// there exactly once. Failure behaviour: a named Error; the attach is refused and the shards are thrown away.
#pragma once

#include <cstdint>
#include <map>
#include <memory>
#include <string>
#include <vector>

#include "common/bytes.h"
#include "common/memory_ledger.h"
#include "recovery/job_plan.h"
#include "replica/shard.h"

namespace gradtap::actors {

using recovery::JobPlan;
using recovery::JobPlanPtr;

class BaselineLoader {
 public:
  static constexpr std::uint32_t kChunksMax = 1'000'000;

  // Takes the memory of all shards before anything is allocated.
  [[nodiscard]] static Result<std::unique_ptr<BaselineLoader>> create(
      JobPlanPtr plan, const std::shared_ptr<MemoryLedger>& memory = std::make_shared<MemoryLedger>());

  [[nodiscard]] Status add_chunk(std::uint32_t number, ByteSpan body);
  [[nodiscard]] bool complete() const { return total_ > 0 && chunks_.size() == total_; }
  [[nodiscard]] std::size_t chunks() const { return chunks_.size(); }
  [[nodiscard]] std::size_t total() const { return total_; }
  [[nodiscard]] Result<std::vector<std::shared_ptr<replica::Shard>>> finish();

 private:
  explicit BaselineLoader(JobPlanPtr plan) : plan_(std::move(plan)) {}
  [[nodiscard]] Status load_tensor(const std::string& name, const std::string& dtype, ByteSpan data);
  [[nodiscard]] Status load_counters(const std::string& json);

  JobPlanPtr plan_;
  std::vector<std::shared_ptr<replica::Shard>> shards_;
  std::map<std::uint32_t, Sha256> chunks_;
  std::size_t total_ = 0;
};

}  // namespace gradtap::actors
