// Door: the one listening port for peers. Accepts, shakes hands, asks who it is, and hands the connection on or refuses
// it by name.
//
// Ownership: owns connections until they are handed on. Threads: the link's own. Invariants: an address that no member
// has gets not a byte; nobody gets further than the hello without being a member of the same cluster and, under TLS,
// without a certificate of its authority that has the member's name; at most hellos_max connections have not said who
// they are, each for hello_timeout_ms at most: at the bound the oldest one of the address with the most makes room.
// Failure behaviour: a refusal is counted by its reason, told to the peer as an alert or a fault, and told as an event,
// at most one a second. Internal to the link.
#pragma once

#include <atomic>
#include <functional>
#include <map>
#include <memory>
#include <string>

#include <asio/io_context.hpp>
#include <asio/ip/tcp.hpp>
#include <asio/steady_timer.hpp>

#include "common/teller.h"
#include "link/bulk_threads.h"
#include "link/link_counters.h"
#include "link/link_options.h"
#include "link/member_book.h"
#include "link/tunnel_set.h"
#include "schema/link_codec.h"

namespace gradtap::link {

class Door {
 public:
  Door(asio::io_context& context, const NodeLinkOptions& options, const MemberBook& book, LinkCounters& counters,
       BulkThreads& bulk, TunnelSet& tunnels, const std::atomic<std::uint16_t>& control_target);

  [[nodiscard]] Status open(const std::string& address, std::uint16_t port);
  [[nodiscard]] std::uint16_t port() const { return port_; }
  void close();

 private:
  struct Visit;
  using VisitPtr = std::shared_ptr<Visit>;
  void accept();
  void greet(asio::ip::tcp::socket socket);
  [[nodiscard]] bool make_room();
  void listen_to(const VisitPtr& visit);
  void judge(const VisitPtr& visit, Result<Frame> frame);
  [[nodiscard]] Status admit(const schema::LinkHello& hello, const Visit& visit) const;
  void let_in(const VisitPtr& visit, const schema::LinkHello& hello);
  void welcome(const VisitPtr& visit, std::function<void()> then);
  void connect_control(const VisitPtr& visit, const schema::LinkHello& hello, std::shared_ptr<void> place);
  void renew_control(const VisitPtr& visit, const schema::LinkHello& hello);
  void refuse(const VisitPtr& visit, const Error& error);
  void refuse_handshake(const VisitPtr& visit, const Error& error);
  void linger(const VisitPtr& visit);
  void late(const VisitPtr& visit);
  [[nodiscard]] bool waits(const VisitPtr& visit) const;
  bool leave(const VisitPtr& visit);
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
  std::map<std::uint64_t, VisitPtr> visits_;  // in order of arrival
  std::uint64_t arrivals_ = 0;
  Teller teller_;
};

}  // namespace gradtap::link
