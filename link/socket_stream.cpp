#include "link/socket_stream.h"

#include <algorithm>
#include <array>
#include <atomic>
#include <cerrno>
#include <cstring>
#include <utility>

#include <arpa/inet.h>
#include <fcntl.h>
#include <fmt/format.h>
#include <netinet/in.h>
#include <poll.h>
#include <sys/eventfd.h>
#include <sys/socket.h>
#include <unistd.h>

#include "link/socket_options.h"

namespace gradtap::link {
namespace {

struct Address {
  sockaddr_storage storage{};
  socklen_t length = 0;
  [[nodiscard]] const sockaddr* get() const { return reinterpret_cast<const sockaddr*>(&storage); }
};

bool parse_address(const std::string& text, std::uint16_t port, Address& out) {
  auto* const four = reinterpret_cast<sockaddr_in*>(&out.storage);
  if (::inet_pton(AF_INET, text.c_str(), &four->sin_addr) == 1) {
    four->sin_family = AF_INET;
    four->sin_port = htons(port);
    out.length = sizeof *four;
    return true;
  }
  auto* const six = reinterpret_cast<sockaddr_in6*>(&out.storage);
  if (::inet_pton(AF_INET6, text.c_str(), &six->sin6_addr) != 1) return false;
  six->sin6_family = AF_INET6;
  six->sin6_port = htons(port);
  out.length = sizeof *six;
  return true;
}

// Rounded up, so that a wait never ends before its deadline.
int milliseconds_to(Deadline deadline) {
  using std::chrono::ceil;
  using std::chrono::milliseconds;
  constexpr std::int64_t kLongest = 1 << 30;
  const auto left = ceil<milliseconds>(deadline - std::chrono::steady_clock::now()).count();
  return static_cast<int>(std::clamp<std::int64_t>(left, 0, kLongest));
}

}  // namespace

struct SocketStream::Impl {
  explicit Impl(std::string name) : peer(std::move(name)), wake(::eventfd(0, EFD_CLOEXEC | EFD_NONBLOCK)) {}
  ~Impl() {
    close();
    if (wake >= 0) ::close(wake);
  }
  Impl(const Impl&) = delete;
  Impl& operator=(const Impl&) = delete;

  const std::string peer;
  const int wake;
  int socket = -1;
  Session session;
  std::chrono::steady_clock::time_point since = std::chrono::steady_clock::now();
  std::atomic<bool> aborted{false};

  void close() {
    if (socket >= 0) ::close(std::exchange(socket, -1));
  }

  std::unexpected<Error> gone(std::string_view doing, const std::string& why) {
    close();
    return fail(ErrorCode::kPeerUnreachable, fmt::format("cannot {}", doing), peer, {},
                aborted.load() ? "the link is being stopped" : why, "check that the node runs and can be reached");
  }

  // An error of the session, with the peer's name.
  std::unexpected<Error> broken(Error error) {
    close();
    error.where = peer;
    return std::unexpected<Error>(std::move(error));
  }

  Status wait(Want want, std::string_view doing, Deadline deadline) {
    for (;;) {
      if (aborted.load() || socket < 0) return gone(doing, "the connection is closed");
      std::array<pollfd, 2> both{
          {{socket, static_cast<short>(want == Want::kWrite ? POLLOUT : POLLIN), 0}, {wake, POLLIN, 0}}};
      const int ready = ::poll(both.data(), both.size(), milliseconds_to(deadline));
      if (aborted.load()) return gone(doing, {});
      if (ready > 0) return {};
      if (ready < 0 && errno != EINTR) return gone(doing, std::strerror(errno));
      if (std::chrono::steady_clock::now() < deadline) continue;
      close();
      return fail(ErrorCode::kTimeout, fmt::format("no answer in time, while trying to {}", doing), peer, {}, {},
                  "see whether the node hangs or its network is slow");
    }
  }

