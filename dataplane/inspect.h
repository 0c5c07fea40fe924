// CaptureInspector: what a capture holds, found without layouts: flows, all-reduces with their lengths inferred from
// the wire, completeness, SHA-256 of the complete ones, other collectives.
//
// Purpose: the pure half of `gradtap inspect`. Fed with the decoder's segments; report() after the last one.
// Ownership: owns an OpWindow; an op is finished, hashed and freed as soon as every edge has moved `margin_tags` past
// it. One thread. Invariants: a length is reported only if it is the only one that reproduces every whole edge, or, for
// an op without any whole edge, the only one of the lengths found elsewhere in the capture that fits what was seen.
// Failure behaviour: memory is bounded by the window's configuration; an op that did not fit is reported as shed.
#pragma once

#include <cstdint>
#include <map>
#include <memory>
#include <optional>
#include <string>
#include <vector>

#include "common/error.h"
#include "common/ids.h"
#include "common/interval_set.h"
#include "dataplane/op_window.h"

namespace gradtap::dataplane {

struct InspectConfig {
  OpWindowConfig window{.window_bytes = 1ULL << 30, .window_ops = 65536, .limbo_bytes = 1ULL << 30, .op = {}};
  std::uint32_t margin_tags = 16;
  std::size_t max_reported = 1'000'000;  // flows, ops, other ops each
  std::string dump_dir;                  // empty: no dump
};

struct InspectedFlow {
  std::uint32_t flow = 0;
  std::uint16_t source_rank = 0;
  std::uint16_t target_rank = 0;
  std::uint64_t segments = 0;
  std::uint64_t bytes = 0;  // of messages of collectives
  std::uint64_t provisional_segments = 0;
};

struct InspectedOp {
  OpKey op;
  std::uint32_t index = 0;  // among the all-reduces of this size, from 1; 0 if the size is unknown
  std::optional<std::uint64_t> bytes;
  std::vector<std::uint32_t> element_bytes;  // element sizes that fit
  bool complete = false;
  bool conflict = false;
  bool shed = false;
  Copies copies;
  std::vector<Interval> missing;  // bytes; meaningful when the size is known
  std::optional<Sha256> sha256;   // of complete ones
  std::string dump_file;
};

struct InspectedOther {
  OpKey op;
  CollectiveType type = CollectiveType::kUnknown;
  std::uint64_t messages = 0;
  std::uint64_t bytes = 0;
};

struct InspectReport {
  std::vector<InspectedFlow> flows;       // by flow
  std::vector<InspectedOp> ops;           // by comm, tag
  std::vector<InspectedOther> other_ops;  // by comm, tag
  AssemblyCounters counters;
  std::uint64_t not_reported = 0;  // beyond max_reported
  std::vector<std::string> dump_errors;
};

class CaptureInspector {
 public:
  CaptureInspector(const InspectConfig& config, std::shared_ptr<const Schedule> schedule);

  void add(const Segment& segment);
  // (flow, op) pairs whose message count was proven: for Decoder::op_closed.
  [[nodiscard]] std::vector<ProvenFlow> take_proven_flows() { return window_.take_proven_flows(); }
  // No segment will follow.
  [[nodiscard]] InspectReport report();

 private:
  void finish(OpKey op, bool last_chance);
  void finish_passed(std::uint32_t comm);
  void dump(OpKey key, std::span<const std::uint8_t> bytes, InspectedOp& op);

  InspectConfig config_;
  std::shared_ptr<const Schedule> schedule_;
  OpWindow window_;
  SizeTable inferred_;
  std::map<std::uint32_t, InspectedFlow> flows_;
  std::map<OpKey, InspectedOp> done_;
  std::map<OpKey, InspectedOther> others_;
  std::map<OpKey, bool> open_;                                               // value: tried already, kept for the end
  std::map<std::uint32_t, std::map<std::uint32_t, std::uint32_t>> reached_;  // comm -> source -> highest tag
  std::uint64_t not_reported_ = 0;
  std::vector<std::string> dump_errors_;
};

[[nodiscard]] std::string_view collective_name(CollectiveType type);

}  // namespace gradtap::dataplane
