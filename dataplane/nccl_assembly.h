// NcclAssembly: the second look at a surveyed capture: final bytes into their operations.
//
// Purpose: reads the same frames again, and puts what the plan knows a place for into vectors. LL lines lose their
// flags on the way, each flag is checked. Partial sums are never stored; a copy that differs from another is a hole for
// ever. Ownership: owns the vectors, at most window_bytes of them: beyond, the oldest operation is closed (hashed,
// dumped, freed). Threads: one. Failure behaviour: lines with a wrong flag are dropped and counted; an operation that
// does not fit into the window at all is reported without bytes.
#pragma once

#include <cstdint>
#include <map>
#include <memory>
#include <optional>
#include <string>
#include <utility>
#include <vector>

#include "common/ids.h"
#include "common/interval_set.h"
#include "dataplane/nccl_traffic_plan.h"

namespace gradtap::dataplane {

struct NcclAssemblyConfig {
  RoceFlowTableConfig table;  // as in the survey: the same frames must give the same messages
  std::uint64_t window_bytes = std::uint64_t{1} << 30;
  std::size_t max_operations = 1'000'000;
  std::string dump_dir;  // empty: no dump
};

struct AssembledOp {
  std::size_t bucket = 0;
  std::uint32_t group = 0;  // of the job
  std::uint64_t index = 0;  // among the operations of this size, from 1
  bool complete = false;
  bool conflict = false;
  bool shed = false;                      // did not fit into memory
  std::vector<Interval> present;          // elements
  std::vector<Interval> lost_definitive;  // elements that were acknowledged and never seen
  std::optional<Sha256> sha256;           // of complete ones
  std::string dump_file;
};

struct NcclAssemblyCounters {
  std::uint64_t placed_bytes = 0;
  std::uint64_t repeated_bytes = 0;
  std::uint64_t conflicts = 0;
  std::uint64_t wrong_flags = 0;
  std::uint64_t closed_early = 0;  // pieces for operations that were closed already
};

class NcclAssembly final : public RoceFlowUser {
 public:
  NcclAssembly(const NcclSurvey& survey, const NcclTrafficPlan& plan, const NcclAssemblyConfig& config = {});
  ~NcclAssembly() override;

  void frame(ByteSpan bytes, std::uint32_t wire_bytes, std::uint64_t time_ns);
  [[nodiscard]] std::vector<AssembledOp> finish();  // by bucket, group and index

  [[nodiscard]] RoceSink& opened(const RoceFlowIdentity& identity) override;
  [[nodiscard]] const NcclAssemblyCounters& counters() const { return counters_; }
  [[nodiscard]] const std::vector<std::string>& dump_errors() const { return dump_errors_; }

 private:
  class Flow;
  struct Op {
    std::vector<std::uint8_t> bytes;
    IntervalSet covered;  // bytes
    IntervalSet conflicts;
    IntervalSet lost;
    std::optional<AssembledOp> closed;
  };
  struct OpName {
    std::size_t bucket = 0;
    std::uint32_t group = 0;
    std::uint64_t index = 0;
    friend auto operator<=>(const OpName&, const OpName&) = default;
  };
  struct Unsent {  // what a completing send brings, one range after another
    std::vector<Interval> elements;
    std::uint64_t chunk_bytes = 0;
  };

  void piece(const SurveyedFlow& flow, const PlannedFlow& planned, const RocePiece& piece);
  void store(Op& op, std::uint64_t offset, const std::uint8_t* data, std::uint64_t bytes);
  [[nodiscard]] Op* op_of(const OpName& name);
  void close(const OpName& name, Op& op);
  void note_losses();
  // Calls visit(offset in the op, offset in the data, bytes) for the final parts of a message's data.
  template <class F>
  void places(const PlannedFlow& flow, const NcclStep& step, std::uint64_t offset, std::uint64_t bytes, F visit);
  [[nodiscard]] bool line_based(const PlannedFlow& flow, const NcclStep& step) const;

  const NcclSurvey& survey_;
  const NcclTrafficPlan& plan_;
  NcclAssemblyConfig config_;
  NcclAssemblyCounters counters_;
  RoceCaptureCounters frames_;
  std::uint64_t time_ns_ = 0;
  std::map<OpName, Op> ops_;
  std::uint64_t held_bytes_ = 0;
  std::map<std::pair<std::size_t, std::uint32_t>, Unsent> unsent_;  // by bucket and position
  std::vector<std::unique_ptr<Flow>> flows_;
  std::vector<std::string> dump_errors_;
  RoceFlowTable table_;
};

}  // namespace gradtap::dataplane
