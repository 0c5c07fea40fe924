#include "link/door.h"

#include <algorithm>
#include <array>
#include <cerrno>

#include <fmt/format.h>
#include <sys/socket.h>

#include "link/async_frame.h"
#include "link/socket_options.h"

namespace gradtap::link {

using asio::ip::tcp;

namespace {

constexpr int kDoorBacklog = 128;  // of the kernel
constexpr auto kDoorPause = std::chrono::milliseconds(100);
constexpr auto kDoorTellPause = std::chrono::seconds(1);
constexpr std::size_t kLateBytesMax = std::size_t{256} << 10;  // heard of a peer that was refused

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

// An accepted connection that has not been handed on.
struct Door::Visit {
  // How far it has come.
  enum class Stage : std::uint8_t { kHandshake, kHello, kKnown, kRefused };
  Visit(asio::io_context& context, tcp::socket accepted, std::uint64_t which)
      : number(which),
        channel(std::make_shared<AsyncChannel>(std::move(accepted))),
        target(std::make_shared<AsyncChannel>(tcp::socket(context))),
        timer(context) {}
  const std::uint64_t number;
  Stage stage = Stage::kHandshake;
  std::shared_ptr<AsyncChannel> channel;
  std::shared_ptr<AsyncChannel> target;  // the middleman's side of a control connection
  asio::steady_timer timer;
  asio::ip::address address;
  std::size_t read_late = 0;

