// Binder: which op is bucket i of step s (PROTOCOLS 2.2).
//
// Purpose: rule 2.2 as a pure object: layouts, step evidence and op summaries in; candidate assignments and, with the
// outcomes of witness probes, a verdict out. It never sees bytes.
// Ownership: owns its copies of layouts and summaries, bounded by BinderConfig. Threads: one (the step coordinator's).
// Invariants: no step without evidence is ever bound, no op twice, no step twice; an assignment that a seen op excludes
// is never offered; delta is learnt only by commit(), and never against what was learnt except by a proven shift of
// +2k. Failure behaviour: a doubt is a verdict (wait, ambiguous, mismatch...), never a guess. Oldest ops are forgotten
// at the bound, counted.
#pragma once

#include <cstdint>
#include <map>
#include <optional>
#include <set>
#include <span>
#include <string_view>
#include <vector>

#include "common/error.h"
#include "common/ids.h"
#include "dataplane/op_summary.h"

namespace gradtap::dataplane {

enum class StepVerdict : std::uint8_t { kApplied, kSkipped, kAmbiguous };

struct StepEvidence {
  StepNumber step = 0;
  LayoutId layout{};
  // Group sequence numbers [begin, end): the collectives between commit s-1 and commit s.
  std::uint64_t begin = 0;
  std::uint64_t end = 0;
  std::uint32_t synced_backwards = 1;
  StepVerdict verdict = StepVerdict::kApplied;
  // The flows count from an absolute anchor (no provisional flow took part): allows a step without strong bucket.
  bool anchored = false;
};

struct BucketOp {
  OpKey op;
  std::uint64_t bytes = 0;
  bool seen = false;  // false: a wildcard, nothing of this op was seen so far
  friend bool operator==(const BucketOp&, const BucketOp&) = default;
};

struct Assignment {
  std::uint32_t comm = 0;
  std::vector<std::int64_t> deltas;  // tag - sequence: all values that give this assignment, ascending
  bool shifted = false;              // by a delta that differs from what was learnt
  std::vector<BucketOp> buckets;     // last round, in bucket order
  std::vector<OpKey> superseded;     // earlier rounds, as far as seen
  [[nodiscard]] std::uint32_t wildcards() const {
    std::uint32_t count = 0;
    for (const BucketOp& bucket : buckets) count += bucket.seen ? 0 : 1;
    return count;
  }
};

struct Assignments {
  std::vector<Assignment> list;
  bool truncated = false;  // there may be more than the bound allows to list: nothing can be unique
  bool unseen = false;     // some op of the interval was not seen yet (or delta is unknown and few were)
  bool stale = false;      // a summary is older than the layout's sizes
  bool layout_known = false;
  bool shift_searched = false;
};

enum class WitnessResult : std::uint8_t {
  kUnknown,     // no position could be compared yet
  kMatched,     // every position compared is equal, one of them at least is not zero on both sides
  kAllZero,     // equal, but zero on both sides: weak
  kNotSampled,  // the step message has no witness for the bucket: weak
  kMismatched,
};

struct WitnessOutcome {
  WitnessResult result = WitnessResult::kUnknown;
  std::uint32_t position = 0;  // j of the first mismatch
};

enum class BindVerdict : std::uint8_t {
  kBound,
  kWait,
  kAmbiguous,        // OP_AMBIGUOUS
  kWitnessMismatch,  // WITNESS_MISMATCH
  kLayoutUnknown,    // LAYOUT_UNKNOWN
  kUnwired,          // UNWIRED: the step was applied without a collective
  kSkipped,          // no gradient needed
  kAnchorLost,       // ANCHOR_LOST
};

enum class WaitReason : std::uint8_t {
  kNone,
  kOpsNotSeen,      // ops of the interval have not appeared
  kSummariesStale,  // assemblers do not know the layout's sizes yet
  kWitnessUnknown,  // probe again when more bytes are there
  kNotAnchored,     // no strong bucket, and count alone is not proof enough
  kSearchShift,     // nothing fits the learnt delta: ask assignments() for shifts
};

struct Judgement {
  BindVerdict verdict = BindVerdict::kWait;
  WaitReason wait = WaitReason::kNone;
  std::size_t assignment = 0;  // index, for kBound and kWitnessMismatch
  std::uint32_t strong = 0;
  std::uint32_t weak = 0;
  std::uint32_t bucket = 0;    // of the mismatch
  std::uint32_t position = 0;  // j of the mismatch
  bool by_witness = false;     // the witness chose among several assignments
};

struct BinderConfig {
  std::size_t max_layouts = 64;
  std::size_t max_buckets = 4096;
  std::size_t max_ops = 16384;
  std::size_t max_comms = 64;
  std::size_t max_bound_steps = 4096;
  std::size_t max_assignments = 64;
  std::size_t max_deltas = 4096;       // tried while delta is unknown
  std::uint64_t max_interval = 65536;  // collectives in one step
  std::uint64_t max_rounds = 4096;
  std::uint32_t max_shift = 64;  // of delta, in tags
};

class Binder {
 public:
  explicit Binder(const BinderConfig& config = {}) : config_(config) {}

