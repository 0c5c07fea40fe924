// StoreSource: one lineage of a node's store as a ShardSource. Keeps the store alive; any thread.
#pragma once

#include <memory>

#include "recovery/shard_source.h"
#include "storage/shard_store.h"

namespace gradtap::recovery {

class StoreSource final : public ShardSource {
 public:
  StoreSource(std::shared_ptr<const storage::ShardStore> store, const JobId& job, LineageId lineage)
      : store_(std::move(store)), job_(job), lineage_(lineage) {}

  [[nodiscard]] Result<std::vector<StepNumber>> full_steps(ShardId shard) const override;
  [[nodiscard]] Result<std::vector<FullKind>> full_version(ShardId shard, StepNumber step) const override;
  [[nodiscard]] Result<SourceBytes> log(ShardId shard, StepNumber step) const override;
  [[nodiscard]] Result<std::vector<std::uint8_t>> step_message(StepNumber step) const override;
  [[nodiscard]] Result<std::optional<Sha256>> state_digest(ShardId shard, StepNumber step) const override;

 private:
  std::shared_ptr<const storage::ShardStore> store_;
  JobId job_;
  LineageId lineage_;
};

}  // namespace gradtap::recovery
