// ControlPorts: for every peer a port on loopback that leads to the peer's middleman.
//
// Ownership: owns the ports and connections that are being set up. Threads: open() and port() before the link's thread
// runs, the rest on it. Invariants: bound to 127.0.0.1 only. Failure behaviour: a peer that cannot be reached, or
// refuses, closes the connection at once; it is counted. Internal to the link.
#pragma once

#include <list>
#include <memory>
#include <set>
#include <string>

#include <asio/io_context.hpp>
#include <asio/ip/tcp.hpp>
#include <asio/steady_timer.hpp>

#include "link/door.h"

namespace gradtap::link {

class ControlPorts {
 public:
  ControlPorts(asio::io_context& context, const NodeLinkOptions& options, const LinkMember& self,
               LinkCounters& counters, TunnelSet& tunnels);

  [[nodiscard]] Status open(const LinkMember& peer);
  [[nodiscard]] std::uint16_t port(const std::string& peer) const;  // 0: no such peer
  void close();

 private:
  struct Port {
    LinkMember peer;
    asio::ip::tcp::acceptor acceptor;
    asio::steady_timer pause;
    std::uint16_t port = 0;
  };
  struct Call;
  void accept(Port& port);
  void lead(const LinkMember& peer, asio::ip::tcp::socket socket);
  void greet(const std::shared_ptr<Call>& call);
  void end(const std::shared_ptr<Call>& call);

  asio::io_context& context_;
  const NodeLinkOptions& options_;
  const LinkMember self_;
  LinkCounters& counters_;
  TunnelSet& tunnels_;
  std::list<Port> ports_;
  std::set<std::shared_ptr<Call>> calls_;
};

}  // namespace gradtap::link
