#include "actors/cluster_state.h"

#include <utility>

namespace gradtap::actors {

ClusterState::ClusterState(ClusterConfig config, MemberIndex self)
    : config_(std::move(config)),
      self_(self),
      live_(config_.members.size(), false),
      ready_(live_.size(), false),
      stores_(live_.size()) {
  live_[self_] = true;
}

std::vector<std::vector<MemberIndex>> ClusterState::owners(std::size_t shards) const {
  std::vector<std::string> domains;
  for (const MemberSection& member : config_.members) domains.push_back(member.domain);
  std::vector<std::vector<MemberIndex>> owners;
  owners.reserve(shards);
  for (std::size_t shard = 0; shard < shards; ++shard)
    owners.push_back(owners_of(static_cast<ShardId>(shard), domains, config_.replicas));
  return owners;
}

void ClusterState::set_live(MemberIndex member, bool live) {
  const std::lock_guard lock(mutex_);
  live_[member] = live || member == self_;
  if (!live_[member]) ready_[member] = false;
}

void ClusterState::set_ready(MemberIndex member, bool ready) {
  const std::lock_guard lock(mutex_);
  ready_[member] = ready;
}

void ClusterState::set_store(MemberIndex member, storage::StoreHello hello) {
  const std::lock_guard lock(mutex_);
  stores_[member] = std::move(hello);
}

storage::StoreHello ClusterState::store(MemberIndex member) const {
  const std::lock_guard lock(mutex_);
  return stores_[member];
}

bool ClusterState::live(MemberIndex member) const {
  const std::lock_guard lock(mutex_);
  return live_[member];
}

bool ClusterState::ready(MemberIndex member) const {
  const std::lock_guard lock(mutex_);
  return live_[member] && ready_[member];
}

std::vector<MemberIndex> ClusterState::live_peers() const {
  const std::lock_guard lock(mutex_);
  std::vector<MemberIndex> peers;
  for (MemberIndex member = 0; member < live_.size(); ++member)
    if (member != self_ && live_[member]) peers.push_back(member);
  return peers;
}

std::optional<MemberIndex> ClusterState::home() const {
  const std::lock_guard lock(mutex_);
  for (MemberIndex member = 0; member < live_.size(); ++member)
    if (live_[member] && ready_[member]) return member;
  return std::nullopt;
}

}  // namespace gradtap::actors
