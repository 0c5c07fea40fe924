#include "actors/placement.h"

#include <algorithm>

namespace gradtap::actors {

std::vector<MemberIndex> owners_of(ShardId shard, const std::vector<std::string>& domains, std::size_t replicas) {
  const std::size_t count = domains.size();
  std::vector<MemberIndex> owners;
  const auto domain_taken = [&](MemberIndex member) {
    return std::any_of(owners.begin(), owners.end(),
                       [&](MemberIndex owner) { return domains[owner] == domains[member]; });
  };
  const auto taken = [&](MemberIndex member) {
    return std::find(owners.begin(), owners.end(), member) != owners.end();
  };
  // The step between the owners of a shard changes with each round, so that every pair of members shares some shards.
  const std::size_t first = shard % count;
  const std::size_t stride = count > 2 ? 1 + shard / count % (count - 1) : 1;
  owners.push_back(first);
  for (const bool apart : {true, false})
    for (std::size_t i = 0; i < count && owners.size() < std::min(replicas, count); ++i) {
      const MemberIndex member = (first + stride + i) % count;
      if (!taken(member) && (!apart || !domain_taken(member))) owners.push_back(member);
    }
  return owners;
}

}  // namespace gradtap::actors
