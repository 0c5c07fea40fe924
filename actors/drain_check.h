// DrainCheck: can this member be taken down now, for ever and with its disk, and what would it cost?
//
// Pure function of what this node knows; any thread. "Safe" means: nothing that is durable or published is lost, every
// shard goes on with another owner, some mirror port is left, and somebody can be the home. It says nothing of a second
// failure: `short_shards` counts the shards that would have fewer copies than wanted until they are copied again.
#pragma once

#include <cstdint>
#include <string>
#include <vector>

#include "actors/cluster_state.h"
#include "actors/placement_view.h"

namespace gradtap::actors {

struct DrainCheck {
  std::vector<std::string> reasons;  // why it is not safe; empty: it is
  std::size_t held_shards = 0;       // versions on it, assigned or leaving
  std::uint64_t held_bytes = 0;      // of one version of each
  std::size_t short_shards = 0;      // would have fewer copies than wanted
  std::size_t alone_shards = 0;      // no other live holder has all that is durable
  bool is_home = false;              // another node becomes the home
  [[nodiscard]] bool safe() const { return reasons.empty(); }
};

[[nodiscard]] DrainCheck check_drain(const ClusterState& cluster, const PlacementView& view, MemberIndex member);

}  // namespace gradtap::actors
