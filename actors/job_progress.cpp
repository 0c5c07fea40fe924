#include "actors/job_progress.h"

#include <algorithm>
#include <utility>

#include <fmt/format.h>

#include "replica/digest.h"

namespace gradtap::actors {

JobProgress::JobProgress(std::vector<std::vector<MemberIndex>> owners, std::vector<std::string> names,
                         const ProgressConfig& config)
    : owners_(std::move(owners)), names_(std::move(names)), config_(config), live_(names_.size(), false) {
  for (const auto& list : owners_) table_.emplace_back(list.size());
}

void JobProgress::on_live(MemberIndex member, bool live) {
  if (member < live_.size()) live_[member] = live;
}

std::size_t JobProgress::place_of(MemberIndex member, ShardId shard) const {
  if (shard >= owners_.size()) return 0;
  const auto it = std::find(owners_[shard].begin(), owners_[shard].end(), member);
  return static_cast<std::size_t>(it - owners_[shard].begin());
}

void JobProgress::on_version(MemberIndex member, ShardId shard, StepNumber version) {
  if (shard >= owners_.size()) return;
  const std::size_t place = place_of(member, shard);
  if (place == owners_[shard].size()) return;
  OwnerProgress& progress = table_[shard][place];
  progress.known = true;
  progress.version = version;  // may fall: an owner that restarted is at its durable step
  if (progress.durable && *progress.durable > version) progress.durable = version;
}

void JobProgress::on_digest(MemberIndex member, ShardId shard, StepNumber step, const Sha256& digest) {
  if (shard >= owners_.size() || place_of(member, shard) == owners_[shard].size()) return;
  auto entry = digests_.find(step);
  if (entry == digests_.end()) {
    if (digests_.size() >= config_.steps_kept) {
      if (step < digests_.begin()->first) return;  // older than everything kept
      digests_.erase(digests_.begin());
    }
    entry = digests_.emplace(step, std::vector<std::optional<Sha256>>(owners_.size())).first;
  }
  std::optional<Sha256>& known = entry->second[shard];
  if (!known)
    known = digest;
  else if (*known != digest && !divergence_)
    divergence_ = Divergence{shard, step, member};
}

void JobProgress::on_durable(MemberIndex member, ShardId shard, StepNumber step) {
  if (shard >= owners_.size()) return;
  const std::size_t place = place_of(member, shard);
  if (place == owners_[shard].size()) return;
  OwnerProgress& progress = table_[shard][place];
  progress.durable = std::max(progress.durable.value_or(0), step);
  if (!progress.known || progress.version < step) {
    progress.known = true;
    progress.version = step;
  }
}

bool JobProgress::in_sync(ShardId shard, std::size_t place) const {
  const OwnerProgress& progress = table_[shard][place];
  if (!live_[owners_[shard][place]] || !progress.durable) return false;
  StepNumber best = 0;
  for (const OwnerProgress& other : table_[shard]) best = std::max(best, other.durable.value_or(0));
  return *progress.durable + config_.sync_lag_steps >= best;
}

StepNumber JobProgress::shard_verified(ShardId shard) const {
  StepNumber best = shard_durable(shard).value_or(0);
  for (std::size_t place = 0; place < table_[shard].size(); ++place)
    if (live_[owners_[shard][place]] && table_[shard][place].known) best = std::max(best, table_[shard][place].version);
  return best;
}

std::optional<StepNumber> JobProgress::shard_durable(ShardId shard) const {
  std::vector<StepNumber> counted;
  std::vector<StepNumber> all;
  for (std::size_t place = 0; place < table_[shard].size(); ++place) {
    if (!table_[shard][place].durable) continue;
    all.push_back(*table_[shard][place].durable);
    if (in_sync(shard, place)) counted.push_back(all.back());
  }
  if (all.empty()) return std::nullopt;
  const std::size_t wanted = std::min(config_.copies, owners_[shard].size());
  std::size_t copies = wanted;
  if (config_.degraded_durable) copies = std::max<std::size_t>(1, std::min(wanted, counted.size()));
  // With nobody in sync the shard is where its owners' disks are.
  std::vector<StepNumber>& from = counted.size() >= copies ? counted : all;
  if (from.size() < copies) return std::nullopt;
  std::sort(from.begin(), from.end(), std::greater<>());
  return from[copies - 1];
}

StepNumber JobProgress::verified() const {
  if (owners_.empty()) return 0;
  StepNumber lowest = ~StepNumber{0};
  for (ShardId shard = 0; shard < owners_.size(); ++shard) lowest = std::min(lowest, shard_verified(shard));
  return lowest;
}

StepNumber JobProgress::durable() const {
  if (owners_.empty()) return 0;
  StepNumber lowest = ~StepNumber{0};
  for (ShardId shard = 0; shard < owners_.size(); ++shard) {
    const auto step = shard_durable(shard);
    if (!step) return 0;
    lowest = std::min(lowest, *step);
  }
  return lowest;
}

std::size_t JobProgress::base_shards() const {
  std::size_t count = 0;
  for (ShardId shard = 0; shard < owners_.size(); ++shard) {
    bool any = false;
    bool missing = false;
    for (std::size_t place = 0; place < table_[shard].size(); ++place) {
      any = any || table_[shard][place].durable.has_value();
      missing = missing || (live_[owners_[shard][place]] && !table_[shard][place].durable);
    }
    if (any && !missing) ++count;
  }
  return count;
}

bool JobProgress::base_durable() const {
  return base_shards() == owners_.size();
}

std::optional<StepNumber> JobProgress::publishable() const {
  if (divergence_ || owners_.empty()) return std::nullopt;
  StepNumber lowest = ~StepNumber{0};
  for (ShardId shard = 0; shard < owners_.size(); ++shard) {
    const auto step = shard_durable(shard);
    if (!step) return std::nullopt;
    lowest = std::min(lowest, *step);
  }
  return lowest;
}

std::optional<std::vector<Sha256>> JobProgress::digests(StepNumber step) const {
  const auto it = digests_.find(step);
  if (it == digests_.end()) return std::nullopt;
  std::vector<Sha256> list;
  for (const auto& digest : it->second) {
    if (!digest) return std::nullopt;
    list.push_back(*digest);
  }
  return list;
}

std::vector<JobProgress::ShardDigest> JobProgress::digests_of(MemberIndex member, StepNumber from,
                                                              std::size_t limit) const {
  std::vector<ShardDigest> list;
  for (auto it = digests_.lower_bound(from); it != digests_.end(); ++it)
    for (ShardId shard = 0; shard < owners_.size(); ++shard) {
      const std::size_t place = place_of(member, shard);
      if (place == owners_[shard].size() || !it->second[shard] || table_[shard][place].version < it->first) continue;
      if (list.size() == limit) return list;
      list.push_back({shard, it->first, *it->second[shard]});
    }
  return list;
}

std::map<StepNumber, Sha256> JobProgress::roots(StepNumber from, StepNumber to) const {
  std::map<StepNumber, Sha256> roots;
  for (auto it = digests_.lower_bound(from); it != digests_.end() && it->first <= to; ++it)
    if (const auto list = digests(it->first)) roots[it->first] = replica::state_root(*list);
  return roots;
}

std::vector<MemberIndex> JobProgress::producers(ShardId shard, StepNumber step) const {
  std::vector<MemberIndex> list;
  if (shard >= owners_.size()) return list;
  for (std::size_t place = 0; place < owners_[shard].size(); ++place) {
    const MemberIndex member = owners_[shard][place];
    const auto& durable = table_[shard][place].durable;
    if (live_[member] && durable && *durable >= step) list.push_back(member);
  }
  return list;
}

StepNumber JobProgress::lowest_durable(ShardId shard) const {
  StepNumber lowest = ~StepNumber{0};
  for (const OwnerProgress& progress : table_[shard]) lowest = std::min(lowest, progress.durable.value_or(0));
  return lowest;
}

std::string JobProgress::owner_names(ShardId shard) const {
  std::string text;
  for (const MemberIndex member : owners_[shard]) text += (text.empty() ? "" : ", ") + names_[member];
  return text;
}

std::vector<Gap> JobProgress::gaps() const {
  std::vector<Gap> gaps;
  std::string down;
  std::string shorter;
  std::size_t down_count = 0;
  std::size_t short_count = 0;
  for (ShardId shard = 0; shard < owners_.size(); ++shard) {
    std::size_t live = 0;
    std::size_t synced = 0;
    for (std::size_t place = 0; place < owners_[shard].size(); ++place) {
      live += live_[owners_[shard][place]] ? 1 : 0;
      synced += in_sync(shard, place) ? 1 : 0;
    }
    if (live == 0) {
      if (++down_count <= 4) down += fmt::format("{}{} ({})", down.empty() ? "" : "; ", shard, owner_names(shard));
    } else if (synced < std::min(config_.copies, owners_[shard].size())) {
      if (++short_count <= 4)
        shorter += fmt::format("{}{} ({})", shorter.empty() ? "" : "; ", shard, owner_names(shard));
    }
  }
  if (divergence_)
    gaps.push_back({GapReason::kDiverged, divergence_->step,
                    fmt::format("shard {} step {}: {} has another digest than its co-owner", divergence_->shard,
                                divergence_->step, names_[divergence_->member]),
                    "nothing more is published; the points before stay"});
  if (down_count > 0)
    gaps.push_back({GapReason::kOwnerDown, verified() + 1,
                    fmt::format("no owner is live of {} shards: {}{}", down_count, down, down_count > 4 ? " ..." : ""),
                    "start one of these nodes; the others keep what it needs as long as their memory allows"});
  if (short_count > 0)
    gaps.push_back({GapReason::kReplicaShort, durable() + 1,
                    fmt::format("fewer copies in sync than wanted of {} shards: {}{}", short_count, shorter,
                                short_count > 4 ? " ..." : ""),
                    config_.degraded_durable ? "durable goes on with fewer copies (degraded_durable)"
                                             : "durable waits for the missing owner"});
  return gaps;
}

}  // namespace gradtap::actors
