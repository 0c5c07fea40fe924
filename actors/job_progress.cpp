#include "actors/job_progress.h"

#include <algorithm>
#include <utility>

#include <fmt/format.h>

#include "replica/digest.h"

namespace gradtap::actors {

std::string_view holder_role_name(HolderRole role) {
  switch (role) {
    case HolderRole::kSyncing:
      return "syncing";
    case HolderRole::kInSync:
      return "in_sync";
    case HolderRole::kReleasing:
      return "releasing";
  }
  return "unknown";
}

JobProgress::JobProgress(std::vector<std::vector<MemberIndex>> owners, std::vector<std::string> names,
                         const ProgressConfig& config, std::uint64_t epoch)
    : names_(std::move(names)),
      config_(config),
      live_(names_.size(), false),
      epoch_(epoch),
      said_in_(names_.size()),
      table_(owners.size()) {
  for (ShardId shard = 0; shard < owners.size(); ++shard)
    for (const MemberIndex member : owners[shard]) table_[shard].push_back({member, true, {}});
}

void JobProgress::set_owners(const std::vector<std::vector<MemberIndex>>& owners, std::vector<std::string> names,
                             const std::vector<bool>& out, std::uint64_t epoch) {
  epoch_ = epoch;
  names_ = std::move(names);
  live_.resize(std::max(names_.size(), live_.size()), false);
  said_in_.resize(live_.size());
  for (ShardId shard = 0; shard < table_.size() && shard < owners.size(); ++shard) {
    std::vector<ShardHolder> next;
    for (const MemberIndex member : owners[shard]) {
      const ShardHolder* before = holder(shard, member);
      next.push_back({member, true, before != nullptr ? before->progress : OwnerProgress{}});
    }
    for (const ShardHolder& before : table_[shard]) {
      const bool stays =
          std::any_of(next.begin(), next.end(), [&](const ShardHolder& now) { return now.member == before.member; });
      const bool gone = before.member < out.size() && out[before.member];
      if (!stays && !gone && before.progress.known) next.push_back({before.member, false, before.progress});
    }
    table_[shard] = std::move(next);
  }
}

void JobProgress::on_live(MemberIndex member, bool live) {
  if (member >= live_.size()) return;
  live_[member] = live;
  if (!live) said_in_[member].reset();  // whoever comes back may have lost its disk
}

void JobProgress::on_report(MemberIndex member, std::uint64_t epoch) {
  if (member < said_in_.size()) said_in_[member] = epoch;
}

bool JobProgress::heard(MemberIndex member) const {
  return live(member) && said_in_[member] && *said_in_[member] >= epoch_;
}

ShardHolder* JobProgress::find(MemberIndex member, ShardId shard) {
  if (shard >= table_.size()) return nullptr;
  for (ShardHolder& holder : table_[shard])
    if (holder.member == member) return &holder;
  return nullptr;
}

const ShardHolder* JobProgress::holder(ShardId shard, MemberIndex member) const {
  if (shard >= table_.size()) return nullptr;
  for (const ShardHolder& holder : table_[shard])
    if (holder.member == member) return &holder;
  return nullptr;
}

void JobProgress::on_version(MemberIndex member, ShardId shard, StepNumber version) {
  ShardHolder* holder = find(member, shard);
  if (holder == nullptr) return;
  OwnerProgress& progress = holder->progress;
  progress.known = true;
  progress.version = version;  // may fall: an owner that restarted is at its durable step
  if (progress.durable && *progress.durable > version) progress.durable = version;
  if (progress.agreed && *progress.agreed > version) progress.agreed.reset();  // it goes that way a second time
}

void JobProgress::on_from(MemberIndex member, ShardId shard, StepNumber from) {
  if (ShardHolder* holder = find(member, shard)) holder->progress.from = from;
}

void JobProgress::on_holds(MemberIndex member, const std::vector<ShardId>& shards) {
  // Nobody assigned it: it held the shard before this node heard of it, and is leaving.
  for (const ShardId shard : shards)
    if (shard < table_.size() && member < names_.size() && find(member, shard) == nullptr)
      table_[shard].push_back({member, false, {}});
  for (ShardId shard = 0; shard < table_.size(); ++shard) {
    ShardHolder* holder = find(member, shard);
    if (holder == nullptr || std::find(shards.begin(), shards.end(), shard) != shards.end()) continue;
    if (holder->assigned)
      holder->progress = OwnerProgress{};
    else
      on_released(member, shard);
  }
}

void JobProgress::on_released(MemberIndex member, ShardId shard) {
  if (shard < table_.size())
    std::erase_if(table_[shard],
                  [&](const ShardHolder& holder) { return holder.member == member && !holder.assigned; });
}

void JobProgress::on_digest(MemberIndex member, ShardId shard, StepNumber step, const Sha256& digest) {
  ShardHolder* holder = find(member, shard);
  if (holder == nullptr) return;
  auto entry = digests_.find(step);
  if (entry == digests_.end()) {
    if (digests_.size() >= config_.steps_kept) {
      if (step < digests_.begin()->first) return;  // older than everything kept
      digests_.erase(digests_.begin());
    }
    entry = digests_.emplace(step, std::vector<std::optional<Told>>(table_.size())).first;
  }
  std::optional<Told>& known = entry->second[shard];
  if (!known) {
    known = Told{digest, member};
  } else if (known->digest != digest) {
    if (!divergence_) divergence_ = Divergence{shard, step, member};
  } else if (known->by != member) {
    holder->progress.agreed = std::max(holder->progress.agreed.value_or(0), step);
    if (ShardHolder* other = find(known->by, shard))
      other->progress.agreed = std::max(other->progress.agreed.value_or(0), step);
  }
}

void JobProgress::on_durable(MemberIndex member, ShardId shard, StepNumber step) {
  ShardHolder* holder = find(member, shard);
  if (holder == nullptr) return;
  OwnerProgress& progress = holder->progress;
  progress.durable = std::max(progress.durable.value_or(0), step);
  if (!progress.known || progress.version < step) {
    progress.known = true;
    progress.version = step;
  }
}

bool JobProgress::in_sync(ShardId shard, const ShardHolder& holder) const {
  if (!live_[holder.member] || !holder.progress.durable) return false;
  StepNumber best = 0;
  for (const ShardHolder& other : table_[shard]) best = std::max(best, other.progress.durable.value_or(0));
  return *holder.progress.durable + config_.sync_lag_steps >= best;
}

HolderRole JobProgress::role(ShardId shard, const ShardHolder& holder) const {
  if (!holder.assigned) return HolderRole::kReleasing;
  return in_sync(shard, holder) ? HolderRole::kInSync : HolderRole::kSyncing;
}

std::size_t JobProgress::wanted_copies(ShardId shard) const {
  const auto assigned = std::count_if(table_[shard].begin(), table_[shard].end(),
                                      [](const ShardHolder& holder) { return holder.assigned; });
  return std::min(config_.copies, std::max<std::size_t>(1, static_cast<std::size_t>(assigned)));
}

StepNumber JobProgress::shard_verified(ShardId shard) const {
  StepNumber best = shard_durable(shard).value_or(0);
  for (const ShardHolder& holder : table_[shard])
    if (live_[holder.member] && holder.progress.known) best = std::max(best, holder.progress.version);
  return best;
}

std::optional<StepNumber> JobProgress::shard_durable(ShardId shard) const {
  std::vector<StepNumber> counted;
  std::vector<StepNumber> all;
  for (const ShardHolder& holder : table_[shard]) {
    if (!holder.progress.durable) continue;
    all.push_back(*holder.progress.durable);
    if (in_sync(shard, holder)) counted.push_back(all.back());
  }
  if (all.empty()) return std::nullopt;
  const std::size_t wanted = wanted_copies(shard);
  std::size_t copies = wanted;
  if (config_.degraded_durable) copies = std::max<std::size_t>(1, std::min(wanted, counted.size()));
  // With nobody in sync the shard is where its owners' disks are.
  std::vector<StepNumber>& from = counted.size() >= copies ? counted : all;
  if (from.size() < copies) return std::nullopt;
  std::sort(from.begin(), from.end(), std::greater<>());
  return from[copies - 1];
}

std::optional<StepNumber> JobProgress::best_elsewhere(ShardId shard, MemberIndex self) const {
  std::optional<StepNumber> best;
  if (shard >= table_.size()) return best;
  for (const ShardHolder& holder : table_[shard])
    if (holder.member != self && live_[holder.member] && holder.progress.known)
      best = std::max(best.value_or(0), holder.progress.version);
  return best;
}

std::optional<std::string> JobProgress::kept_because(ShardId shard, MemberIndex member, StepNumber published,
                                                     StepNumber since) const {
  const ShardHolder* own = holder(shard, member);
  if (own == nullptr) return std::nullopt;
  if (own->assigned) return "the shard is assigned to it";
  if (divergence_) return "owners have different digests: nothing is given up";
  bool any = false;
  for (const ShardHolder& next : table_[shard]) {
    if (!next.assigned) continue;
    any = true;
    const std::string& name = names_[next.member];
    const OwnerProgress& theirs = next.progress;
    if (!live_[next.member]) return name + " is down";
    if (!heard(next.member)) return fmt::format("{} has not said yet what it holds in epoch {}", name, epoch_);
    if (!theirs.durable || !in_sync(shard, next)) return name + " copies the shard";
    if (*theirs.durable < std::max(own->progress.durable.value_or(0), since)) return name + " is less durable";
    if (!theirs.agreed) return "no digest of " + name + " has been compared yet";
    if (theirs.from > published)
      return fmt::format("{} cannot produce the steps before {}, and the newest recovery point is {}", name,
                         theirs.from, published);
  }
  if (!any) return "nobody else is assigned to it";
  return std::nullopt;
}

StepNumber JobProgress::verified() const {
  if (table_.empty()) return 0;
  StepNumber lowest = ~StepNumber{0};
  for (ShardId shard = 0; shard < table_.size(); ++shard) lowest = std::min(lowest, shard_verified(shard));
  return lowest;
}

StepNumber JobProgress::durable() const {
  if (table_.empty()) return 0;
  StepNumber lowest = ~StepNumber{0};
  for (ShardId shard = 0; shard < table_.size(); ++shard) {
    const auto step = shard_durable(shard);
    if (!step) return 0;
    lowest = std::min(lowest, *step);
  }
  return lowest;
}

std::size_t JobProgress::base_shards() const {
  std::size_t count = 0;
  for (ShardId shard = 0; shard < table_.size(); ++shard) {
    std::size_t live_assigned = 0;
    std::size_t stored = 0;
    bool any = false;
    for (const ShardHolder& holder : table_[shard]) {
      any = any || holder.progress.durable.has_value();
      if (!live_[holder.member]) continue;
      live_assigned += holder.assigned ? 1 : 0;
      stored += holder.progress.durable ? 1 : 0;
    }
    if (any && stored >= live_assigned) ++count;
  }
  return count;
}

bool JobProgress::base_durable() const {
  return base_shards() == table_.size();
}

std::optional<StepNumber> JobProgress::publishable() const {
  if (divergence_ || table_.empty()) return std::nullopt;
  StepNumber lowest = ~StepNumber{0};
  for (ShardId shard = 0; shard < table_.size(); ++shard) {
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
    list.push_back(digest->digest);
  }
  return list;
}

std::vector<JobProgress::ShardDigest> JobProgress::digests_of(MemberIndex member, StepNumber from,
                                                              std::size_t limit) const {
  std::vector<ShardDigest> list;
  for (auto it = digests_.lower_bound(from); it != digests_.end(); ++it)
    for (ShardId shard = 0; shard < table_.size(); ++shard) {
      const ShardHolder* own = holder(shard, member);
      if (own == nullptr || !it->second[shard] || own->progress.version < it->first) continue;
      if (list.size() == limit) return list;
      list.push_back({shard, it->first, it->second[shard]->digest});
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
  if (shard >= table_.size()) return list;
  for (const ShardHolder& holder : table_[shard]) {
    const OwnerProgress& progress = holder.progress;
    if (live_[holder.member] && progress.durable && *progress.durable >= step && progress.from <= step)
      list.push_back(holder.member);
  }
  return list;
}

StepNumber JobProgress::lowest_durable(ShardId shard) const {
  StepNumber lowest = ~StepNumber{0};
  for (const ShardHolder& holder : table_[shard])
    if (holder.assigned) lowest = std::min(lowest, holder.progress.durable.value_or(0));
  return lowest;
}

std::string JobProgress::owner_names(ShardId shard) const {
  std::string text;
  for (const ShardHolder& holder : table_[shard]) text += (text.empty() ? "" : ", ") + names_[holder.member];
  return text;
}

std::vector<Gap> JobProgress::gaps() const {
  std::vector<Gap> gaps;
  std::string down;
  std::string shorter;
  std::size_t down_count = 0;
  std::size_t short_count = 0;
  for (ShardId shard = 0; shard < table_.size(); ++shard) {
    std::size_t live = 0;
    std::size_t synced = 0;
    for (const ShardHolder& holder : table_[shard]) {
      live += live_[holder.member] ? 1 : 0;
      synced += in_sync(shard, holder) ? 1 : 0;
    }
    if (live == 0) {
      if (++down_count <= 4) down += fmt::format("{}{} ({})", down.empty() ? "" : "; ", shard, owner_names(shard));
    } else if (synced < wanted_copies(shard)) {
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
