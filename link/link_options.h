// NodeLinkOptions and its limits: everything that bounds the link, in one place. Plain values.
#pragma once

#include <cstdint>
#include <memory>
#include <string>
#include <vector>

#include "common/event_ring.h"
#include "common/ids.h"
#include "common/memory_ledger.h"
#include "common/metrics.h"
#include "link/bulk_request.h"
#include "link/identity.h"

namespace gradtap::link {

struct LinkMember {
  std::string name;
  std::string address;  // IP address
  std::uint16_t port = 0;
};

struct LinkLimits {
  std::uint64_t call_timeout_ms = 10000;     // deadline of a call that names none
  std::uint64_t connect_timeout_ms = 2000;   // to connect and greet, within the call's deadline
  std::uint64_t hello_timeout_ms = 2000;     // an accepted connection says who it is within this
  std::uint64_t stall_timeout_ms = 10000;    // one frame takes at most this, in either direction
  std::uint64_t idle_timeout_ms = 60000;     // a bulk connection without a request is closed after this
  std::uint64_t credits = 64;                // chunks in flight of one answer
  std::uint64_t connections_max = 4;         // bulk connections with one peer, in each direction
  std::uint64_t tunnels_max = 4;             // control connections with one peer, in each direction
  std::uint64_t hellos_max = 64;             // accepted connections that have not said who they are
  std::uint64_t reload_interval_ms = 10000;  // how often the certificates' files are looked at
  std::uint64_t renew_after_ms = 3600000;    // a connection older than this is replaced by a new one
  std::uint64_t tunnel_bytes = 64 << 10;     // buffer of one direction of a control connection
  std::uint64_t body_bytes_max = 32 << 20;   // of a request
  std::uint64_t answer_bytes_max = 1 << 30;  // of an answer that call() gathers
  std::uint64_t breaks_max = 4;              // connections that may break in a row without a new chunk
};

struct NodeLinkOptions {
  std::string self;                            // one of the members
  std::vector<LinkMember> members;             // self listens on its own address and port (0: any free one, for tests)
  Sha256 cluster{};                            // ClusterConfig::digest(); peers with another are refused
  std::shared_ptr<IdentityKeeper> identities;  // null: plain text
  bool any_address = false;                    // peers may come from another address than the cluster file's
  BulkHandler handler;
  std::uint16_t control_target = 0;  // loopback port of this node's middleman; 0: set later
  LinkLimits limits;
  MetricsRegistry* metrics = nullptr;  // needed; outlives the link
  // Bodies of requests and gathered answers are taken from it.
  std::shared_ptr<MemoryLedger> memory = std::make_shared<MemoryLedger>();
  EventRing* events = nullptr;  // refusals are told here, at most one a second
};

}  // namespace gradtap::link