  [[nodiscard]] bool usable() const { return socket >= 0 && !aborted.load(); }
};

SocketStream::SocketStream(std::string peer) : impl_(std::make_unique<Impl>(std::move(peer))) {}
SocketStream::~SocketStream() = default;

Status SocketStream::connect(const std::string& local_address, const std::string& address, std::uint16_t port,
                             Deadline deadline) {
  Impl& impl = *impl_;
  const auto unprepared = [&](const std::string& why) {
    return impl.gone(fmt::format("prepare a connection from {} to {}", local_address, address), why);
  };
  Address local;
  Address remote;
  if (!parse_address(local_address, 0, local) || !parse_address(address, port, remote))
    return unprepared("not an IP address");
  impl.socket = ::socket(remote.storage.ss_family, SOCK_STREAM | SOCK_CLOEXEC | SOCK_NONBLOCK, 0);
  // The peer knows this node by its address.
  if (impl.wake < 0 || impl.socket < 0 || ::bind(impl.socket, local.get(), local.length) != 0)
    return unprepared(std::strerror(errno));
  if (::connect(impl.socket, remote.get(), remote.length) != 0) {
    if (errno != EINPROGRESS) return impl.gone("connect", std::strerror(errno));
    GRADTAP_TRY(impl.wait(Want::kWrite, "connect", deadline));
    int error = 0;
    socklen_t length = sizeof error;
    if (::getsockopt(impl.socket, SOL_SOCKET, SO_ERROR, &error, &length) != 0) error = errno;
    if (error != 0) return impl.gone("connect", std::strerror(error));
  }
  tune_socket(impl.socket);
  return {};
}

Status SocketStream::adopt(int socket, Session session) {
  impl_->socket = socket;
  impl_->session = std::move(session);
  if (impl_->wake < 0) return impl_->gone("take over a connection", "out of descriptors");
  return {};
}

Status SocketStream::secure(std::shared_ptr<const Identity> identity, Deadline deadline) {
  Impl& impl = *impl_;
  impl.session = Session(std::move(identity), Side::kCaller);
  for (;;) {
    if (!impl.usable()) return impl.gone("shake hands", "the connection is closed");
    const auto want = impl.session.handshake(impl.socket);
    if (!want) return impl.broken(want.error());
    if (*want == Want::kNothing) break;
    GRADTAP_TRY(impl.wait(*want, "shake hands", deadline));
  }
  if (impl.session.has_name(impl.peer)) return {};
  return impl.broken({ErrorCode::kPeerUntrusted,
                      std::string(refusal_text(Refusal::kWrongName)),
                      {},
                      fmt::format("\"{}\"", impl.peer),
                      impl.session.peer_names(),
                      "gradtap ca issue DIR NAME, for the node at that address"});
}

Status SocketStream::read(std::span<std::uint8_t> to, Deadline deadline) {
  Impl& impl = *impl_;
  while (!to.empty()) {
    if (!impl.usable()) return impl.gone("read", "the connection is closed");
    const auto moved = impl.session.read(impl.socket, to);
    if (!moved) return impl.broken(moved.error());
    if (moved->ended) return impl.gone("read", "end of file");
    to = to.subspan(moved->bytes);
    if (moved->want != Want::kNothing) GRADTAP_TRY(impl.wait(moved->want, "read", deadline));
  }
  return {};
}

Status SocketStream::write_frame(FrameType type, ByteSpan header, ByteSpan payload, Deadline deadline) {
  Impl& impl = *impl_;
  if (header.size() > kHeaderBytesMax || payload.size() > kPayloadBytesMax)
    return fail(ErrorCode::kLimitReached, fmt::format("a {} frame is too large", frame_type_name(type)), impl.peer,
                fmt::format("header {} bytes, payload {} bytes", kHeaderBytesMax, kPayloadBytesMax),
                fmt::format("{} and {} bytes", header.size(), payload.size()), "use smaller texts and chunks");
  const std::vector<std::uint8_t> front = frame_front(type, header, payload);
  ByteSpan first = front;
  ByteSpan second = payload;
  while (!first.empty() || !second.empty()) {
    if (!impl.usable()) return impl.gone("write", "the connection is closed");
    const auto moved = impl.session.write(impl.socket, first, second);
    if (!moved) return impl.broken(moved.error());
    const std::size_t of_first = std::min(moved->bytes, first.size());
    first = first.subspan(of_first);
    second = second.subspan(moved->bytes - of_first);
    if (moved->want != Want::kNothing) GRADTAP_TRY(impl.wait(moved->want, "write", deadline));
  }
  return {};
}

Result<Frame> SocketStream::read_frame(Deadline deadline) {
  std::array<std::uint8_t, kFrameHeadBytes> head;
  if (auto read_head = read(head, deadline); !read_head) return std::unexpected<Error>(read_head.error());
  const auto parsed = parse_frame_head(head);
  if (!parsed) {
    close();
    return std::unexpected<Error>(parsed.error());
  }
  Frame frame{parsed->type, std::vector<std::uint8_t>(parsed->header_bytes),
              std::vector<std::uint8_t>(parsed->payload_bytes)};
  GRADTAP_TRY(read(frame.header, deadline));
  GRADTAP_TRY(read(frame.payload, deadline));
  if (auto checked = check_frame(head, frame.header, frame.payload); !checked) {
    close();
    checked.error().where = impl_->peer;
    return std::unexpected<Error>(checked.error());
  }
  return frame;
}

bool SocketStream::stale() {
  if (!open() || impl_->session.holds_bytes()) return true;
  char byte = 0;
  const ssize_t got = ::recv(impl_->socket, &byte, 1, MSG_PEEK | MSG_DONTWAIT);
  return got >= 0 || (errno != EAGAIN && errno != EWOULDBLOCK);
}

bool SocketStream::open() const {
  return impl_->usable();
}

const Identity* SocketStream::identity() const {
  return impl_->session.identity();
}

std::chrono::steady_clock::time_point SocketStream::since() const {
  return impl_->since;
}

void SocketStream::close() {
  impl_->close();
}

void SocketStream::abort() {
  impl_->aborted.store(true);
  // Wakes the thread that waits; nobody else touches the socket.
  const std::uint64_t one = 1;
  (void)!::write(impl_->wake, &one, sizeof one);
}

}  // namespace gradtap::link
