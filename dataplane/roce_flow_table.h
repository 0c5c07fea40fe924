// RoceFlowTable: every RoCE packet of a tap to its flow.
//
// Purpose: flows are keyed by (target address, target queue pair); the two directions of a pair are found by their
// common UDP source port, which Linux derives from both numbers. Acknowledgements are passed to the flow that they
// acknowledge. A queue pair number that is used again (another source, another source port, PSNs that begin anew with
// another key) begins a new epoch: the old flow is finished, and kept for reports or forgotten. Congestion
// notifications, NAKs, datagrams (management on QP 1) and vendor frames are counted. Ownership: owns the flows; the
// user gives each its sink. Threads: one. Invariants: no allocation for a packet of a known flow; at most max_flows
// flows, ever or at a time. A table that forgets makes room when it is full: flows that were silent for idle_ms and
// that the user can do without. Failure behaviour: what finds no room is counted.
#pragma once

#include <array>
#include <cstdint>
#include <memory>
#include <unordered_map>
#include <vector>

#include "dataplane/roce_flow.h"

namespace gradtap::dataplane {

struct RoceFlowTableConfig {
  RoceFlowConfig flow;
  std::uint64_t total_reorder_bytes = std::uint64_t{64} << 20;
  std::shared_ptr<MemoryLedger> memory = nullptr;
  std::uint32_t max_flows = 65536;
  bool forget = false;  // flows that have ended, and idle ones when there is no room
  std::uint64_t idle_ms = 10'000;
};

struct RoceTableCounters {
  std::uint64_t acknowledgements = 0;
  std::uint64_t naks = 0;
  std::uint64_t not_ready = 0;  // receiver-not-ready NAKs
  std::uint64_t responses = 0;
  std::uint64_t congestion = 0;  // CNP
  std::uint64_t management = 0;  // to QP 1
  std::uint64_t datagrams = 0;   // others
  std::uint64_t unknown = 0;     // vendor and other transports
  std::uint64_t renewed = 0;     // epochs begun over an old flow
  std::uint64_t refused = 0;     // no room for a new flow
  std::uint64_t forgotten = 0;
};

struct RoceFlowIdentity {
  std::uint32_t flow = 0;  // counts flows in order of appearance
  std::uint32_t epoch = 0;
  IpAddress source;
  IpAddress target;
  std::uint32_t target_qp = 0;
  std::uint16_t source_port = 0;
};

class RoceFlowUser {
 public:
  virtual ~RoceFlowUser() = default;
  // Where the new flow tells what it finds; must outlive the table.
  [[nodiscard]] virtual RoceSink& opened(const RoceFlowIdentity& identity) = 0;
  // A table that forgets: whether it may let this silent flow go, and that it has (its sink is not used any more).
  [[nodiscard]] virtual bool dispensable(const RoceFlowIdentity& /*identity*/) const { return true; }
  virtual void closed(const RoceFlowIdentity& /*identity*/) {}
};

class RoceFlowTable {
 public:
  struct Entry {
    RoceFlowIdentity identity;
    std::unique_ptr<RoceFlow> flow;
    RoceSink* sink = nullptr;
    Entry* partner = nullptr;  // the other direction of the queue pair
    std::uint64_t requests = 0;
    std::uint64_t acknowledgements = 0;
    std::uint64_t naks = 0;
    std::uint64_t last_ns = 0;
    bool ended = false;  // its number was given to another
  };

  RoceFlowTable(const RoceFlowTableConfig& config, RoceFlowUser& user);

  void frame(const RoceFrame& frame, std::uint64_t now_ns, std::uint64_t packets);
  void tick(std::uint64_t now_ns, std::uint64_t packets);
  void flush_holes(std::uint64_t now_ns, std::uint64_t packets);  // nothing that is missing will come any more
  void finish(std::uint64_t now_ns, std::uint64_t packets);       // nothing at all will

  // By flow number, if nothing is forgotten.
  [[nodiscard]] const std::vector<std::unique_ptr<Entry>>& entries() const { return entries_; }
  [[nodiscard]] const RoceTableCounters& counters() const { return counters_; }
  [[nodiscard]] const RoceFlowCounters& flow_counters() const { return flow_counters_; }

 private:
  struct Key {
    IpAddress target;
    std::uint32_t qp = 0;
    friend bool operator==(const Key&, const Key&) = default;
  };
  // Flows that were asked for last, by the low bits of the queue pair's number.
  static constexpr std::size_t kNear = 256;
  struct KeyHash {
    std::size_t operator()(const Key& key) const noexcept;
  };

  [[nodiscard]] Entry* entry_of(const RoceFrame& frame, std::uint64_t now_ns, std::uint64_t packets);
  [[nodiscard]] Entry* renew(Entry& entry, const RoceFrame& frame, std::uint64_t now_ns, std::uint64_t packets);
  [[nodiscard]] Entry* open(const RoceFrame& frame, std::uint32_t epoch, std::uint64_t now_ns);
  void pair(Entry& entry);
  void unlink(Entry& entry);
  void make_room(std::uint64_t now_ns);
  template <class F>
  void forget_if(F gone);
  [[nodiscard]] RoceFlowContext context(const Entry& entry, std::uint64_t now_ns, std::uint64_t packets) {
    return {*entry.sink, flow_counters_, now_ns, packets};
  }

  RoceFlowTableConfig config_;
  RoceFlowUser& user_;
  StoreBudget budget_;
  RoceTableCounters counters_;
  RoceFlowCounters flow_counters_;
  std::vector<std::unique_ptr<Entry>> entries_;
  std::uint32_t flows_ = 0;  // ever
  std::unordered_map<Key, Entry*, KeyHash> current_;
  std::array<Entry*, kNear> near_{};
  std::unordered_multimap<std::uint16_t, Entry*> by_port_;  // not ended ones
};

}  // namespace gradtap::dataplane
