// Coordination: what the step coordinator decides, as a pure object.
//
// Purpose: steps in order: bind the buckets of step s by rule 2.2, see to it that every byte is there, give the go;
// keep the four numbers and say why they differ. It never sees bytes: it asks for words at witness positions and for
// missing ranges. Inputs are calls, outputs are Commands to be carried out by the actor; replies carry the command's
// ticket. Ownership: owns the binder and all bookkeeping of one lineage. Threads: one. Time is a parameter.
// Invariants: published <= durable <= verified <= training; no step without its message; nothing is bound twice; never
// more than `bind_ahead_steps` steps bound and not verified. Failure behaviour: what cannot be proven holds the replica
// where it is, with a reason; late bytes are still tried.
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

#include "actors/messages.h"
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
struct PublishSizes {
  OpSizesPtr sizes;
};
struct NoteEvent {
  bool warning = false;
  std::string text;
};
using Command = std::variant<AskWords, OrderBind, AskDrain, GiveGo, ForgetBelow, AskLayout, PublishSizes, NoteEvent>;

class Coordination {
 public:
  // `version`: the step that every shard is at. `sizes`: op sizes known so far (grown here, never shrunk).
  Coordination(JobPlanPtr plan, const CoordinationConfig& config, const Clock& clock, StepNumber version,
               dataplane::SizeTable sizes);

  void on_layout(const LayoutPtr& layout);
  void on_step(const StepMessagePtr& message);
  void on_notice(const ClientNotice& notice);
  void on_ops(std::span<const dataplane::OpSummary> ops);
  void on_words(std::uint64_t ticket, const std::optional<WordAnswer>& answer);  // nullopt: no answer in time
  void on_bind(std::uint64_t ticket, const Outcome& outcome);
  void on_drained(std::uint64_t ticket, bool done = true);  // not done: some queue was never found empty in time
  void on_applied(const Applied& applied);
  void on_durable(const Durable& durable);
  void tick();

  [[nodiscard]] std::vector<Command> take_commands();

  [[nodiscard]] StepNumber training() const;
  [[nodiscard]] StepNumber verified() const { return verified_; }
  [[nodiscard]] StepNumber durable() const;
  [[nodiscard]] std::size_t durable_shards() const;  // with any version in the store
  [[nodiscard]] bool base_durable() const;           // every shard has a version in the store
  [[nodiscard]] std::vector<Gap> gaps() const;
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
  StepNumber verified_ = 0;
  std::vector<StepNumber> applied_;                          // by shard
  std::vector<std::optional<StepNumber>> durable_;           // by shard
  std::map<StepNumber, std::map<ShardId, Sha256>> digests_;  // steps not yet verified
  std::map<StepNumber, Sha256> roots_;

  std::optional<Gap> held_;  // why the step being bound is not bound; empty: in flight
  std::optional<Gap> apply_gap_;
  std::optional<Gap> store_gap_;
  bool detached_ = false;
  std::string detach_reason_;
  std::uint64_t last_message_ns_ = 0;
  StepNumber awaited_step_ = 0;  // its message is missing while later ones are there
  std::uint64_t awaited_since_ns_ = 0;
  std::uint64_t durable_behind_since_ns_ = 0;
  std::uint64_t layout_asked_ns_ = 0;
  std::uint64_t last_ops_ns_ = 0;                   // when an assembler last had news
  std::map<StepNumber, std::uint64_t> message_ns_;  // when the newest messages came
  // counters
  std::uint64_t weak_buckets_ = 0;
  std::uint64_t strong_buckets_ = 0;
  std::uint64_t by_witness_ = 0;
  std::uint64_t skipped_steps_ = 0;
  std::uint64_t drains_ = 0;
  std::uint64_t messages_refused_ = 0;
  std::uint64_t questions_ = 0;
};

}  // namespace gradtap::actors
