// JobProgress: how far a lineage is on all its owners, and what that makes verified, durable and publishable.
//
// Purpose: every node keeps one, fed by its own owners and by its peers' reports; content needs no agreement, so two
// nodes that heard the same reports say the same. Pure; owned by the step coordinator; one thread; time is a parameter.
// Invariants: durable <= verified; a step is publishable only when every shard is durable on enough owners and every
// digest that was reported for it is the same; digests of owners that differ are an alarm (DIVERGED), never a vote.
// Bounds: digests of the newest `steps_kept` steps.
//
// Owners (PROTOCOLS 5.3): the epoch assigns a shard to members; who held it before and is not assigned any more is
// leaving, and counts until it says that it holds it no longer. A leaving owner may release the shard when every
// assigned one is live, in sync, as durable as itself, can produce the newest published step, and has shown an equal
// digest; and has said all that in this epoch or a later one, since it became live. Otherwise two members in different
// epochs could each rely on the other and both let go, or a member that comes back without its disk could be relied on.
//
// Counting (PROTOCOLS 5.5): an owner is in sync while it is live and at most `sync_lag_steps` behind the shard's best.
// D copies make a step durable; with degraded_durable, D falls to the owners in sync, but never below 1.
#pragma once

#include <cstdint>
#include <map>
#include <optional>
#include <string>
#include <string_view>
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
  StepNumber from = 0;                // the oldest step that its store can produce
  std::optional<StepNumber> agreed;   // the newest step whose digest another owner had too
};

struct ShardHolder {
  MemberIndex member = 0;
  bool assigned = true;  // by the epoch in force; false: leaving
  OwnerProgress progress;
};

enum class HolderRole : std::uint8_t { kSyncing, kInSync, kReleasing };
[[nodiscard]] std::string_view holder_role_name(HolderRole role);  // "syncing", ...

class JobProgress {
 public:
  // `owners`: of each shard, primary first. `names`: of each member, for reports.
  JobProgress(std::vector<std::vector<MemberIndex>> owners, std::vector<std::string> names,
              const ProgressConfig& config, std::uint64_t epoch = 0);

  // Another epoch assigns other owners, of the same shards; members are only ever added. Assigned owners that were
  // never heard of and are assigned no more are forgotten, and so are members that are `out`; the others leave.
  void set_owners(const std::vector<std::vector<MemberIndex>>& owners, std::vector<std::string> names,
                  const std::vector<bool>& out, std::uint64_t epoch);
  void on_live(MemberIndex member, bool live);
  void on_version(MemberIndex member, ShardId shard, StepNumber version);
  void on_digest(MemberIndex member, ShardId shard, StepNumber step, const Sha256& digest);
  void on_durable(MemberIndex member, ShardId shard, StepNumber step);
  void on_from(MemberIndex member, ShardId shard, StepNumber from);
  // What the member says of itself next, it says in this epoch.
  void on_report(MemberIndex member, std::uint64_t epoch);
  // The member holds these shards and no other: what it was leaving and does not name, it has released; what it is
  // assigned and does not name, it does not have yet (any more).
  void on_holds(MemberIndex member, const std::vector<ShardId>& shards);
  void on_released(MemberIndex member, ShardId shard);

  [[nodiscard]] StepNumber verified() const;
  [[nodiscard]] StepNumber durable() const;       // 0 while some shard has none
  [[nodiscard]] bool base_durable() const;        // every shard is in as many live owners' stores as is wanted
  [[nodiscard]] std::size_t base_shards() const;  // shards that are
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
  // Live owners that hold the shard durably at `step`, primary first, leaving ones last.
  [[nodiscard]] std::vector<MemberIndex> producers(ShardId shard, StepNumber step) const;
  [[nodiscard]] std::size_t shards() const { return table_.size(); }
  [[nodiscard]] const std::vector<ShardHolder>& holders(ShardId shard) const { return table_[shard]; }
  [[nodiscard]] HolderRole role(ShardId shard, const ShardHolder& holder) const;
  // Null: the member has nothing to do with the shard.
  [[nodiscard]] const ShardHolder* holder(ShardId shard, MemberIndex member) const;
  // The newest version that any other live owner has.
  [[nodiscard]] std::optional<StepNumber> best_elsewhere(ShardId shard, MemberIndex self) const;
  // The lowest durable step among the shard's assigned owners, live or not: their co-owner keeps the log after it.
  [[nodiscard]] StepNumber lowest_durable(ShardId shard) const;
  // Nothing: the leaving owner may release the shard. Otherwise what it waits for.
  // `since`: the step up to which nobody but the leaving owner may have the gradients.
  [[nodiscard]] std::optional<std::string> kept_because(ShardId shard, MemberIndex member, StepNumber published,
                                                        StepNumber since = 0) const;
  // OWNER_DOWN, REPLICA_SHORT, DIVERGED.
  [[nodiscard]] std::vector<Gap> gaps() const;
  [[nodiscard]] bool diverged() const { return divergence_.has_value(); }
  [[nodiscard]] bool live(MemberIndex member) const { return member < live_.size() && live_[member]; }
  // It is live, and has said what it holds since then, in the epoch in force or a later one.
  [[nodiscard]] bool heard(MemberIndex member) const;

 private:
  [[nodiscard]] std::optional<StepNumber> shard_durable(ShardId shard) const;
  [[nodiscard]] StepNumber shard_verified(ShardId shard) const;
  [[nodiscard]] ShardHolder* find(MemberIndex member, ShardId shard);
  [[nodiscard]] bool in_sync(ShardId shard, const ShardHolder& holder) const;
  [[nodiscard]] std::size_t wanted_copies(ShardId shard) const;
  [[nodiscard]] std::string owner_names(ShardId shard) const;

  std::vector<std::string> names_;
  ProgressConfig config_;
  std::vector<bool> live_;  // by member
  std::uint64_t epoch_ = 0;
  std::vector<std::optional<std::uint64_t>> said_in_;  // by member: epoch of its newest report since it became live
  std::vector<std::vector<ShardHolder>> table_;  // by shard: assigned ones in the epoch's order, then leaving ones
  struct Told {
    Sha256 digest{};
    MemberIndex by = 0;
  };
  std::map<StepNumber, std::vector<std::optional<Told>>> digests_;  // by shard
  struct Divergence {
    ShardId shard = 0;
    StepNumber step = 0;
    MemberIndex member = 0;
  };
  std::optional<Divergence> divergence_;
};

}  // namespace gradtap::actors
