// One request over one bulk connection, and the progress of its answer across connections.
//
// Purpose: the asking half of the bulk protocol. Threads: one at a time. Invariants: chunks reach the sink in order and
// once each, unless index 0 comes again, which means that the answer starts over. Failure behaviour: exchange() tells
// apart what is final (the peer's own error, the sink's) from a broken connection, after which the caller may go on
// over another one.
#pragma once

#include <cstdint>
#include <functional>
#include <optional>
#include <string>
#include <vector>

#include "link/link_counters.h"
#include "link/link_options.h"
#include "link/socket_stream.h"

namespace gradtap::link {

using ChunkSink = std::function<Status(std::uint64_t index, std::vector<std::uint8_t>&& bytes)>;

struct AnswerProgress {
  bool begun = false;
  std::string meta;
  std::string identity;
  std::uint64_t chunks = 0;
  std::uint64_t next = 0;  // index of the first chunk that the sink has not seen
};

enum class ExchangeEnd : std::uint8_t {
  kDone,    // the whole answer; the connection can be used again
  kFault,   // the peer's or the sink's error, final
  kBroken,  // the connection; another one may go on
};

struct ExchangeResult {
  ExchangeEnd end = ExchangeEnd::kDone;
  bool reusable = false;  // the connection stands before the next request
  bool answered = false;  // something came back
  Error error;
};

// Sends the hello and reads the welcome. PEER_REFUSED or NODE_BUSY when the peer says so.
[[nodiscard]] Status greet(SocketStream& stream, const NodeLinkOptions& options, const std::string& peer,
                           Deadline deadline);

[[nodiscard]] ExchangeResult exchange(SocketStream& stream, const BulkRequest& request, AnswerProgress& progress,
                                      const ChunkSink& sink, const LinkLimits& limits, LinkCounters& counters,
                                      Deadline deadline);

}  // namespace gradtap::link
