// LinkCounters: what the link counts, by name. References into a MetricsRegistry, which outlives it; any thread.
#pragma once

#include "common/metrics.h"

namespace gradtap::link {

struct LinkCounters {
  explicit LinkCounters(MetricsRegistry& registry)
      : calls(registry.counter("link.calls")),
        calls_failed(registry.counter("link.calls_failed")),
        calls_timed_out(registry.counter("link.calls_timed_out")),
        waits_for_connection(registry.counter("link.waits_for_connection")),
        breaks(registry.counter("link.breaks")),
        resumed(registry.counter("link.resumed")),
        started_over(registry.counter("link.started_over")),
        chunks_in(registry.counter("link.chunks_in")),
        bytes_in(registry.counter("link.bytes_in")),
        requests(registry.counter("link.requests")),
        requests_failed(registry.counter("link.requests_failed")),
        chunks_out(registry.counter("link.chunks_out")),
        bytes_out(registry.counter("link.bytes_out")),
        waits_for_credit(registry.counter("link.waits_for_credit")),
        bulk_connections(registry.counter("link.bulk_connections")),
        accepted(registry.counter("link.accepted")),
        refused_address(registry.counter("link.refused_address")),
        refused_hello(registry.counter("link.refused_hello")),
        refused_busy(registry.counter("link.refused_busy")),
        hello_timeouts(registry.counter("link.hello_timeouts")),
        malformed(registry.counter("link.malformed")),
        tunnels(registry.counter("link.tunnels")),
        tunnels_failed(registry.counter("link.tunnels_failed")),
        tunnel_bytes(registry.counter("link.tunnel_bytes")) {}

  // As the caller.
  Counter& calls;
  Counter& calls_failed;
  Counter& calls_timed_out;
  Counter& waits_for_connection;  // link.connections_max was reached
  Counter& breaks;                // connections that broke under a call
  Counter& resumed;
  Counter& started_over;  // after a break the answer was another one
  Counter& chunks_in;
  Counter& bytes_in;
  // As the answerer.
  Counter& requests;
  Counter& requests_failed;
  Counter& chunks_out;
  Counter& bytes_out;
  Counter& waits_for_credit;
  Counter& bulk_connections;  // gauge: now open, accepted
  // At the door.
  Counter& accepted;
  Counter& refused_address;  // source address of no member
  Counter& refused_hello;    // malformed, another cluster, another name
  Counter& refused_busy;     // a bound on connections was reached
  Counter& hello_timeouts;
  Counter& malformed;  // frames after the hello
  // Control connections.
  Counter& tunnels;  // gauge: now open
  Counter& tunnels_failed;
  Counter& tunnel_bytes;
};

}  // namespace gradtap::link
