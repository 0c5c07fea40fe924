#include "link/control_ports.h"

#include <fmt/format.h>

#include "link/async_frame.h"
#include "link/socket_options.h"

namespace gradtap::link {

using asio::ip::tcp;

namespace {
constexpr auto kAcceptPause = std::chrono::milliseconds(100);
constexpr int kBacklog = 16;
}  // namespace

// A connection of the own middleman that is being led to a peer.
struct ControlPorts::Call {
  Call(asio::io_context& context, LinkMember whom, tcp::socket accepted)
      : peer(std::move(whom)), local(std::move(accepted)), remote(context), timer(context) {}
  const LinkMember peer;
  tcp::socket local;
  tcp::socket remote;
  asio::steady_timer timer;
  std::shared_ptr<void> place;
};

ControlPorts::ControlPorts(asio::io_context& context, const NodeLinkOptions& options, const MemberBook& book,
                           const LinkMember& self, LinkCounters& counters, TunnelSet& tunnels)
    : context_(context), options_(options), book_(book), self_(self), counters_(counters), tunnels_(tunnels) {}

Status ControlPorts::open(const LinkMember& peer) {
  for (Port& known : ports_)
    if (known.peer.name == peer.name) {
      known.peer = peer;
      return {};
    }
  tcp::acceptor acceptor(context_);
  asio::error_code error;
  std::uint16_t number = 0;
  acceptor.open(tcp::v4(), error);
  if (!error) acceptor.bind({asio::ip::address_v4::loopback(), 0}, error);
  if (!error) acceptor.listen(kBacklog, error);
  if (!error) number = acceptor.local_endpoint(error).port();
  if (error)
    return fail(ErrorCode::kPortOpen, "cannot listen on loopback", peer.name, "a free port", error.message(),
                "check that 127.0.0.1 is up");
  Port* port = nullptr;
  {
    const std::lock_guard lock(mutex_);
    port = &ports_.emplace_back(Port{peer, std::move(acceptor), asio::steady_timer(context_), number});
  }
  accept(*port);
  return {};
}

std::uint16_t ControlPorts::port(const std::string& peer) const {
  const std::lock_guard lock(mutex_);
  for (const Port& port : ports_)
    if (port.peer.name == peer) return port.port;
  return 0;
}

void ControlPorts::close() {
  asio::error_code ignored;
  for (Port& port : ports_) {
    port.acceptor.close(ignored);
    port.pause.cancel();
  }
  while (!calls_.empty()) end(*calls_.begin());
}

void ControlPorts::accept(Port& port) {
  port.acceptor.async_accept([this, &port](const asio::error_code& error, tcp::socket socket) {
    if (!port.acceptor.is_open()) return;
    if (error) {
      port.pause.expires_after(kAcceptPause);
      port.pause.async_wait([this, &port](const asio::error_code& stopped) {
        if (!stopped) accept(port);
      });
      return;
    }
    lead(port.peer, std::move(socket));
    accept(port);
  });
}

void ControlPorts::lead(const LinkMember& peer, tcp::socket socket) {
  if (!book_.find(peer.name)) return;  // no member any more
  const auto call = std::make_shared<Call>(context_, peer, std::move(socket));
  call->place = tunnels_.reserve("to " + peer.name);
  if (call->place == nullptr) {
    counters_.refused_busy.add();
    return;
  }
  calls_.insert(call);
  call->timer.expires_after(std::chrono::milliseconds(options_.limits.connect_timeout_ms));
  call->timer.async_wait([this, call](const asio::error_code& stopped) {
    if (!stopped) end(call);
  });
  asio::error_code error;
  const auto local = asio::ip::make_address(self_.address, error);
  const auto remote = error ? asio::ip::address() : asio::ip::make_address(peer.address, error);
  if (!error) call->remote.open(remote.is_v4() ? tcp::v4() : tcp::v6(), error);
  if (!error) call->remote.bind({local, 0}, error);
  if (error) return end(call);
  call->remote.async_connect({remote, peer.port}, [this, call](const asio::error_code& why) {
    if (why) return end(call);
    greet(call);
  });
}

void ControlPorts::greet(const std::shared_ptr<Call>& call) {
  if (!calls_.contains(call)) return;
  tune_socket(call->remote.native_handle());
  const schema::LinkHello hello{options_.self, call->peer.name, options_.cluster, schema::LinkKind::kControl};
  async_write_frame(call->remote, FrameType::kHello, schema::encode(hello),
                    [this, call](const asio::error_code& error) {
                      if (error) return end(call);
                      async_read_frame(call->remote, kHeaderBytesMax, [this, call](Result<Frame> frame) {
                        if (!calls_.contains(call)) return;
                        if (!frame || frame->type != FrameType::kWelcome) return end(call);
                        const auto welcome = schema::decode_link_welcome(frame->header);
                        if (!welcome || welcome->fault || welcome->name != call->peer.name) return end(call);
                        calls_.erase(call);
                        call->timer.cancel();
                        tunnels_.start(std::move(call->local), std::move(call->remote), std::move(call->place));
                      });
                    });
}

void ControlPorts::end(const std::shared_ptr<Call>& call) {
  const std::shared_ptr<Call> kept = call;  // `call` may lie in the set
  if (calls_.erase(kept) == 0) return;
  counters_.tunnels_failed.add();
  asio::error_code ignored;
  kept->timer.cancel();
  kept->local.close(ignored);
  kept->remote.close(ignored);
  kept->place.reset();
}

}  // namespace gradtap::link
