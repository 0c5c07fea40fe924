// Placement: which members own a shard, computed from the cluster file (PROTOCOLS 5.1, 5.2 without epochs).
//
// Pure function of (members in file order, replicas); every node computes the same map. Owners of one shard stand in
// different failure domains where the file allows it; shards go round the members, so that each holds about the same
// number. The first owner is the primary: it uploads the shard's objects.
#pragma once

#include <cstddef>
#include <string>
#include <vector>

#include "common/ids.h"

namespace gradtap::actors {

using MemberIndex = std::size_t;  // place in the cluster file

// `domains`: of each member, in file order. Yields min(replicas, members) distinct members.
[[nodiscard]] std::vector<MemberIndex> owners_of(ShardId shard, const std::vector<std::string>& domains,
                                                 std::size_t replicas);

}  // namespace gradtap::actors
