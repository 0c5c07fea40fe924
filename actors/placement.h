// Placement: which members own a shard (PROTOCOLS 5.1, 5.2).
//
// Pure functions, integers only: the same arguments give the same map on every machine. It is computed by the proposer
// of an epoch and stored there; a lineage whose number of shards no epoch has seen yet is placed by the same function
// on every node. Invariants: owners of one shard are different members in state kIn, in different failure domains
// where the members allow it; a shard moves only if its owner may not keep it or has more than its share; when nothing
// stands in the way (domains, shards that every member already has), the numbers of shards per unit of capacity differ
// by at most one shard. The first owner is the primary: it uploads the shard's objects; primaries are spread likewise.
#pragma once

#include <cstddef>
#include <vector>

#include "common/ids.h"
#include "schema/epoch_codec.h"

namespace gradtap::actors {

using MemberIndex = std::size_t;  // place in the epoch's list of members; never changes

using ShardPlacement = std::vector<std::vector<std::uint32_t>>;  // by shard, primary first

// `current`: the map in force; may have another number of shards (then the common ones are kept). Shards get
// min(replicas, members in kIn) owners.
[[nodiscard]] ShardPlacement place_shards(const std::vector<schema::EpochMember>& members, std::size_t replicas,
                                          std::size_t shards, const ShardPlacement& current);

// Shards whose owners are all in one failure domain although there is more than one owner.
[[nodiscard]] std::size_t shards_in_one_domain(const std::vector<schema::EpochMember>& members,
                                               const ShardPlacement& placement);

}  // namespace gradtap::actors
