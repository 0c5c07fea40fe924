#include "recovery/store_source.h"

#include <utility>

namespace gradtap::recovery {

Result<std::vector<StepNumber>> StoreSource::full_steps(ShardId shard) const {
  return store_->full_steps(job_, lineage_, shard);
}

Result<std::vector<FullKind>> StoreSource::full_version(ShardId shard, StepNumber step) const {
  const auto infos = store_->full_parts(job_, lineage_, shard, step);
  if (!infos) return std::unexpected(infos.error());
  std::vector<FullKind> kinds;
  for (const storage::FullPartInfo& info : *infos) {
    auto bytes = store_->read_full(job_, lineage_, shard, step, info.kind);
    if (!bytes) return std::unexpected(bytes.error());
    kinds.push_back({info.kind, SourceBytes::of(std::move(*bytes))});
  }
  return kinds;
}

Result<SourceBytes> StoreSource::log(ShardId shard, StepNumber step) const {
  auto bytes = store_->read_log(job_, lineage_, shard, step);
  if (!bytes) return std::unexpected(bytes.error());
  return SourceBytes::of(std::move(*bytes));
}

Result<std::vector<std::uint8_t>> StoreSource::step_message(StepNumber step) const {
  return store_->get_side(storage::side_key(storage::SideKind::kStepMessage, job_, lineage_, step, 0));
}

Result<std::optional<Sha256>> StoreSource::state_digest(ShardId shard, StepNumber step) const {
  auto digest = store_->state_digest(job_, lineage_, shard, step);
  if (!digest) return std::unexpected(digest.error());
  return std::optional<Sha256>(*digest);
}

}  // namespace gradtap::recovery
