#include "actors/drain_check.h"

#include <algorithm>

#include <fmt/format.h>

namespace gradtap::actors {

DrainCheck check_drain(const ClusterState& cluster, const PlacementView& view, MemberIndex member) {
  DrainCheck check;
  std::vector<ShardId> alone;
  for (const ShardView& shard : view.shards) {
    std::size_t others = 0;
    bool holds = false;
    std::size_t assigned = 0;
    for (const HolderView& holder : shard.holders) {
      assigned += holder.assigned ? 1 : 0;
      if (holder.member == member) {
        holds = holder.version.has_value();
        continue;
      }
      // What stays must have all that is called durable, whatever its role: a leaving holder may be far behind.
      const bool keeps_up = holder.role != HolderRole::kSyncing && holder.durable &&
                            *holder.durable >= std::max(view.published, view.durable);
      others += holder.live && keeps_up ? 1 : 0;
    }
    if (others == 0) alone.push_back(shard.shard);
    if (!holds) continue;
    ++check.held_shards;
    check.held_bytes += shard.state_bytes;
    if (others < std::min<std::size_t>(cluster.replicas(), std::max<std::size_t>(assigned, 1))) ++check.short_shards;
  }
  check.alone_shards = alone.size();
  if (!alone.empty())
    check.reasons.push_back(
        fmt::format("no other live owner has {} of the shards in sync: {}{}", alone.size(),
                    fmt::join(alone.begin(), alone.begin() + std::min<std::ptrdiff_t>(8, std::ssize(alone)), ", "),
                    alone.size() > 8 ? ", ..." : ""));
  bool ready = false;
  bool tap = false;
  for (MemberIndex other = 0; other < cluster.size(); ++other) {
    if (other == member || !cluster.live(other)) continue;
    ready = ready || (cluster.ready(other) && cluster.member(other).state == schema::MemberState::kIn);
    tap = tap || cluster.tap(other);
  }
  if (!ready) check.reasons.emplace_back("no other member is ready to be the home");
  if (cluster.tap(member) && !tap) check.reasons.emplace_back("no other live member has a mirror port");
  check.is_home = cluster.home() == member;
  return check;
}

}  // namespace gradtap::actors
