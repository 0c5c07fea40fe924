// TapRetention: proven gradients of shards that other nodes own, kept until those owners have them durably.
//
// Purpose: this node's tap saw the bytes; an owner that was away, or whose own tap lost them, asks for them later
// (PROTOCOLS 5.4: "taps keep contributions until all owners ack durable or the window limit"). The newest
// `reference_steps` are kept as references to the ops, which costs nothing while owners keep up; older ones are copied
// out, so that the op window is not held. Ownership: shared; owns the copies. Threads: any (a mutex; once per bucket
// and shard, never per packet). Bounds: `bytes_max` of copies, and the node's memory; beyond either the oldest step
// goes, counted. Failure behaviour: a step that is not whole is not given.
#pragma once

#include <cstdint>
#include <map>
#include <memory>
#include <mutex>
#include <optional>
#include <vector>

#include "actors/messages.h"
#include "common/memory_ledger.h"

namespace gradtap::actors {

struct RetentionCounters {
  std::uint64_t bytes = 0;    // of copies held now
  std::uint64_t steps = 0;    // (shard, step) pairs held now
  std::uint64_t evicted = 0;  // pairs that made room before their owners had them
  std::uint64_t served = 0;
  std::uint64_t not_held = 0;
};

class TapRetention {
 public:
  TapRetention(std::uint64_t bytes_max, StepNumber reference_steps,
               std::shared_ptr<MemoryLedger> memory = std::make_shared<MemoryLedger>());

  // A new lineage: what was kept of another one goes.
  void begin(JobPlanPtr plan);
  void add(const ContributionPtr& contribution);
  // Every owner of the shard is durable at `step`.
  void release(LineageId lineage, ShardId shard, StepNumber step);
  // The shard's gradient in shard order; nothing when some of it is not here.
  [[nodiscard]] std::optional<std::vector<std::uint8_t>> gradient(LineageId lineage, ShardId shard, StepNumber step);
  // What gradient() of this shard takes; 0: nothing is kept of it.
  [[nodiscard]] std::uint64_t gradient_bytes(LineageId lineage, ShardId shard) const;
  [[nodiscard]] RetentionCounters counters() const;

 private:
  struct Kept {
    std::vector<ContributionPtr> references;
    std::vector<std::uint8_t> copy;  // empty while references are kept
    MemoryLease lease;               // of the copy
  };
  using Key = std::pair<StepNumber, ShardId>;  // oldest step first

  [[nodiscard]] std::optional<std::vector<std::uint8_t>> gather(ShardId shard, const Kept& kept) const;
  void evict(std::map<Key, Kept>::iterator oldest);
  void copy_old(StepNumber newest);

  const std::uint64_t bytes_max_;
  const StepNumber reference_steps_;
  const std::shared_ptr<MemoryLedger> memory_;
  mutable std::mutex mutex_;
  JobPlanPtr plan_;
  std::map<Key, Kept> kept_;
  std::map<ShardId, StepNumber> released_;
  StepNumber newest_ = 0;
  RetentionCounters counters_;
};

}  // namespace gradtap::actors