  void close() {
    timer.cancel();
    channel->close();
    target->close();
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
      pause_(context),
      teller_(options.events, kDoorTellPause) {}

Status Door::open(const std::string& address, std::uint16_t port) {
  asio::error_code error;
  const auto local = asio::ip::make_address(address, error);
  if (!error) acceptor_.open(local.is_v4() ? tcp::v4() : tcp::v6(), error);
  if (!error) acceptor_.set_option(tcp::acceptor::reuse_address(true), error);
  if (!error) acceptor_.bind({local, port}, error);
  if (!error) acceptor_.listen(kDoorBacklog, error);
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
  for (const auto& [number, visit] : visits) visit->close();
}

void Door::accept() {
  acceptor_.async_accept([this](const asio::error_code& error, tcp::socket socket) {
    if (!acceptor_.is_open()) return;
    if (error) {
      // Out of descriptors: the connection stays in the kernel's queue, so asking again at once would spin.
      counters_.refused_busy.add();
      pause_.expires_after(kDoorPause);
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
  if (!options_.any_address && !book_.has_address(address)) {
    counters_.refused_address.add();
    tell(address, {ErrorCode::kPeerRefused, "a connection from an address of no member", {}, {}, {}, {}});
    return;
  }
  if (visits_.size() >= options_.limits.hellos_max) {
    counters_.refused_busy.add();
    tell(address, {ErrorCode::kNodeBusy, "too many connections that have not said who they are", {}, {}, {}, {}});
    if (!make_room()) return;
  }
  const auto visit = std::make_shared<Visit>(context_, std::move(socket), ++arrivals_);
  visit->address = address;
  visits_.emplace(visit->number, visit);
  visit->timer.expires_after(std::chrono::milliseconds(options_.limits.hello_timeout_ms));
  visit->timer.async_wait([this, visit](const asio::error_code& stopped) {
    if (!stopped) late(visit);
  });
  visit->channel->begin();
  if (options_.identities == nullptr) return listen_to(visit);
  visit->channel->secure(options_.identities->current(), Side::kAnswerer, [this, visit](const Status& status) {
    if (!waits(visit)) return;
    if (!status) return refuse_handshake(visit, status.error());
    listen_to(visit);
  });
}

// The oldest connection of the address that has most of them goes: one address cannot keep out another.
bool Door::make_room() {
  std::map<asio::ip::address, std::size_t> held;
  for (const auto& [number, visit] : visits_)
    if (visit->stage != Visit::Stage::kKnown) ++held[visit->address];
  const auto most =
      std::max_element(held.begin(), held.end(), [](const auto& a, const auto& b) { return a.second < b.second; });
  if (most == held.end()) return false;
  for (const auto& [number, visit] : visits_) {
    if (visit->stage == Visit::Stage::kKnown || visit->address != most->first) continue;
    const VisitPtr kept = visit;
    return leave(kept);
  }
  return false;
}

bool Door::waits(const VisitPtr& visit) const {
  return visits_.contains(visit->number);
}

// Closes it; false when it had left before.
bool Door::leave(const VisitPtr& visit) {
  if (visits_.erase(visit->number) == 0) return false;
  visit->close();
  return true;
}

void Door::late(const VisitPtr& visit) {
  const Visit::Stage stage = visit->stage;
  if (!leave(visit)) return;
  if (stage == Visit::Stage::kHandshake && options_.identities != nullptr) {
    counters_.handshake_timeouts.add();
    tell(visit->address, {ErrorCode::kTimeout, "a peer did not finish its handshake in time", {}, {}, {}, {}});
  } else if (stage != Visit::Stage::kRefused) {
    counters_.hello_timeouts.add();
  }
}

void Door::listen_to(const VisitPtr& visit) {
  visit->stage = Visit::Stage::kHello;
  async_read_frame(*visit->channel, kHelloBytesMax,
                   [this, visit](Result<Frame> frame) { judge(visit, std::move(frame)); });
}

void Door::judge(const VisitPtr& visit, Result<Frame> frame) {
  if (!waits(visit)) return;
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
  if (const Status admitted = admit(*hello, *visit); !admitted) return refuse(visit, admitted.error());
  let_in(visit, *hello);
}

Status Door::admit(const schema::LinkHello& hello, const Visit& visit) const {
  // First of all: what a certificate does not prove is not judged further.
  if (!visit.channel->session().has_name(hello.name))
    return fail(ErrorCode::kPeerUntrusted, std::string(refusal_text(Refusal::kWrongName)), {},
                fmt::format("\"{}\"", hello.name.substr(0, 64)), visit.channel->session().peer_names(),
                "gradtap ca issue DIR NAME, for the node at that address");
  const auto member = book_.find(hello.name);
  if (!member || hello.name == options_.self)
    return refused("a node that is no other member", "a member's name", hello.name.substr(0, 64));
  asio::error_code error;
  if (!options_.any_address && (asio::ip::make_address(member->address, error) != visit.address || error))
    return refused(fmt::format("\"{}\" connects from another address than its own", hello.name), member->address,
                   visit.address.to_string());
  if (hello.peer != options_.self)
    return refused("a node looks for another one here", options_.self, hello.peer.substr(0, 64));
  if (hello.cluster != options_.cluster)
    return refused(fmt::format("\"{}\" belongs to another cluster", hello.name), to_hex(options_.cluster).substr(0, 16),
                   to_hex(hello.cluster).substr(0, 16));
  return {};
}

void Door::let_in(const VisitPtr& visit, const schema::LinkHello& hello) {
  visit->stage = Visit::Stage::kKnown;
  const bool control = hello.kind == schema::LinkKind::kControl;
  if (control && hello.renews) return renew_control(visit, hello);
  std::shared_ptr<void> place = control ? tunnels_.reserve(hello.name, false) : bulk_.reserve(hello.name);
  if (place == nullptr) {
    counters_.refused_busy.add();
    return refuse(visit, {ErrorCode::kNodeBusy, "too many connections of one peer", hello.name, {}, {}, {}});
  }
  if (control) return connect_control(visit, hello, std::move(place));
  welcome(visit, [this, visit, peer = hello.name, place = std::move(place)] {
    auto [socket, session] = visit->channel->release();
    if (socket < 0) return visit->close();
    tune_socket(socket);
    bulk_.start(socket, std::move(session), peer, place);
  });
}

// Sends it; `then` runs when the connection has left the door.
void Door::welcome(const VisitPtr& visit, std::function<void()> then) {
  async_write_frame(*visit->channel, FrameType::kWelcome, schema::encode(schema::LinkWelcome{options_.self, {}}),
                    [this, visit, then = std::move(then)](const Status& status) {
                      if (visits_.erase(visit->number) == 0) return;
                      visit->timer.cancel();
                      if (!status) return visit->close();
                      then();
                    });
}

void Door::connect_control(const VisitPtr& visit, const schema::LinkHello& hello, std::shared_ptr<void> place) {
  const std::uint16_t port = control_target_.load();
  if (port == 0) {
    counters_.tunnels_failed.add();
    return refuse(visit, {ErrorCode::kNodeBusy, "this node's actors do not run yet", options_.self, {}, {}, {}});
  }
  visit->target->socket().async_connect(
      {asio::ip::address_v4::loopback(), port},
      [this, visit, hello, place = std::move(place)](const asio::error_code& error) {
        if (!waits(visit)) return;
        if (error) {
          counters_.tunnels_failed.add();
          return refuse(
              visit,
              {ErrorCode::kNodeBusy, "this node's actors cannot be reached", hello.name, {}, error.message(), {}});
        }
        welcome(visit, [this, visit, hello, place] {
          tunnels_.start({hello.name, false, hello.tunnel}, visit->target, visit->channel, place);
        });
      });
}

// Another connection for a tunnel that the peer dialed before.
void Door::renew_control(const VisitPtr& visit, const schema::LinkHello& hello) {
  const std::shared_ptr<ControlTunnel> tunnel = tunnels_.find(hello.name, hello.tunnel);
  if (tunnel == nullptr || options_.identities == nullptr)
    return refuse(visit, refused("the control connection to be renewed is not here", {}, {}).error());
  if (!tunnel->begin_renewal())
    return refuse(visit, {ErrorCode::kNodeBusy, "the control connection is being renewed", hello.name, {}, {}, {}});
  async_write_frame(*visit->channel, FrameType::kWelcome, schema::encode(schema::LinkWelcome{options_.self, {}}),
                    [this, visit, tunnel](const Status& status) {
                      const bool here = visits_.erase(visit->number) != 0;
                      visit->timer.cancel();
                      if (here && status) {
                        counters_.tunnels_renewed.add();
                        return tunnel->renew(visit->channel);
                      }
                      visit->close();
                      tunnel->abandon_renewal();
                    });
}

void Door::refuse(const VisitPtr& visit, const Error& error) {
  if (error.code == ErrorCode::kPeerUntrusted)
    counters_.refused_name.add();
  else if (error.code != ErrorCode::kNodeBusy)
    counters_.refused_hello.add();
  tell(visit->address, error);
  visit->stage = Visit::Stage::kRefused;
  async_write_frame(*visit->channel, FrameType::kWelcome, schema::encode(schema::LinkWelcome{options_.self, error}),
                    [this, visit](const Status&) { linger(visit); });
}

void Door::refuse_handshake(const VisitPtr& visit, const Error& error) {
  switch (visit->channel->session().refusal()) {
    case Refusal::kNoCertificate:
      counters_.refused_no_certificate.add();
      break;
    case Refusal::kOtherAuthority:
      counters_.refused_authority.add();
      break;
    case Refusal::kExpired:
    case Refusal::kNotYetValid:
      counters_.refused_expired.add();
      break;
    case Refusal::kPlainText:
      counters_.refused_plain_text.add();
      break;
    default:
      counters_.refused_handshake.add();
  }
  tell(visit->address, error);
  visit->stage = Visit::Stage::kRefused;
  linger(visit);
}

// Closing at once would take back what the peer has been told, if it is still sending: it is heard out first.
void Door::linger(const VisitPtr& visit) {
  if (!waits(visit)) return;
  tcp::socket& socket = visit->channel->socket();
  asio::error_code ignored;
  socket.shutdown(tcp::socket::shutdown_send, ignored);
  std::array<char, 4096> unheard;
  for (;;) {
    const ssize_t got = ::recv(socket.native_handle(), unheard.data(), unheard.size(), MSG_DONTWAIT);
    if (got > 0 && (visit->read_late += static_cast<std::size_t>(got)) <= kLateBytesMax) continue;
    if (got >= 0 || (errno != EAGAIN && errno != EWOULDBLOCK)) {
      leave(visit);
      return;
    }
    break;
  }
  socket.async_wait(tcp::socket::wait_read, [this, visit](const asio::error_code& error) {
    if (!error) linger(visit);
  });
}

void Door::tell(const asio::ip::address& address, const Error& error) {
  teller_.tell("a connection of a peer was refused", "address", address.to_string(), error);
}

}  // namespace gradtap::link
