#include "actors/tap_retention.h"

#include <algorithm>
#include <cstring>
#include <utility>

namespace gradtap::actors {

TapRetention::TapRetention(std::uint64_t bytes_max, StepNumber reference_steps, std::shared_ptr<MemoryLedger> memory)
    : bytes_max_(bytes_max), reference_steps_(reference_steps), memory_(std::move(memory)) {}

void TapRetention::begin(JobPlanPtr plan) {
  const std::lock_guard lock(mutex_);
  if (plan_ && plan && plan_->lineage == plan->lineage) return;
  plan_ = std::move(plan);
  kept_.clear();
  released_.clear();
  newest_ = 0;
  counters_.bytes = 0;
}

void TapRetention::add(const ContributionPtr& contribution) {
  const std::lock_guard lock(mutex_);
  if (!plan_ || contribution->lineage != plan_->lineage) return;
  if (const auto done = released_.find(contribution->shard);
      done != released_.end() && contribution->step <= done->second)
    return;
  Kept& kept = kept_[{contribution->step, contribution->shard}];
  if (!kept.copy.empty()) return;
  // An order that was given again replaces what it brought before.
  const auto same = std::find_if(kept.references.begin(), kept.references.end(),
                                 [&](const ContributionPtr& known) { return known->bucket == contribution->bucket; });
  if (same == kept.references.end())
    kept.references.push_back(contribution);
  else if ((*same)->order <= contribution->order)
    *same = contribution;
  if (contribution->step <= newest_) return;
  newest_ = contribution->step;
  copy_old(newest_);
}

std::optional<std::vector<std::uint8_t>> TapRetention::gather(ShardId shard, const Kept& kept) const {
  if (!kept.copy.empty()) return kept.copy;
  const replica::ShardRange& range = plan_->shards.shards()[shard];
  std::vector<std::uint8_t> bytes(range.elements * sizeof(float), 0);
  std::vector<bool> there(range.pieces.size(), false);
  for (const ContributionPtr& contribution : kept.references)
    for (const replica::Slice& slice : contribution->slices) {
      if (slice.piece >= range.pieces.size()) return std::nullopt;
      const replica::Piece& piece = range.pieces[slice.piece];
      if (slice.piece_offset != 0 || slice.elements != piece.count) return std::nullopt;
      std::memcpy(bytes.data() + piece.shard_offset * sizeof(float),
                  contribution->bytes->data() + slice.bucket_offset * sizeof(float), piece.count * sizeof(float));
      there[slice.piece] = true;
    }
  for (std::size_t i = 0; i < there.size(); ++i)
    if (!there[i] && plan_->schema.parameters[range.pieces[i].parameter].has_gradient()) return std::nullopt;
  return bytes;
}

// References hold the op window's memory: what is older than a few steps is copied out, as far as the limits allow.
void TapRetention::copy_old(StepNumber newest) {
  for (auto it = kept_.begin(); it != kept_.end() && it->first.first + reference_steps_ < newest;) {
    Kept& kept = it->second;
    if (!kept.copy.empty() || kept.references.empty()) {
      ++it;
      continue;
    }
    const std::uint64_t needed = plan_->shards.shards()[it->first.second].elements * sizeof(float);
    const auto lease = [&]() -> std::optional<MemoryLease> {
      if (counters_.bytes + needed > bytes_max_) return std::nullopt;
      auto granted = memory_->lease(MemoryAccount::kRetention, needed, "a gradient that is kept for its owner");
      return granted ? std::optional(std::move(*granted)) : std::nullopt;
    };
    auto granted = lease();
    while (!granted && kept_.begin() != it && !kept_.begin()->second.copy.empty()) {
      evict(kept_.begin());
      granted = lease();
    }
    auto bytes = granted ? gather(it->first.second, kept) : std::nullopt;
    kept.references.clear();
    if (!bytes || bytes->empty()) {  // never became whole, or there is no room for it
      if (!granted) ++counters_.evicted;
      it = kept_.erase(it);
      continue;
    }
    kept.copy = std::move(*bytes);
    kept.lease = std::move(*granted);
    counters_.bytes += kept.copy.size();
    ++it;
  }
}

void TapRetention::evict(std::map<Key, Kept>::iterator oldest) {
  counters_.bytes -= oldest->second.copy.size();
  ++counters_.evicted;
  kept_.erase(oldest);
}

void TapRetention::release(LineageId lineage, ShardId shard, StepNumber step) {
  const std::lock_guard lock(mutex_);
  if (!plan_ || plan_->lineage != lineage) return;
  StepNumber& released = released_[shard];
  if (step <= released && step != 0) return;
  released = std::max(released, step);
  for (auto it = kept_.begin(); it != kept_.end() && it->first.first <= step;) {
    if (it->first.second != shard) {
      ++it;
      continue;
    }
    counters_.bytes -= it->second.copy.size();
    it = kept_.erase(it);
  }
}

std::optional<std::vector<std::uint8_t>> TapRetention::gradient(LineageId lineage, ShardId shard, StepNumber step) {
  const std::lock_guard lock(mutex_);
  std::optional<std::vector<std::uint8_t>> bytes;
  if (plan_ && plan_->lineage == lineage)
    if (const auto it = kept_.find({step, shard}); it != kept_.end()) bytes = gather(shard, it->second);
  ++(bytes ? counters_.served : counters_.not_held);
  return bytes;
}

std::uint64_t TapRetention::gradient_bytes(LineageId lineage, ShardId shard) const {
  const std::lock_guard lock(mutex_);
  if (!plan_ || plan_->lineage != lineage || shard >= plan_->shards.shards().size()) return 0;
  return plan_->shards.shards()[shard].elements * sizeof(float);
}

RetentionCounters TapRetention::counters() const {
  const std::lock_guard lock(mutex_);
  RetentionCounters counters = counters_;
  counters.steps = kept_.size();
  return counters;
}

}  // namespace gradtap::actors
