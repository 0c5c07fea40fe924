#include "link/control_ports.h"

#include <fmt/format.h>

#include "link/async_frame.h"
#include "link/socket_options.h"

namespace gradtap::link {

using asio::ip::tcp;

namespace {
constexpr auto kControlPause = std::chrono::milliseconds(100);
constexpr auto kControlTellPause = std::chrono::seconds(10);
constexpr int kControlBacklog = 16;
}  // namespace

// A connection of the own middleman that is being led to a peer, or one that is to take an older one's place.
struct ControlPorts::Call {
  Call(asio::io_context& context, LinkMember whom)
      : peer(std::move(whom)), remote(std::make_shared<AsyncChannel>(tcp::socket(context))), timer(context) {}
  const LinkMember peer;
  std::shared_ptr<AsyncChannel> local;  // null: replaces
  std::shared_ptr<AsyncChannel> remote;
  asio::steady_timer timer;
  std::shared_ptr<void> place;
  std::uint64_t number = 0;
  std::shared_ptr<ControlTunnel> replaces;
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
  if (!error) acceptor.listen(kControlBacklog, error);
  if (!error) number = acceptor.local_endpoint(error).port();
  if (error)
    return fail(ErrorCode::kPortOpen, "cannot listen on loopback", peer.name, "a free port", error.message(),
                "check that 127.0.0.1 is up");
  Port* port = nullptr;
  {
    const std::lock_guard lock(mutex_);
    port = &ports_.emplace_back(Port{peer, std::move(acceptor), asio::steady_timer(context_), number,
                                     Teller(options_.events, kControlTellPause)});
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
  while (!calls_.empty())
    end(*calls_.begin(), {ErrorCode::kPeerUnreachable, "the link is being stopped", {}, {}, {}, {}});
}

void ControlPorts::accept(Port& port) {
  port.acceptor.async_accept([this, &port](const asio::error_code& error, tcp::socket socket) {
    if (!port.acceptor.is_open()) return;
    if (error) {
      port.pause.expires_after(kControlPause);
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
  const auto call = std::make_shared<Call>(context_, peer);
  call->local = std::make_shared<AsyncChannel>(std::move(socket));
  call->place = tunnels_.reserve(peer.name, true);
  if (call->place == nullptr) {
    counters_.refused_busy.add();
    return;
  }
  call->number = random_.next();
  dial(call);
}

void ControlPorts::renew() {
  if (options_.identities == nullptr) return;
  const auto identity = options_.identities->current();
  const auto oldest = std::chrono::steady_clock::now() - std::chrono::milliseconds(options_.limits.renew_after_ms);
  for (const TunnelSet::Open& open : tunnels_.dialed_here()) {
    if (open.tunnel->identity() == identity.get() && open.tunnel->since() > oldest) continue;
    const auto peer = book_.find(open.name.peer);
    if (!peer || !open.tunnel->begin_renewal()) continue;
    const auto call = std::make_shared<Call>(context_, *peer);
    call->number = open.name.number;
    call->replaces = open.tunnel;
    dial(call);
  }
}

void ControlPorts::dial(const std::shared_ptr<Call>& call) {
  calls_.insert(call);
  call->timer.expires_after(std::chrono::milliseconds(options_.limits.connect_timeout_ms));
  call->timer.async_wait([this, call](const asio::error_code& stopped) {
    if (!stopped) end(call, {ErrorCode::kTimeout, "a peer did not greet in time", {}, {}, {}, {}});
  });
  const auto failed = [this, call](const asio::error_code& why) {
    end(call, {ErrorCode::kPeerUnreachable, "cannot connect", {}, {}, why.message(), {}});
  };
  asio::error_code error;
  tcp::socket& socket = call->remote->socket();
  const auto local = asio::ip::make_address(self_.address, error);
  const auto remote = error ? asio::ip::address() : asio::ip::make_address(call->peer.address, error);
  if (!error) socket.open(remote.is_v4() ? tcp::v4() : tcp::v6(), error);
  if (!error) socket.bind({local, 0}, error);
  if (error) return failed(error);
  socket.async_connect({remote, call->peer.port}, [this, call, failed](const asio::error_code& why) {
    if (why) return failed(why);
    if (calls_.contains(call)) secure(call);
  });
}

void ControlPorts::secure(const std::shared_ptr<Call>& call) {
  call->remote->begin();
  tune_socket(call->remote->socket().native_handle());
  if (options_.identities == nullptr) return greet(call);
  call->remote->secure(options_.identities->current(), Side::kCaller, [this, call](const Status& status) {
    if (!calls_.contains(call)) return;
    if (!status) return end(call, status.error());
    if (!call->remote->session().has_name(call->peer.name))
      return end(call, {ErrorCode::kPeerUntrusted,
                        std::string(refusal_text(Refusal::kWrongName)),
                        {},
                        fmt::format("\"{}\"", call->peer.name),
                        call->remote->session().peer_names(),
                        "gradtap ca issue DIR NAME, for the node at that address"});
    greet(call);
  });
}

void ControlPorts::greet(const std::shared_ptr<Call>& call) {
  const schema::LinkHello hello{options_.self, call->peer.name,          options_.cluster, schema::LinkKind::kControl,
                                call->number,  call->replaces != nullptr};
  async_write_frame(*call->remote, FrameType::kHello, schema::encode(hello), [this, call](const Status& status) {
    if (!status) return end(call, status.error());
    async_read_frame(*call->remote, kHeaderBytesMax,
                     [this, call](Result<Frame> frame) { take(call, std::move(frame)); });
  });
}

// The welcome.
void ControlPorts::take(const std::shared_ptr<Call>& call, Result<Frame> frame) {
  if (!calls_.contains(call)) return;
  if (!frame) return end(call, frame.error());
  const auto malformed = [&] {
    end(call, {ErrorCode::kPeerMalformed, "a peer sent a frame out of turn", {}, "welcome", {}, {}});
  };
  if (frame->type != FrameType::kWelcome) return malformed();
  const auto welcome = schema::decode_link_welcome(frame->header);
  if (!welcome) return end(call, welcome.error());
  if (welcome->fault) return end(call, *welcome->fault);
  if (welcome->name != call->peer.name)
    return end(
        call,
        {ErrorCode::kPeerRefused, "another node answers at a peer's address", {}, call->peer.name, welcome->name, {}});
  calls_.erase(call);
  call->timer.cancel();
  if (call->replaces == nullptr)
    return tunnels_.start({call->peer.name, true, call->number}, call->local, call->remote, std::move(call->place));
  counters_.tunnels_renewed.add();
  call->replaces->renew(call->remote);
}

void ControlPorts::end(const std::shared_ptr<Call>& call, const Error& error) {
  const std::shared_ptr<Call> kept = call;  // `call` may lie in the set
  if (calls_.erase(kept) == 0) return;
  // A renewal that comes while the peer's end is not through with the last one is tried again.
  if (kept->replaces == nullptr || error.code != ErrorCode::kNodeBusy) counters_.tunnels_failed.add();
  // A peer that is away is nothing new: membership tells. One that answers, and is no good, is.
  if (error.code != ErrorCode::kPeerUnreachable && error.code != ErrorCode::kTimeout &&
      error.code != ErrorCode::kNodeBusy)
    for (Port& port : ports_)
      if (port.peer.name == kept->peer.name)
        port.teller.tell("a peer cannot be reached over the node link", "peer", kept->peer.name, error);
  kept->timer.cancel();
  if (kept->local != nullptr) kept->local->close();
  kept->remote->close();
  kept->place.reset();
  if (kept->replaces != nullptr) kept->replaces->abandon_renewal();
}

}  // namespace gradtap::link
