// ClusterState: who is a member, who is live, and who is the home of the job, as this node sees it now.
//
// Purpose: one place that every thread of the node may ask (gateway, fetcher, replicators, actors). Who belongs to the
// cluster and who owns what is said by the epoch in force (PROTOCOLS 5.2). Ownership: shared; what is live is written
// by the membership actor alone, the epoch by the node when it has read a newer one. Threads: any (a mutex; nobody asks
// per packet). Invariants: an epoch is only ever followed by one of a higher number; the index of a member never
// changes; this node is always live; the home is the first member in the epoch's order that is in, live and ready, so
// that two nodes with the same view name the same home (one that is draining is it only while no other can be); a
// member that is still catching up on side values is live but not ready. Failure behaviour: none.
#pragma once

#include <cstdint>
#include <memory>
#include <mutex>
#include <optional>
#include <string>
#include <vector>

#include "actors/placement.h"
#include "common/cluster_config.h"
#include "storage/epoch_log.h"
#include "storage/store_identity.h"

namespace gradtap::actors {

using EpochPtr = std::shared_ptr<const storage::StoredEpoch>;

// Epoch 1 of a cluster that begins: the members of the cluster file, all in, and no job yet.
[[nodiscard]] schema::EpochRecord first_epoch(const ClusterConfig& config);

[[nodiscard]] std::string_view member_state_name(schema::MemberState state);  // "in", "draining", "out"

class ClusterState {
 public:
  // `epoch` names this node, at index `self`.
  ClusterState(ClusterConfig config, EpochPtr epoch, MemberIndex self);
  // The members of the cluster file, as epoch 0: a node that is alone, and tests.
  ClusterState(ClusterConfig config, MemberIndex self);

  [[nodiscard]] const ClusterConfig& config() const { return config_; }
  [[nodiscard]] MemberIndex self() const { return self_; }
  // No epochs and no peers: such a node has no node link and takes no other members.
  [[nodiscard]] bool alone() const { return config_.members.size() == 1 && epoch_number() == 0; }

  // False: not newer than the one in force, or it is no successor of it (other members at the same places).
  bool set_epoch(EpochPtr epoch);
  [[nodiscard]] EpochPtr epoch() const;
  [[nodiscard]] std::uint64_t epoch_number() const { return epoch()->record.number; }
  [[nodiscard]] std::size_t size() const;  // members, those that are out among them
  [[nodiscard]] schema::EpochMember member(MemberIndex member) const;
  [[nodiscard]] std::string name(MemberIndex member) const;
  [[nodiscard]] std::vector<std::string> names() const;
  [[nodiscard]] std::optional<MemberIndex> index_of(std::string_view name) const;
  [[nodiscard]] bool is_out(MemberIndex member) const;
  // By shard, primary first: as the epoch says, or, for another number of shards than it knows, as it would.
  [[nodiscard]] std::vector<std::vector<MemberIndex>> owners(std::size_t shards) const;
  [[nodiscard]] std::size_t replicas() const { return epoch()->record.replicas; }

  void set_live(MemberIndex member, bool live);
  void set_ready(MemberIndex member, bool ready);
  void set_tap(MemberIndex member, bool tap);
  void set_store(MemberIndex member, storage::StoreHello hello);
  // What the member says of the object store; empty texts while it has not said it.
  [[nodiscard]] storage::StoreHello store(MemberIndex member) const;
  [[nodiscard]] bool live(MemberIndex member) const;
  [[nodiscard]] bool ready(MemberIndex member) const;
  [[nodiscard]] bool tap(MemberIndex member) const;  // it said that it has a mirror port
  [[nodiscard]] std::vector<MemberIndex> live_peers() const;
  // Nobody is ready: no home.
  [[nodiscard]] std::optional<MemberIndex> home() const;
  [[nodiscard]] bool is_home() const { return home() == self_; }

 private:
  struct Seen {
    bool live = false;
    bool ready = false;
    bool tap = false;
    storage::StoreHello store;
  };
  [[nodiscard]] const Seen& seen(MemberIndex member) const;

  const ClusterConfig config_;
  const MemberIndex self_;
  mutable std::mutex mutex_;
  EpochPtr epoch_;
  std::vector<Seen> seen_;  // by member
};

}  // namespace gradtap::actors
