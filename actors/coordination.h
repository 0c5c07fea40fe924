// Coordination: what the step coordinator decides, as a pure object.
//
// Purpose: steps in order: bind the buckets of step s by rule 2.2, see to it that every byte is there, give the go;
// keep the four numbers and say why they differ. Every node binds by itself, for the shards that it owns; a step that
// this node's tap did not see whole is fetched from peers, which have proven it by the same rule. It never sees bytes:
// it asks for words at witness positions and for missing ranges. Inputs are calls, outputs are Commands to be carried
// out by the actor; replies carry the command's ticket. Ownership: owns the binder and all bookkeeping of one lineage.
// Threads: one. Time is a parameter.
// Invariants: published <= durable <= verified <= training; no step without its message; nothing is bound twice; never
// more than `bind_ahead_steps` steps bound and not applied here. Failure behaviour: what cannot be proven holds the
// replica where it is, with a reason; late bytes are still tried.
#pragma once

#include <cstdint>
#include <deque>
#include <map>
#include <memory>
#include <optional>
#include <set>
#include <span>
#include <string>
#include <variant>
#include <vector>

#include <nlohmann/json.hpp>

#include "actors/job_progress.h"
#include "actors/messages.h"
#include "actors/placement_view.h"
#include "common/clock.h"
#include "common/gap_reason.h"
#include "dataplane/binding.h"
#include "dataplane/size_table.h"
#include "recovery/job_plan.h"

namespace gradtap::actors {

struct CoordinationConfig {
  std::uint64_t grace_ms = 200;            // step message seen, ops not: wait this long, then drain the queues
  std::uint64_t bind_ahead_steps = 2;      // bound and not verified
  std::uint64_t pending_steps_max = 4096;  // step messages kept
  std::uint64_t trainer_silent_ms = 60'000;
  std::uint64_t roots_kept = 4096;
  std::uint64_t layouts_max = 64;
  std::string coverage_hole;  // what the mirrored ports cannot show; empty: nothing
  // A peer bound so many steps more: what this node has not bound by itself is fetched at once, not after the grace.
  StepNumber behind_steps = 3;
  bool degraded_durable = true;
  bool tags_absolute = true;       // the wire says them: every tap sees the same
  bool points_configured = false;  // recovery points have a place to go
  std::uint64_t publish_interval_steps = 1;
  bool has_tap = true;            // without one, what peers have bound is fetched at once
  std::size_t goes_kept = 512;    // scalars of bound steps, for owners that are being brought up
  std::uint64_t stuck_ms = 1000;  // an owner here behind what is bound for so long fetches its next step
};

// Who owns what, as this node sees it.
struct ClusterShape {
  MemberIndex self = 0;
  std::vector<std::string> names;                // members in the epoch's order
  std::vector<std::vector<MemberIndex>> owners;  // by shard, primary first
  std::uint64_t epoch = 0;
  std::vector<bool> out{};  // members that left: not listened to, and what they held is nobody's copy
};
// What an owner here has when the lineage is launched.
struct HeldShard {
  StepNumber version = 0;
  StepNumber from = 0;  // the oldest step that its store can produce
};
// One member that owns everything.
[[nodiscard]] ClusterShape single_member(std::size_t shards);

// What another member says about the lineage, from time to time.
struct PeerReport {
  MemberIndex member = 0;
  StepNumber training = 0;
  StepNumber bound = 0;
  StepNumber published = 0;
  std::uint64_t epoch = 0;
  std::optional<std::int64_t> delta;  // offset of tags, once it is learnt there
  struct Shard {
    ShardId shard = 0;
    StepNumber version = 0;
    std::optional<StepNumber> durable;
    StepNumber from = 0;  // the oldest step that it can produce
  };
  std::vector<Shard> shards;  // every one that it holds
  struct Digest {
    ShardId shard = 0;
    StepNumber step = 0;
    Sha256 digest{};
  };
  std::vector<Digest> digests;
  std::optional<StepNumber> digests_wanted;  // it lacks digests from this step on
  std::vector<Gap> gaps;                     // of verify and durable stage, its own
};

// -- commands ------------------------------------------------------------------------------------------------------
struct AskWords {
  std::uint64_t ticket = 0;
  WordQuery query;
};
struct OrderBind {
  std::uint64_t ticket = 0;
  BindOrder order;
};
struct AskDrain {
  std::uint64_t ticket = 0;
};
struct GiveGo {
  GoPtr go;
};
struct ForgetBelow {
  std::uint32_t comm = 0;
  std::uint32_t tag = 0;
};
struct AskLayout {
  LayoutId layout{};
};
// The owners here are to fetch this step's gradient from peers.
struct FetchStep {
  GoPtr go;
};
// An owner that is being brought up, or is stuck, is to fetch this step's gradient from peers.
struct FetchShard {
  ShardId shard = 0;
  GoPtr go;
};
// An owner that has no version, or none that a log leads on from, is to ask peers for one that is no older than this.
struct AskVersion {
  ShardId shard = 0;
  StepNumber at_least = 0;
};
// The shard's new owners are as durable as this one: it lets go.
struct ReleaseShard {
  ShardId shard = 0;
};
// Messages after this step, or layouts, have not come here although others go on: ask whoever has them all.
struct AskMessages {
  StepNumber after = 0;
};
struct PublishSizes {
  OpSizesPtr sizes;
};
struct NoteEvent {
  bool warning = false;
  std::string text;
};
using Command = std::variant<AskWords, OrderBind, AskDrain, GiveGo, ForgetBelow, AskLayout, AskMessages, PublishSizes,
                             FetchStep, FetchShard, AskVersion, ReleaseShard, NoteEvent>;

class Coordination {
 public:
  // `version`: the step to go on from. `sizes`: op sizes known so far (grown here, never shrunk). `held`: what the
  // owners here have, assigned or leaving; the other shards that `shape` assigns to this node are brought up.
  Coordination(JobPlanPtr plan, const CoordinationConfig& config, const Clock& clock, StepNumber version,
               dataplane::SizeTable sizes, ClusterShape shape, const std::map<ShardId, HeldShard>& held);
  // Every shard that `shape` assigns to this node is at `version`.
  Coordination(JobPlanPtr plan, const CoordinationConfig& config, const Clock& clock, StepNumber version,
               dataplane::SizeTable sizes, ClusterShape shape);
  // Alone: a cluster of one.
  Coordination(JobPlanPtr plan, const CoordinationConfig& config, const Clock& clock, StepNumber version,
               dataplane::SizeTable sizes);

