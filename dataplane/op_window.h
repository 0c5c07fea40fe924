// OpWindow: the bounded set of ops that one assembler works on.
//
// Purpose: finds the op of a segment, keeps memory inside its bounds, says which ops changed. Everything an assembler
// actor does with bytes is a call on this object.
// Ownership: owns its ops, their limbo and, through the pool, their buffers; bound bytes are shared out, immutable.
// Threads: one. Invariants: never more than window_ops open ops, limbo_bytes of limbo, window_bytes of op buffers
// (given away ones included until their last reader lets go). An op that is shed, abandoned or done takes no more
// bytes. Failure behaviour: at a bound the oldest op that is not bound is shed: counted, reported, its summary says
// why.
#pragma once

#include <array>
#include <cstdint>
#include <deque>
#include <map>
#include <memory>
#include <optional>
#include <span>
#include <unordered_map>
#include <utility>
#include <vector>

#include "common/error.h"
#include "dataplane/op_buffer.h"
#include "dataplane/op_summary.h"
#include "dataplane/size_table.h"

namespace gradtap::dataplane {

struct OpWindowConfig {
  std::size_t window_bytes = 1ULL << 30;
  std::uint32_t window_ops = 4096;
  std::size_t limbo_bytes = 64ULL << 20;
  std::uint32_t closed_ops = 4096;  // remembered so that their late bytes open nothing
  std::uint32_t max_comms = 64;
  OpBufferLimits op;
  std::shared_ptr<MemoryLedger> memory = nullptr;
};

struct ProvenFlow {
  std::uint32_t flow = 0;
  OpKey op;
};

struct ShedReport {
  OpKey op;
  ShedReason reason{};
};

class OpWindow {
 public:
  OpWindow(const OpWindowConfig& config, std::shared_ptr<const Schedule> schedule);
  ~OpWindow();
  OpWindow(const OpWindow&) = delete;
  OpWindow& operator=(const OpWindow&) = delete;

  void add(const Segment& segment);
  void set_sizes(const SizeTable& sizes);

  [[nodiscard]] std::optional<OpSummary> summary(OpKey op) const;
  // Summaries of the ops that changed since the last call, each once.
  [[nodiscard]] std::vector<OpSummary> summaries_changed();
  // Little-endian value of the 4 bytes at `offset_bytes`, if the op may have this length and they are covered.
  [[nodiscard]] std::optional<std::uint32_t> read(OpKey op, std::uint64_t op_bytes, std::uint64_t offset_bytes) const;
  [[nodiscard]] Result<std::shared_ptr<const OpBytes>> bind(OpKey op, std::uint64_t op_bytes);
  // The ranges that an op of this length lacks; everything, if the op is unknown.
  [[nodiscard]] std::vector<Interval> missing(OpKey op, std::uint64_t op_bytes) const;
  [[nodiscard]] std::optional<Copies> copies(OpKey op) const;

  // Ops of `comm` with a smaller tag are over, whether bound, superseded or foreign.
  void abandon_below(std::uint32_t comm, std::uint32_t tag);
  void abandon(OpKey op);

  [[nodiscard]] std::vector<ProvenFlow> take_proven_flows() { return std::exchange(proven_flows_, {}); }
  [[nodiscard]] std::vector<ConflictReport> take_conflicts() { return std::exchange(conflicts_, {}); }
  [[nodiscard]] std::vector<ShedReport> take_shed() { return std::exchange(shed_, {}); }

  // For those who work without layouts (inspection): sizes for one op only, and the op itself, or null.
  void offer_sizes(OpKey op, std::span<const OpSize> sizes);
  [[nodiscard]] OpBuffer* buffer(OpKey op);
  [[nodiscard]] std::vector<OpKey> open_ops() const;

  [[nodiscard]] const AssemblyCounters& counters() const { return counters_; }
  [[nodiscard]] const LimboBudget& limbo() const { return limbo_; }
  [[nodiscard]] OpBufferPool::Usage memory() const { return pool_->usage(); }
  [[nodiscard]] std::size_t open_count() const { return open_; }

 private:
  struct Op {
    OpKey key;
    CollectiveType type = CollectiveType::kUnknown;
    std::unique_ptr<OpBuffer> buffer;  // all-reduces only
    std::uint64_t opened = 0;          // order of appearance
    bool closed = false;
    bool dirty = false;
    bool bound = false;
    ShedReason shed = ShedReason::kNone;
  };
  struct KeyHash {
    std::size_t operator()(const OpKey& key) const {
      return static_cast<std::size_t>((static_cast<std::uint64_t>(key.comm) << 32 | key.tag) * 0x9E3779B97F4A7C15ULL);
    }
  };

  [[nodiscard]] Op* find(OpKey key) const;
  [[nodiscard]] Op* open(OpKey key);
  void react(Op* op, AddOutcome outcome, const Segment* segment);
  void collect(Op& op);
  void mark_dirty(Op& op);
  void close(Op& op, ShedReason reason);
  [[nodiscard]] Op* oldest(bool (*fits)(const Op&)) const;
  [[nodiscard]] OpSummary describe(const Op& op) const;

  OpWindowConfig config_;
  std::shared_ptr<const Schedule> schedule_;
  std::shared_ptr<OpBufferPool> pool_;
  LimboBudget limbo_;
  AssemblyCounters counters_;
  SizeTable sizes_;
  std::unordered_map<OpKey, std::unique_ptr<Op>, KeyHash> ops_;
  std::map<std::uint64_t, Op*> by_age_;  // open ops
  std::deque<OpKey> closed_;
  std::map<std::uint32_t, std::uint32_t> floors_;  // comm -> lowest tag of interest
  std::array<Op*, 8> cache_{};
  std::vector<OpKey> dirty_;
  std::vector<ProvenFlow> proven_flows_;
  std::vector<ConflictReport> conflicts_;
  std::vector<ShedReport> shed_;
  std::size_t open_ = 0;
  std::uint64_t opened_ = 0;
};

}  // namespace gradtap::dataplane
