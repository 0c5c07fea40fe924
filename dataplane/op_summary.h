// OpSummary: what an assembler tells the step coordinator about one op: enough for rule 2.2, no bytes.
// Plain value; any thread.
#pragma once

#include <cstdint>
#include <vector>

#include "dataplane/segment.h"

namespace gradtap::dataplane {

enum class ShedReason : std::uint8_t {
  kNone,
  kWindowOps,    // more ops than the window holds
  kWindowBytes,  // no memory for op buffers
  kLimbo,        // limbo is full
  kFragments,    // coverage in more pieces than allowed
};

struct OpSummary {
  OpKey op;
  CollectiveType type = CollectiveType::kUnknown;
  // Lengths that the messages seen so far allow, ascending; only those known to SizeTable version `sizes_version`.
  std::vector<std::uint64_t> lengths;
  std::uint32_t sizes_version = 0;
  bool complete = false;  // one length, every byte covered, no conflict
  bool conflict = false;
  bool bound = false;
  bool closed = false;  // takes no more bytes (abandoned, done or shed)
  ShedReason shed = ShedReason::kNone;
};

}  // namespace gradtap::dataplane
