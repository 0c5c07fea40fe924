// Answers the requests of one accepted bulk connection, one after another.
//
// Purpose: the answering half of the bulk protocol. Threads: runs on the caller's thread until the connection ends.
// Invariants: a body larger than its limit, or than the node's free memory, is refused before it is
// read; no chunk leaves without a credit. Failure
// behaviour: what a peer sends wrong, or a peer that stalls, ends its connection and is counted; nothing else happens.
#pragma once

#include <string>

#include "link/link_counters.h"
#include "link/link_options.h"
#include "link/socket_stream.h"

namespace gradtap::link {

void serve_bulk(SocketStream& stream, const std::string& peer, const BulkHandler& handler, const LinkLimits& limits,
                LinkCounters& counters, MemoryLedger& memory);

}  // namespace gradtap::link
