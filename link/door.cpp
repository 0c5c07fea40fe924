#include "link/door.h"

#include <algorithm>

#include <fmt/format.h>

#include "link/async_frame.h"
#include "link/socket_options.h"

namespace gradtap::link {

using asio::ip::tcp;

namespace {

constexpr int kBacklog = 128;  // of the kernel
constexpr auto kAcceptPause = std::chrono::milliseconds(100);
constexpr auto kTellPause = std::chrono::seconds(1);

// An IPv4 peer that comes in over a dual-stack socket is still that IPv4 peer.
asio::ip::address plain(const asio::ip::address& address) {
  if (address.is_v6() && address.to_v6().is_v4_mapped())
    return asio::ip::make_address_v4(asio::ip::v4_mapped, address.to_v6());
  return address;
}

std::unexpected<Error> refused(std::string what, std::string expected, std::string actual) {
  return fail(ErrorCode::kPeerRefused, std::move(what), {}, std::move(expected), std::move(actual),
              "give all nodes the same cluster file and object store");
}

}  // namespace

std::shared_ptr<void> TunnelSet::reserve(const std::string& key) {
  std::size_t& count = places_[key];
  if (count >= limits_.tunnels_max) return nullptr;
  ++count;
  counters_.tunnels.set(++open_);
  return {this, [this, key](void*) {
            --places_[key];
            counters_.tunnels.set(--open_);
          }};
}

void TunnelSet::start(tcp::socket left, tcp::socket right, std::shared_ptr<void> place) {
  std::erase_if(tunnels_, [](const auto& each) { return each.expired(); });
  const auto tunnel = std::make_shared<ControlTunnel>(std::move(left), std::move(right), limits_.tunnel_bytes,
                                                      counters_.tunnel_bytes, std::move(place));
  tunnels_.insert(tunnel);
  tunnel->start();
}

void TunnelSet::close_all() {
  for (const auto& each : tunnels_)
    if (const auto tunnel = each.lock()) tunnel->close();
}

// An accepted connection that has not been handed on.
struct Door::Visit {
  Visit(asio::io_context& context, tcp::socket accepted)
      : socket(std::move(accepted)), target(context), timer(context) {}
  tcp::socket socket;
  tcp::socket target;  // the middleman's side of a control connection
  asio::steady_timer timer;
  asio::ip::address address;