  void on_layout(const LayoutPtr& layout);
  void on_step(const StepMessagePtr& message);
  void on_notice(const ClientNotice& notice);
  void on_ops(std::span<const dataplane::OpSummary> ops);
  void on_words(std::uint64_t ticket, const std::optional<WordAnswer>& answer);  // nullopt: no answer in time
  void on_bind(std::uint64_t ticket, const Outcome& outcome);
  // Not done: some queue was never found empty in time. `refusal`: what the wire shows that is not decoded.
  void on_drained(std::uint64_t ticket, bool done = true, std::string refusal = {});
  void on_applied(const Applied& applied);
  void on_durable(const Durable& durable);
  // An owner here took over a whole version of this step from a peer.
  void on_jumped(ShardId shard, StepNumber step);
  // Another epoch: shards newly assigned to this node are brought up, those not assigned any more are left when their
  // new owners have them.
  void on_epoch(ClusterShape shape);
  void on_peer(const PeerReport& report);
  void on_live(MemberIndex member, bool live);
  // What the publisher has to say, wherever it runs: the newest recovery point, and why there is no newer one.
  void on_published(StepNumber step, std::vector<Gap> gaps);
  void tick();

  [[nodiscard]] std::vector<Command> take_commands();

  [[nodiscard]] StepNumber training() const;
  [[nodiscard]] StepNumber bound() const { return bound_; }
  [[nodiscard]] std::optional<std::int64_t> delta() const {
    return binder_.deltas().empty() ? std::nullopt : std::optional(binder_.deltas().front());
  }
  [[nodiscard]] StepNumber verified() const;
  [[nodiscard]] StepNumber durable() const;
  [[nodiscard]] StepNumber published() const { return published_; }
  [[nodiscard]] std::size_t durable_shards() const { return progress_.base_shards(); }
  [[nodiscard]] bool base_durable() const { return progress_.base_durable(); }
  [[nodiscard]] const JobProgress& progress() const { return progress_; }
  [[nodiscard]] const ClusterShape& shape() const { return shape_; }
  [[nodiscard]] std::vector<Gap> gaps() const;        // of the job
  [[nodiscard]] std::vector<Gap> local_gaps() const;  // of this node alone, for its reports
  // Who holds which shard, how far each is, and what a leaving owner waits for.
  [[nodiscard]] PlacementView placement() const;
  [[nodiscard]] nlohmann::json status() const;
  // State roots of steps from..to that are still kept.
  [[nodiscard]] nlohmann::json roots(StepNumber from, StepNumber to) const;

 private:
  enum class Phase : std::uint8_t { kIdle, kWatching, kAsking, kDraining, kBinding };
  struct LayoutEntry {
    LayoutPtr layout;
    std::vector<std::shared_ptr<const std::vector<replica::Slice>>> slices;  // by bucket
  };
  // The step that is being bound.
  struct Attempt {
    StepNumber step = 0;
    Phase phase = Phase::kIdle;
    StepMessagePtr message;
    dataplane::StepEvidence evidence;
    std::uint64_t started_ns = 0;
    unsigned drains = 0;  // of the two that make absence definitive
    bool definitive = false;
    bool changed = true;  // something happened since the last evaluation
    std::uint64_t open_tickets = 0;
    std::uint64_t first_ticket = 0;
    dataplane::Assignments assignments;
    std::vector<std::vector<dataplane::WitnessOutcome>> outcomes;
    std::vector<std::vector<std::vector<Interval>>> missing;
    std::vector<std::pair<std::size_t, std::uint32_t>> asked;  // ticket - first_ticket -> (assignment, bucket)
    dataplane::Judgement judgement;
    bool bind_failed = false;
    std::string bind_error;
    std::uint64_t fetch_asked_ns = 0;
    std::optional<dataplane::OpKey> last_op;  // that the step was bound to
  };

