// ControlPorts: for every peer a port on loopback that leads to the peer's middleman.
//
// Ownership: owns the ports and connections that are being set up. Threads: port() any; open() before the link's thread
// runs or on it, the rest on it. Invariants: bound to 127.0.0.1 only. Failure behaviour: a peer that cannot be reached,
// or refuses, closes the connection at once; it is counted, and what the peer said is told as an event. A replacement
// that fails leaves the connection as it is, and is tried again. Internal to the link.
#pragma once

#include <list>
#include <memory>
#include <mutex>
#include <set>
#include <string>

#include <asio/io_context.hpp>
#include <asio/ip/tcp.hpp>
#include <asio/steady_timer.hpp>

#include "common/random.h"
#include "common/teller.h"
#include "link/door.h"

namespace gradtap::link {

class ControlPorts {
 public:
  ControlPorts(asio::io_context& context, const NodeLinkOptions& options, const MemberBook& book,
               const LinkMember& self, LinkCounters& counters, TunnelSet& tunnels);

  // A peer that has a port already keeps it: what is led through it from now on goes to the address given here.
  [[nodiscard]] Status open(const LinkMember& peer);
  [[nodiscard]] std::uint16_t port(const std::string& peer) const;  // 0: no such peer
  // Replaces connections that are older than renew_after_ms, or than this node's certificate.
  void renew();
  void close();

 private:
  struct Port {
    LinkMember peer;
    asio::ip::tcp::acceptor acceptor;
    asio::steady_timer pause;
    std::uint16_t port = 0;
    Teller teller;
  };
  struct Call;
  void accept(Port& port);
  void lead(const LinkMember& peer, asio::ip::tcp::socket socket);
  void dial(const std::shared_ptr<Call>& call);
  void secure(const std::shared_ptr<Call>& call);
  void greet(const std::shared_ptr<Call>& call);
  void take(const std::shared_ptr<Call>& call, Result<Frame> frame);
  void end(const std::shared_ptr<Call>& call, const Error& error);

  asio::io_context& context_;
  const NodeLinkOptions& options_;
  const MemberBook& book_;
  const LinkMember self_;
  LinkCounters& counters_;
  TunnelSet& tunnels_;
  mutable std::mutex mutex_;  // of the list itself, for port()
  std::list<Port> ports_;
  std::set<std::shared_ptr<Call>> calls_;
  SystemRandom random_;
};

}  // namespace gradtap::link
