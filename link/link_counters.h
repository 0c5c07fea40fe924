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
        refused_large(registry.counter("link.refused_large")),
        refused_no_certificate(registry.counter("link.refused_no_certificate")),
        refused_authority(registry.counter("link.refused_authority")),
        refused_expired(registry.counter("link.refused_expired")),
        refused_name(registry.counter("link.refused_name")),
        refused_plain_text(registry.counter("link.refused_plain_text")),
        refused_handshake(registry.counter("link.refused_handshake")),
        handshake_timeouts(registry.counter("link.handshake_timeouts")),
        hello_timeouts(registry.counter("link.hello_timeouts")),
        malformed(registry.counter("link.malformed")),
        tunnels(registry.counter("link.tunnels")),
        tunnels_failed(registry.counter("link.tunnels_failed")),
        tunnels_renewed(registry.counter("link.tunnels_renewed")),
        tunnel_bytes(registry.counter("link.tunnel_bytes")),
        certificate_expires_s(registry.counter("link.certificate_expires_s")),
        certificates_read(registry.counter("link.certificates_read")),
        certificates_unusable(registry.counter("link.certificates_unusable")) {}

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
  Counter& refused_large;    // bodies and answers beyond their bound
  Counter& refused_no_certificate;
  Counter& refused_authority;   // a certificate of no authority of this cluster, or one not meant for this
  Counter& refused_expired;     // or not valid yet
  Counter& refused_name;        // a right certificate, but another member's
  Counter& refused_plain_text;  // no TLS where TLS is asked for
  Counter& refused_handshake;   // malformed, broken off, an old version
  Counter& handshake_timeouts;
  Counter& hello_timeouts;
  Counter& malformed;  // frames after the hello
  // Control connections.
  Counter& tunnels;  // gauge: now open
  Counter& tunnels_failed;
  Counter& tunnels_renewed;  // their connection was replaced
  Counter& tunnel_bytes;
  // This node's certificate.
  Counter& certificate_expires_s;  // gauge: seconds since 1970; 0: none
  Counter& certificates_read;      // how often new ones were found
  Counter& certificates_unusable;  // how often new ones could not be used
};

}  // namespace gradtap::link