  void close() {
    asio::error_code ignored;
    timer.cancel();
    socket.close(ignored);
    target.close(ignored);
  }
};

Door::Door(asio::io_context& context, const NodeLinkOptions& options, const MemberBook& book, LinkCounters& counters,
           BulkThreads& bulk, TunnelSet& tunnels, const std::atomic<std::uint16_t>& control_target)
    : context_(context),
      options_(options),
      book_(book),
      counters_(counters),
      bulk_(bulk),
      tunnels_(tunnels),
      control_target_(control_target),
      acceptor_(context),
      pause_(context) {}

Status Door::open(const std::string& address, std::uint16_t port) {
  asio::error_code error;
  const auto local = asio::ip::make_address(address, error);
  if (!error) acceptor_.open(local.is_v4() ? tcp::v4() : tcp::v6(), error);
  if (!error) acceptor_.set_option(tcp::acceptor::reuse_address(true), error);
  if (!error) acceptor_.bind({local, port}, error);
  if (!error) acceptor_.listen(kBacklog, error);
  if (!error) port_ = acceptor_.local_endpoint(error).port();
  if (error)
    return fail(ErrorCode::kPortOpen, "cannot listen for peers", fmt::format("{}:{}", address, port),
                "a free address of this host", error.message(), "correct link of this member in the cluster file");
  accept();
  return {};
}

void Door::close() {
  asio::error_code ignored;
  acceptor_.close(ignored);
  pause_.cancel();
  const auto visits = std::exchange(visits_, {});
  for (const auto& visit : visits) visit->close();
}

void Door::accept() {
  acceptor_.async_accept([this](const asio::error_code& error, tcp::socket socket) {
    if (!acceptor_.is_open()) return;
    if (error) {
      // Out of descriptors: the connection stays in the kernel's queue, so asking again at once would spin.
      counters_.refused_busy.add();
      pause_.expires_after(kAcceptPause);
      pause_.async_wait([this](const asio::error_code& stopped) {
        if (!stopped) accept();
      });
      return;
    }
    greet(std::move(socket));
    accept();
  });
}

void Door::greet(tcp::socket socket) {
  counters_.accepted.add();
  asio::error_code error;
  const auto remote = socket.remote_endpoint(error);
  if (error) return;
  const asio::ip::address address = plain(remote.address());
  if (!book_.has_address(address)) {
    counters_.refused_address.add();
    tell(address, {ErrorCode::kPeerRefused, "a connection from an address of no member", {}, {}, {}, {}});
    return;
  }
  if (visits_.size() >= options_.limits.hellos_max) {
    counters_.refused_busy.add();
    tell(address, {ErrorCode::kNodeBusy, "too many connections that have not said who they are", {}, {}, {}, {}});
    return;
  }
  const auto visit = std::make_shared<Visit>(context_, std::move(socket));
  visit->address = address;
  visits_.insert(visit);
  visit->timer.expires_after(std::chrono::milliseconds(options_.limits.hello_timeout_ms));
  visit->timer.async_wait([this, visit](const asio::error_code& stopped) {
    if (stopped || visits_.erase(visit) == 0) return;
    counters_.hello_timeouts.add();
    visit->close();
  });
  async_read_frame(visit->socket, kHelloBytesMax,
                   [this, visit](Result<Frame> frame) { judge(visit, std::move(frame)); });
}

void Door::judge(const std::shared_ptr<Visit>& visit, Result<Frame> frame) {
  if (!visits_.contains(visit)) return;
  if (!frame) return refuse(visit, frame.error());
  if (frame->type != FrameType::kHello)
    return refuse(visit, {ErrorCode::kPeerMalformed,
                          "a connection begins with another frame",
                          {},
                          "hello",
                          std::string(frame_type_name(frame->type)),
                          {}});
  const auto hello = schema::decode_link_hello(frame->header);
  if (!hello) return refuse(visit, hello.error());
  if (const Status admitted = admit(*hello, visit->address); !admitted) return refuse(visit, admitted.error());
  let_in(visit, *hello);
}

Status Door::admit(const schema::LinkHello& hello, const asio::ip::address& address) const {
  const auto member = book_.find(hello.name);
  if (!member || hello.name == options_.self)
    return refused("a node that is no other member", "a member's name", hello.name.substr(0, 64));
  asio::error_code error;
  if (asio::ip::make_address(member->address, error) != address || error)
    return refused(fmt::format("\"{}\" connects from another address than its own", hello.name), member->address,
                   address.to_string());
  if (hello.peer != options_.self)
    return refused("a node looks for another one here", options_.self, hello.peer.substr(0, 64));
  if (hello.cluster != options_.cluster)
    return refused(fmt::format("\"{}\" belongs to another cluster", hello.name), to_hex(options_.cluster).substr(0, 16),
                   to_hex(hello.cluster).substr(0, 16));
  return {};
}

void Door::let_in(const std::shared_ptr<Visit>& visit, const schema::LinkHello& hello) {
  const bool control = hello.kind == schema::LinkKind::kControl;
  std::shared_ptr<void> place = control ? tunnels_.reserve("from " + hello.name) : bulk_.reserve(hello.name);
  if (place == nullptr) {
    counters_.refused_busy.add();
    return refuse(visit, {ErrorCode::kNodeBusy, "too many connections of one peer", hello.name, {}, {}, {}});
  }
  if (control) return connect_control(visit, hello.name, std::move(place));
  async_write_frame(visit->socket, FrameType::kWelcome, schema::encode(schema::LinkWelcome{options_.self, {}}),
                    [this, visit, peer = hello.name, place = std::move(place)](const asio::error_code& error) mutable {
                      if (visits_.erase(visit) == 0) return;
                      visit->timer.cancel();
                      if (error) return visit->close();
                      asio::error_code why;
                      const int socket = visit->socket.release(why);
                      if (why) return visit->close();
                      tune_socket(socket);
                      bulk_.start(socket, peer, std::move(place));
                    });
}

void Door::connect_control(const std::shared_ptr<Visit>& visit, const std::string& peer, std::shared_ptr<void> place) {
  const std::uint16_t port = control_target_.load();
  if (port == 0) {
    counters_.tunnels_failed.add();
    return refuse(visit, {ErrorCode::kNodeBusy, "this node's actors do not run yet", options_.self, {}, {}, {}});
  }
  visit->target.async_connect({asio::ip::address_v4::loopback(), port}, [this, visit, peer, place = std::move(place)](
                                                                            const asio::error_code& error) mutable {
    if (!visits_.contains(visit)) return;
    if (error) {
      counters_.tunnels_failed.add();
      return refuse(visit,
                    {ErrorCode::kNodeBusy, "this node's actors cannot be reached", peer, {}, error.message(), {}});
    }
    async_write_frame(visit->socket, FrameType::kWelcome, schema::encode(schema::LinkWelcome{options_.self, {}}),
                      [this, visit, place = std::move(place)](const asio::error_code& why) mutable {
                        if (visits_.erase(visit) == 0) return;
                        visit->timer.cancel();
                        if (why) return visit->close();
                        tunnels_.start(std::move(visit->socket), std::move(visit->target), std::move(place));
                      });
  });
}

void Door::refuse(const std::shared_ptr<Visit>& visit, const Error& error) {
  if (error.code != ErrorCode::kNodeBusy) counters_.refused_hello.add();
  tell(visit->address, error);
  async_write_frame(visit->socket, FrameType::kWelcome, schema::encode(schema::LinkWelcome{options_.self, error}),
                    [this, visit](const asio::error_code&) {
                      visits_.erase(visit);
                      visit->close();
                    });
}

void Door::tell(const asio::ip::address& address, const Error& error) {
  if (options_.events == nullptr) return;
  const auto now = std::chrono::steady_clock::now();
  if (told_ != std::chrono::steady_clock::time_point{} && now - told_ < kTellPause) {
    ++untold_;
    return;
  }
  told_ = now;
  options_.events->add(
      LogLevel::kWarn, "a connection of a peer was refused",
      {{"address", address.to_string()}, {"reason", error.text()}, {"more", std::exchange(untold_, 0)}});
}

}  // namespace gradtap::link