  void advance();
  bool begin_next();
  [[nodiscard]] bool message_missed(StepNumber step);
  void evaluate();
  void judge();
  void hold(GapReason reason, std::string evidence, std::string action = {});
  void bind(const dataplane::Assignment& assignment);
  void finish_step();
  void hold_for_missing_bytes();
  void ask_for_layout(const LayoutId& id);
  [[nodiscard]] dataplane::WitnessOutcome compare(std::uint32_t bucket, const WordAnswer& answer) const;
  [[nodiscard]] std::string describe_missing(const dataplane::Assignment& assignment,
                                             const std::vector<std::vector<Interval>>& missing) const;
  [[nodiscard]] const replica::WitnessBucket* witness_of(std::uint32_t bucket) const;
  [[nodiscard]] bool known_incomplete(const dataplane::Assignments& assignments) const;
  void fetch_if_due();
  void ask_for_messages();
  void jump_over_missing_message();
  void follow_owners();
  // The scalars of a step that is bound; kept for owners that come to it later.
  GoPtr keep_go(const StepMessagePtr& message, std::uint64_t first_order);
  void own(ShardId shard);
  void bring_up(ShardId shard);
  void bring_up_all();
  void ask_for_version(ShardId shard);
  void release_what_may_go();
  void forget_ops_of_step();
  void note(bool warning, std::string text);

  JobPlanPtr plan_;
  CoordinationConfig config_;
  const Clock& clock_;
  dataplane::Binder binder_;
  dataplane::SizeTable sizes_;
  std::map<LayoutId, LayoutEntry> layouts_;
  std::map<dataplane::OpKey, dataplane::OpSummary> ops_;
  std::map<StepNumber, StepMessagePtr> messages_;
  std::set<StepNumber> dropped_;
  Attempt attempt_;
  std::vector<Command> commands_;
  std::uint64_t next_ticket_ = 1;

  StepNumber base_ = 0;
  StepNumber newest_message_ = 0;
  StepNumber bound_ = 0;
  StepNumber applied_here_ = 0;  // by every owner of this node
  // By the owners of this node that keep up: binding ahead waits for the slowest of them.
  std::map<ShardId, StepNumber> applied_;
  struct BroughtUp {
    std::optional<StepNumber> version;
    std::uint64_t asked_ns = 0;
    StepNumber asked_step = 0;
    unsigned versions_asked = 0;  // in vain
    StepNumber wanted = 0;        // the oldest version that is good enough, since wanted_ns
    std::uint64_t wanted_ns = 0;
  };
  std::map<ShardId, BroughtUp> brought_up_;      // owners of this node that do not keep up yet
  std::map<ShardId, std::uint64_t> moved_ns_;    // when each of applied_ last moved
  std::map<ShardId, StepNumber> leaving_since_;  // what was bound when the shard was assigned to others
  std::map<StepNumber, GoPtr> goes_;             // of bound steps, the newest
  ClusterShape shape_;
  JobProgress progress_;
  std::map<MemberIndex, PeerReport> peers_;  // the newest of each, without digests
  std::vector<bool> live_;
  StepNumber published_ = 0;
  std::vector<Gap> publish_gaps_;

  std::string refusal_;      // of the last drain
  std::optional<Gap> held_;  // why the step being bound is not bound; empty: in flight
  std::optional<Gap> apply_gap_;
  std::optional<Gap> store_gap_;
  bool detached_ = false;
  std::string detach_reason_;
  std::uint64_t last_message_ns_ = 0;
  StepNumber awaited_step_ = 0;  // its message is missing while later ones are there
  std::uint64_t awaited_since_ns_ = 0;
  StepNumber durable_seen_ = 0;                // when durable last moved, it was this
  std::uint64_t durable_behind_since_ns_ = 0;  // and has stood behind verified since then
  std::uint64_t layout_asked_ns_ = 0;
  std::uint64_t messages_asked_ns_ = 0;
  std::uint64_t jump_asked_ns_ = 0;
  std::uint64_t last_ops_ns_ = 0;                   // when an assembler last had news
  std::map<StepNumber, std::uint64_t> message_ns_;  // when the newest messages came
  // counters
  std::uint64_t weak_buckets_ = 0;
  std::uint64_t strong_buckets_ = 0;
  std::uint64_t by_witness_ = 0;
  std::uint64_t skipped_steps_ = 0;
  std::uint64_t drains_ = 0;
  std::uint64_t messages_refused_ = 0;
  std::uint64_t layouts_evicted_ = 0;
  std::uint64_t questions_ = 0;
  std::uint64_t fetched_steps_ = 0;
  std::uint64_t brought_up_steps_ = 0;
  std::uint64_t released_shards_ = 0;
};

}  // namespace gradtap::actors
