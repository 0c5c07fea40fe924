// Door: the one listening port for peers. Accepts, asks who it is, and hands the connection on or refuses it by name.
//
// Ownership: owns connections until they are handed on. Threads: the link's own. Invariants: an address that no member
// has gets not a byte; nobody gets further than the hello without being a member of the same cluster; at most
// hellos_max connections wait for their hello, each hello_timeout_ms. Failure behaviour: a refusal is counted, told to
// the peer as a fault when it spoke, and told as an event, at most one a second. Internal to the link.
#pragma once

#include <atomic>
#include <functional>
#include <map>
#include <memory>
#include <set>
#include <string>

#include <asio/io_context.hpp>
#include <asio/ip/tcp.hpp>
#include <asio/steady_timer.hpp>

#include "link/bulk_threads.h"
#include "link/control_tunnel.h"
#include "link/link_counters.h"
#include "link/link_options.h"
#include "link/member_book.h"
#include "schema/link_codec.h"

namespace gradtap::link {

// Tunnels now open, so that stop() can end them; counts each peer's.
class TunnelSet {
 public:
  TunnelSet(const LinkLimits& limits, LinkCounters& counters) : limits_(limits), counters_(counters) {}
  // A place for one tunnel of `key`; null at the bound.
  [[nodiscard]] std::shared_ptr<void> reserve(const std::string& key);
  void start(asio::ip::tcp::socket left, asio::ip::tcp::socket right, std::shared_ptr<void> place);
  void close_all();

 private:
  const LinkLimits& limits_;
  LinkCounters& counters_;
  std::map<std::string, std::size_t> places_;
  std::size_t open_ = 0;
  std::set<std::weak_ptr<ControlTunnel>, std::owner_less<>> tunnels_;
};

class Door {
 public:
  Door(asio::io_context& context, const NodeLinkOptions& options, const MemberBook& book, LinkCounters& counters,
       BulkThreads& bulk, TunnelSet& tunnels, const std::atomic<std::uint16_t>& control_target);

  [[nodiscard]] Status open(const std::string& address, std::uint16_t port);
  [[nodiscard]] std::uint16_t port() const { return port_; }
  void close();

 private:
  struct Visit;
  void accept();
  void greet(asio::ip::tcp::socket socket);
  void judge(const std::shared_ptr<Visit>& visit, Result<Frame> frame);
  [[nodiscard]] Status admit(const schema::LinkHello& hello, const asio::ip::address& address) const;
  void let_in(const std::shared_ptr<Visit>& visit, const schema::LinkHello& hello);
  void connect_control(const std::shared_ptr<Visit>& visit, const std::string& peer, std::shared_ptr<void> place);
  void refuse(const std::shared_ptr<Visit>& visit, const Error& error);
  void tell(const asio::ip::address& address, const Error& error);

  asio::io_context& context_;
  const NodeLinkOptions& options_;
  const MemberBook& book_;
  LinkCounters& counters_;
  BulkThreads& bulk_;
  TunnelSet& tunnels_;
  const std::atomic<std::uint16_t>& control_target_;
  asio::ip::tcp::acceptor acceptor_;
  asio::steady_timer pause_;
  std::uint16_t port_ = 0;
  std::set<std::shared_ptr<Visit>> visits_;
  std::chrono::steady_clock::time_point told_{};
  std::uint64_t untold_ = 0;
};

}  // namespace gradtap::link
