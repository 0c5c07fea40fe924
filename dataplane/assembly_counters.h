// AssemblyCounters: what assembly did with every segment and byte; each bound of the window shows here when it is hit.
// Plain value; owned by one OpWindow; one thread.
#pragma once

#include <cstdint>

namespace gradtap::dataplane {

struct AssemblyCounters {
  std::uint64_t segments = 0;
  std::uint64_t bytes = 0;
  std::uint64_t placed_bytes = 0;     // copied to their place, first copy
  std::uint64_t partial_bytes = 0;    // partial sums: never stored
  std::uint64_t duplicate_bytes = 0;  // equal to what was there
  std::uint64_t limbo_bytes = 0;      // copied to limbo
  std::uint64_t limbo_placed_bytes = 0;
  std::uint64_t conflicts = 0;       // overlapping pieces that differed
  std::uint64_t conflict_bytes = 0;  // bytes that became holes for it, or arrived for such a hole
  std::uint64_t other_collective_segments = 0;
  std::uint64_t late_segments = 0;        // of ops that are abandoned, shed or done
  std::uint64_t rejected_edge = 0;        // not an edge of the schedule
  std::uint64_t rejected_range = 0;       // bytes outside their message, empty messages, no data
  std::uint64_t rejected_message = 0;     // same message, another length
  std::uint64_t rejected_type = 0;        // no type, or another type than the op has
  std::uint64_t rejected_limit = 0;       // more flows or messages than an op may have
  std::uint64_t rejected_unproven = 0;    // renumbered messages of a flow that had proven ones in the same op
  std::uint64_t size_contradictions = 0;  // the last candidate length was excluded by a message
  std::uint64_t proven_flows = 0;         // provisional (flow, op) pairs that the message count proved
  std::uint64_t ops_opened = 0;
  std::uint64_t ops_bound = 0;
  std::uint64_t ops_abandoned = 0;
  std::uint64_t shed_window_ops = 0;    // unbound ops given up: too many ops
  std::uint64_t shed_window_bytes = 0;  // ... no memory for op buffers
  std::uint64_t shed_limbo = 0;         // ... limbo full
  std::uint64_t shed_fragments = 0;     // ... coverage in too many pieces
  std::uint64_t reports_dropped = 0;    // conflict or shed reports beyond their bound
};

}  // namespace gradtap::dataplane