  // `sizes_version`: the SizeTable version from which on all sizes of this layout are known to assemblers.
  [[nodiscard]] Status add_layout(const LayoutId& id, std::vector<std::uint64_t> bucket_bytes,
                                  std::uint32_t sizes_version = 0);
  void update(const OpSummary& summary);
  void forget_below(std::uint32_t comm, std::uint32_t tag);

  // Candidate assignments of a step. `search_shift` also tries delta + 2k (PROTOCOLS 2.3): ask for it only when what
  // the learnt delta offers has had its time.
  [[nodiscard]] Assignments assignments(const StepEvidence& evidence, bool search_shift = false) const;
  // `outcomes[a][i]` is the witness outcome of bucket i under assignment a; missing ones count as unknown.
  [[nodiscard]] Judgement judge(const StepEvidence& evidence, const Assignments& assignments,
                                std::span<const std::vector<WitnessOutcome>> outcomes) const;
  // Makes a bound judgement final: its ops are taken, delta is learnt.
  [[nodiscard]] Status commit(const StepEvidence& evidence, const Assignment& assignment);

  // tag - sequence. Empty before the first binding; the first one may leave several values (an interval that begins or
  // ends with foreign collectives), which later bindings reduce to one.
  [[nodiscard]] const std::vector<std::int64_t>& deltas() const { return deltas_; }
  // What another tap of the same job has learnt: tried first while nothing is learnt here. The witness still decides.
  void hint_delta(std::int64_t delta) { hint_ = delta; }
  [[nodiscard]] const std::optional<std::int64_t>& hint() const { return hint_; }
  // Communicators with ops that are not over.
  [[nodiscard]] std::vector<std::uint32_t> comms() const;
  // After ANCHOR_LOST: learn delta anew, as in the beginning.
  void lose_anchor() { deltas_.clear(); }
  [[nodiscard]] bool delta_known() const { return deltas_.size() == 1; }
  [[nodiscard]] std::uint32_t comm() const { return comm_; }
  [[nodiscard]] const std::vector<std::uint64_t>* bucket_bytes(const LayoutId& id) const;

  struct Counters {
    std::uint64_t bound_steps = 0;
    std::uint64_t relearnt_deltas = 0;
    std::uint64_t forgotten_ops = 0;
  };
  [[nodiscard]] const Counters& counters() const { return counters_; }

 private:
  struct Layout {
    std::vector<std::uint64_t> bucket_bytes;
    std::uint32_t sizes_version = 0;
  };
  struct Op {
    OpSummary summary;
    std::optional<StepNumber> bound_to;
  };

  void search(const StepEvidence& evidence, const Layout& layout, std::uint32_t comm, std::int64_t delta, bool shifted,
              bool must_be_seen, Assignments& found) const;

  BinderConfig config_;
  std::map<LayoutId, Layout> layouts_;
  std::map<OpKey, Op> ops_;
  std::map<std::uint32_t, std::uint64_t> floors_;  // comm -> ops with a smaller tag are over
  std::set<StepNumber> bound_steps_;
  std::uint32_t comm_ = 0;
  std::vector<std::int64_t> deltas_;
  std::optional<std::int64_t> hint_;
  StepNumber forgotten_steps_ = 0;  // steps up to here count as bound
  Counters counters_;
};

[[nodiscard]] std::string_view bind_verdict_name(BindVerdict verdict);

}  // namespace gradtap::dataplane
