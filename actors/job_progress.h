// JobProgress: how far a lineage is on all its owners, and what that makes verified, durable and publishable.
//
// Purpose: every node keeps one, fed by its own owners and by its peers' reports; content needs no agreement, so two
// nodes that heard the same reports say the same. Pure; owned by the step coordinator; one thread; time is a parameter.
// Invariants: durable <= verified; a step is publishable only when every shard is durable on enough owners and every
// digest that was reported for it is the same; digests of owners that differ are an alarm (DIVERGED), never a vote.
// Bounds: digests of the newest `steps_kept` steps.
//
// Counting (PROTOCOLS 5.5): an owner is in sync while it is live and at most `sync_lag_steps` behind the shard's best.
// D copies make a step durable; with degraded_durable, D falls to the owners in sync, but never below 1.
#pragma once

#include <cstdint>
#include <map>
#include <optional>
#include <string>
#include <vector>

#include "actors/placement.h"
#include "common/gap_reason.h"
#include "common/ids.h"

namespace gradtap::actors {

struct ProgressConfig {
  std::size_t copies = 1;  // D
  bool degraded_durable = true;
  StepNumber sync_lag_steps = 8;
  std::size_t steps_kept = 4096;
};

struct OwnerProgress {
  bool known = false;                 // it ever reported this lineage
  StepNumber version = 0;             // valid when known
  std::optional<StepNumber> durable;  // empty: nothing of the lineage is in its store yet
};

class JobProgress {
 public:
  // `owners`: of each shard, primary first. `names`: of each member, for reports.
  JobProgress(std::vector<std::vector<MemberIndex>> owners, std::vector<std::string> names,
              const ProgressConfig& config);

  void on_live(MemberIndex member, bool live);
  void on_version(MemberIndex member, ShardId shard, StepNumber version);
  void on_digest(MemberIndex member, ShardId shard, StepNumber step, const Sha256& digest);
  void on_durable(MemberIndex member, ShardId shard, StepNumber step);

  [[nodiscard]] StepNumber verified() const;
  [[nodiscard]] StepNumber durable() const;       // 0 while some shard has none
  [[nodiscard]] bool base_durable() const;        // every shard has a version on every live owner (at least on one)
  [[nodiscard]] std::size_t base_shards() const;  // shards that have one
  // The newest step that every shard holds durably with one digest; nothing when there is none, or after a divergence.
  [[nodiscard]] std::optional<StepNumber> publishable() const;
  // Shard digests of a step in shard order, when all are known.
  [[nodiscard]] std::optional<std::vector<Sha256>> digests(StepNumber step) const;
  struct ShardDigest {
    ShardId shard = 0;
    StepNumber step = 0;
    Sha256 digest{};
  };
  // What is known of a member's own shards from a step on, up to the version it reported: at most `limit`, oldest
  // first.
  [[nodiscard]] std::vector<ShardDigest> digests_of(MemberIndex member, StepNumber from, std::size_t limit) const;
  [[nodiscard]] std::map<StepNumber, Sha256> roots(StepNumber from, StepNumber to) const;
  // Live owners that hold the shard durably at `step`, primary first.
  [[nodiscard]] std::vector<MemberIndex> producers(ShardId shard, StepNumber step) const;
  [[nodiscard]] const OwnerProgress& owner(ShardId shard, std::size_t place) const { return table_[shard][place]; }
  [[nodiscard]] const std::vector<std::vector<MemberIndex>>& owners() const { return owners_; }
  // The lowest durable step among the shard's owners, live or not: their co-owner keeps the log after it.
  [[nodiscard]] StepNumber lowest_durable(ShardId shard) const;
  // OWNER_DOWN, REPLICA_SHORT, DIVERGED.
  [[nodiscard]] std::vector<Gap> gaps() const;
  [[nodiscard]] bool diverged() const { return divergence_.has_value(); }

 private:
  [[nodiscard]] std::optional<StepNumber> shard_durable(ShardId shard) const;
  [[nodiscard]] StepNumber shard_verified(ShardId shard) const;
  [[nodiscard]] std::size_t place_of(MemberIndex member, ShardId shard) const;  // owners.size() when it is none
  [[nodiscard]] bool in_sync(ShardId shard, std::size_t place) const;
  [[nodiscard]] std::string owner_names(ShardId shard) const;

  std::vector<std::vector<MemberIndex>> owners_;
  std::vector<std::string> names_;
  ProgressConfig config_;
  std::vector<bool> live_;                                            // by member
  std::vector<std::vector<OwnerProgress>> table_;                     // by shard and place
  std::map<StepNumber, std::vector<std::optional<Sha256>>> digests_;  // by shard
  struct Divergence {
    ShardId shard = 0;
    StepNumber step = 0;
    MemberIndex member = 0;
  };
  std::optional<Divergence> divergence_;
};

}  // namespace gradtap::actors
