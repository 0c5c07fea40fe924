// BaselineHold: the shards of a baseline that this node received for owners elsewhere, until they have them.
//
// Purpose: the home gathers the baseline from the trainer; owners on other nodes fetch their shards from here.
// Ownership: shared; holds the shard itself where no owner here changes it, else a copy. Threads: any (a mutex).
// Invariants: one lineage at a time. Failure behaviour: what is not held is not given.
#pragma once

#include <map>
#include <memory>
#include <mutex>
#include <utility>

#include "common/ids.h"
#include "recovery/full_version.h"

namespace gradtap::actors {

struct HeldVersion {
  StepNumber step = 0;
  Sha256 digest{};
  std::shared_ptr<const recovery::FullVersion> full;  // or
  std::shared_ptr<const replica::Shard> shard = nullptr;
};

class BaselineHold {
 public:
  void begin(LineageId lineage) {
    const std::lock_guard lock(mutex_);
    lineage_ = lineage;
    shards_.clear();
  }
  void put(ShardId shard, HeldVersion version) {
    const std::lock_guard lock(mutex_);
    shards_[shard] = std::move(version);
  }
  [[nodiscard]] HeldVersion get(LineageId lineage, ShardId shard) const {
    const std::lock_guard lock(mutex_);
    const auto it = shards_.find(shard);
    return lineage == lineage_ && it != shards_.end() ? it->second : HeldVersion{};
  }

 private:
  mutable std::mutex mutex_;
  LineageId lineage_ = 0;
  std::map<ShardId, HeldVersion> shards_;
};

}  // namespace gradtap::actors
