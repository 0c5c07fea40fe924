#include "storage/point_retain.h"

#include <algorithm>
#include <memory>
#include <set>
#include <utility>

#include <fmt/format.h>

#include "storage/object_key.h"

namespace gradtap::storage {
namespace {

// Below these steps an object is needed only where a remaining record says so.
struct Horizon {
  std::map<ShardId, StepNumber> base;  // lowest of each shard in the window
  StepNumber lowest_base = ~StepNumber{0};
};

bool below_horizon(const ObjectKey& key, const Horizon& horizon, StepNumber cut) {
  if (key.kind == KeyKind::kSide) return key.step < cut;
  if (horizon.base.empty()) return false;
  if (key.kind == KeyKind::kStep) return key.step < horizon.lowest_base;
  if (key.kind != KeyKind::kFull && key.kind != KeyKind::kLog) return false;
  const auto at = horizon.base.find(key.shard);
  return at != horizon.base.end() && key.step < at->second;
}

bool may_be_read_later(const Error& error) {
  return error.code != ErrorCode::kObjectCorrupt && error.code != ErrorCode::kObjectForeign;
}

}  // namespace

void PointRetention::block(Windows& windows, LineageId lineage, Error why) {
  Window& window = windows.at(lineage);
  if (!window.blocked) report_.blocked.push_back(std::move(why));
  window.blocked = true;
}

Result<PointRetainReport> PointRetention::run(const std::string& job) {
  report_ = {};
  const auto listing = list_points(store_, job);
  if (!listing) return std::unexpected<Error>(listing.error());
  if (listing->lineages.empty()) return report_;
  const auto keys = store_.list(job_prefix(job));
  if (!keys) return std::unexpected<Error>(keys.error());
  const LeaseWatch::Seen seen = leases_.look(job, *keys);
  std::vector<LineageReach> live;
  // A parent that is not known ends the chain: what lies beyond is left alone.
  if (const Status chain = lineage_chain(*listing, listing->lineages.front().lineage, live); !chain)
    report_.blocked.push_back(chain.error());
  Windows windows;
  for (const LineageReach& reach : live) windows.emplace(reach.lineage, Window{});
  GRADTAP_TRY(delete_points(*listing, live, seen.held, windows));
  GRADTAP_TRY(delete_objects(job, *listing, windows));
  GRADTAP_TRY(store_.remove(seen.expired));
  report_.leases_expired = seen.expired.size();
  const auto stray = store_.remove_stray();
  if (!stray) return std::unexpected<Error>(stray.error());
  report_.stray_files_deleted = *stray;
  return report_;
}

Status PointRetention::delete_points(const PointListing& listing, const std::vector<LineageReach>& live,
                                     const std::vector<PointName>& leased, Windows& windows) {
  std::set<PointName> kept(leased.begin(), leased.end());
  const std::uint64_t keep = std::max<std::uint64_t>(options_.points_kept, 1);
  for (const LineageReach& reach : live) {
    std::uint64_t valid = 0;
    bool fork_point = false;
    for (const PointEntry& point : listing.points) {  // newest first
      if (point.lineage != reach.lineage || !point.valid) continue;
      if (++valid == keep) windows.at(reach.lineage).cut = point.step;
      if (!fork_point && point.step <= reach.up_to) {
        fork_point = true;
        kept.emplace(point.lineage, point.step);
      }
    }
  }
  std::vector<std::string> deleted;
  for (const PointEntry& point : listing.points) {
    const auto window = windows.find(point.lineage);
    if (window == windows.end() || point.step >= window->second.cut || kept.contains({point.lineage, point.step}))
      continue;
    if (!point.record && point.problem && may_be_read_later(*point.problem)) continue;
    deleted.push_back(point.key);
  }
  // Durable before the first data object goes: a power loss must not bring back a record without its objects.
  GRADTAP_TRY(store_.remove(deleted));
  report_.points_deleted = deleted.size();
  return {};
}

Status PointRetention::delete_objects(const std::string& job, const PointListing& before, Windows& windows) {
  // Listed again after the points went. A restore takes its lease, then looks whether its point is there: if it saw the
  // point, it did so before the deletion, so its lease is in this listing.
  const auto keys = store_.list(job_prefix(job));
  if (!keys) return std::unexpected<Error>(keys.error());
  const std::vector<PointName> leased = leases_.look(job, *keys).held;
  report_.leases_held = leased.size();
  std::map<std::string_view, std::shared_ptr<const schema::PointRecord>> known;
  for (const PointEntry& point : before.points)
    if (point.record) known.emplace(point.key, point.record);
  std::set<std::string, std::less<>> needed;
  std::set<PointName> there;
  std::map<LineageId, Horizon> horizons;
  for (const std::string& text : *keys) {
    const auto key = parse_key(text);
    if (!key || key->kind != KeyKind::kPoint || !windows.contains(key->lineage)) continue;
    there.emplace(key->lineage, key->step);
    ++report_.points_left;
    std::shared_ptr<const schema::PointRecord> record;
    if (const auto at = known.find(text); at != known.end()) {
      record = at->second;
    } else if (auto point = read_point(store_, job, key->lineage, key->step)) {
      record = std::make_shared<const schema::PointRecord>(std::move(point->record));
    } else {
      block(windows, key->lineage, point.error());
      continue;
    }
    for (const PointObject& object : objects_of(*record)) needed.insert(object.ref->key);
    if (key->step < windows.at(key->lineage).cut) continue;
    Horizon& horizon = horizons[key->lineage];
    for (const schema::ShardObjects& shard : record->shards) {
      StepNumber& base = horizon.base.try_emplace(shard.shard, shard.base_step).first->second;
      base = std::min(base, shard.base_step);
      horizon.lowest_base = std::min(horizon.lowest_base, base);
    }
  }
  for (const PointName& name : leased)
    if (windows.contains(name.first) && !there.contains(name))
      block(windows, name.first,
            {ErrorCode::kObjectMissing,
             "a lease holds a point that is gone",
             point_key(job, name.first, name.second),
             {},
             {},
             "data objects of the lineage are spared until the lease ends"});
  const std::uint64_t now = clock_.monotonic_ns();
  std::map<std::string, std::uint64_t> waiting;
  std::vector<std::string> deleted;
  for (const std::string& text : *keys) {
    const auto key = parse_key(text);
    if (!key || needed.contains(text)) continue;
    const auto window = windows.find(key->lineage);
    if (window == windows.end() || window->second.blocked ||
        !below_horizon(*key, horizons[key->lineage], window->second.cut))
      continue;
    const auto at = waiting_.find(text);
    const std::uint64_t since = at == waiting_.end() ? now : at->second;
    if (now - since >= options_.orphan_grace_ms * 1'000'000)
      deleted.push_back(text);
    else
      waiting.emplace(text, since);
  }
  std::erase_if(waiting_, [&](const auto& entry) { return entry.first.starts_with(job_prefix(job)); });
  waiting_.merge(waiting);
  report_.objects_waiting = waiting_.size();
  GRADTAP_TRY(store_.remove(deleted));
  report_.objects_deleted = deleted.size();
  return {};
}

}  // namespace gradtap::storage
