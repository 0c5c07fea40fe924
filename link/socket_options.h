// Options of every socket between nodes. Plain function, any thread; an option that the system refuses is left as it
// is.
#pragma once

#include <netinet/in.h>
#include <netinet/tcp.h>
#include <sys/socket.h>

namespace gradtap::link {

// Small frames leave at once; a peer whose host vanished is noticed by the kernel.
inline void tune_socket(int socket) {
  const int yes = 1;
  const int idle_seconds = 10;
  const int interval_seconds = 5;
  const int probes = 3;
  const unsigned unacknowledged_ms = 25'000;
  (void)::setsockopt(socket, IPPROTO_TCP, TCP_NODELAY, &yes, sizeof yes);
  (void)::setsockopt(socket, SOL_SOCKET, SO_KEEPALIVE, &yes, sizeof yes);
  (void)::setsockopt(socket, IPPROTO_TCP, TCP_KEEPIDLE, &idle_seconds, sizeof idle_seconds);
  (void)::setsockopt(socket, IPPROTO_TCP, TCP_KEEPINTVL, &interval_seconds, sizeof interval_seconds);
  (void)::setsockopt(socket, IPPROTO_TCP, TCP_KEEPCNT, &probes, sizeof probes);
  (void)::setsockopt(socket, IPPROTO_TCP, TCP_USER_TIMEOUT, &unacknowledged_ms, sizeof unacknowledged_ms);
}

}  // namespace gradtap::link
