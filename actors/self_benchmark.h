// SelfBenchmark: what this node can do, measured once at its start.
//
// Purpose: seconds of copying, of one optimizer's steps, of state digests, of synced writes and of object writes become
// the rates of a capacity::NodeShape. Threads: measure_rates() blocks its caller, at most about half a second on an
// ordinary machine; rates of a core count the thread's own CPU time, so that a busy machine measures what it has when
// it is not. Bounded: kMemoryBytesMax of memory, one file of kFileBytes beside the store, one object
// cluster/rates/NODE; both are removed again. Failure behaviour: a rate that could not be measured stays unknown.
#pragma once

#include <cstdint>
#include <string>

#include "capacity/node_shape.h"
#include "storage/object_store.h"

namespace gradtap::actors {

inline constexpr std::uint64_t kBenchmarkMemoryBytesMax = std::uint64_t{256} << 20;
// What it takes on this machine.
[[nodiscard]] std::uint64_t benchmark_memory_bytes();

// Adds rates to `node`. `objects` may be null.
void measure_rates(const std::string& directory, storage::ObjectStore* objects, const std::string& node_name,
                   capacity::NodeShape& node);

}  // namespace gradtap::actors
