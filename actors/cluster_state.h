// ClusterState: who is a member, who is live, and who is the home of the job, as this node sees it now.
//
// Purpose: one place that every thread of the node may ask (gateway, fetcher, replicators, actors). Ownership: shared;
// written by the membership actor alone. Threads: any (a mutex; nobody asks per packet). Invariants: this node is
// always live; the home is the first member in file order that is live and ready, so that two nodes with the same view
// name the same home; a member that is still catching up on side values is live but not ready. Failure behaviour: none.
#pragma once

#include <cstdint>
#include <mutex>
#include <optional>
#include <string>
#include <vector>

#include "actors/placement.h"
#include "common/cluster_config.h"
#include "storage/store_identity.h"

namespace gradtap::actors {

class ClusterState {
 public:
  ClusterState(ClusterConfig config, MemberIndex self);

  [[nodiscard]] const ClusterConfig& config() const { return config_; }
  [[nodiscard]] MemberIndex self() const { return self_; }
  [[nodiscard]] std::size_t size() const { return config_.members.size(); }
  [[nodiscard]] bool alone() const { return size() == 1; }
  [[nodiscard]] const std::string& name(MemberIndex member) const { return config_.members[member].name; }
  [[nodiscard]] std::vector<std::vector<MemberIndex>> owners(std::size_t shards) const;

  void set_live(MemberIndex member, bool live);
  void set_ready(MemberIndex member, bool ready);
  void set_store(MemberIndex member, storage::StoreHello hello);
  // What the member says of the object store; empty texts while it has not said it.
  [[nodiscard]] storage::StoreHello store(MemberIndex member) const;
  [[nodiscard]] bool live(MemberIndex member) const;
  [[nodiscard]] bool ready(MemberIndex member) const;
  [[nodiscard]] std::vector<MemberIndex> live_peers() const;
  // Nobody is ready: no home.
  [[nodiscard]] std::optional<MemberIndex> home() const;
  [[nodiscard]] bool is_home() const { return home() == self_; }

 private:
  const ClusterConfig config_;
  const MemberIndex self_;
  mutable std::mutex mutex_;
  std::vector<bool> live_;
  std::vector<bool> ready_;
  std::vector<storage::StoreHello> stores_;
};

}  // namespace gradtap::actors
