// Node links of one process on loopback addresses, and plain sockets that play a peer, well or badly. No Asio here:
// what talks to the link is written another way.
#pragma once

#include <array>
#include <atomic>
#include <chrono>
#include <cstring>
#include <functional>
#include <memory>
#include <numeric>
#include <string>
#include <thread>
#include <utility>
#include <vector>

#include <arpa/inet.h>
#include <doctest/doctest.h>
#include <netinet/in.h>
#include <poll.h>
#include <sys/socket.h>
#include <unistd.h>

#include "common/clock.h"
#include "link/link_frame.h"
#include "link/node_link.h"
#include "schema/link_codec.h"

namespace gradtap::link::testing {

inline constexpr std::uint64_t kForEverMs = 300'000;

inline sockaddr_in ipv4(const std::string& address, std::uint16_t port) {
  sockaddr_in out{};
  out.sin_family = AF_INET;
  out.sin_port = htons(port);
  REQUIRE(::inet_pton(AF_INET, address.c_str(), &out.sin_addr) == 1);
  return out;
}

// A socket that closes itself; reads give up after some seconds, so that a wrong test fails and does not hang.
class Socket {
 public:
  Socket() = default;
  explicit Socket(int fd) : fd_(fd) {
    const timeval patience{20, 0};
    (void)::setsockopt(fd_, SOL_SOCKET, SO_RCVTIMEO, &patience, sizeof patience);
    (void)::setsockopt(fd_, SOL_SOCKET, SO_SNDTIMEO, &patience, sizeof patience);
  }
  Socket(Socket&& other) noexcept : fd_(std::exchange(other.fd_, -1)) {}
  Socket& operator=(Socket&& other) noexcept {
    std::swap(fd_, other.fd_);
    return *this;
  }
  ~Socket() { close(); }

  [[nodiscard]] int fd() const { return fd_; }
  [[nodiscard]] bool open() const { return fd_ >= 0; }
  void close() {
    if (fd_ >= 0) ::close(std::exchange(fd_, -1));
  }
  void shutdown() const { (void)::shutdown(fd_, SHUT_RDWR); }
  bool write(const void* bytes, std::size_t count) const {
    const char* at = static_cast<const char*>(bytes);
    while (count > 0) {
      const ssize_t done = ::send(fd_, at, count, MSG_NOSIGNAL);
      if (done <= 0) return false;
      at += done;
      count -= static_cast<std::size_t>(done);
    }
    return true;
  }
  bool write(const std::vector<std::uint8_t>& bytes) const { return write(bytes.data(), bytes.size()); }
  bool read(void* bytes, std::size_t count) const {
    char* at = static_cast<char*>(bytes);
    while (count > 0) {
      const ssize_t done = ::recv(fd_, at, count, 0);
      if (done <= 0) return false;
      at += done;
      count -= static_cast<std::size_t>(done);
    }
    return true;
  }
  // Nothing comes any more: closed or reset by the other side.
  bool ended() const {
    char bytes[4096];
    for (;;) {
      const ssize_t done = ::recv(fd_, bytes, sizeof bytes, 0);
      if (done > 0) continue;
      return done == 0 || (errno != EAGAIN && errno != EWOULDBLOCK);
    }
  }

  // Frames.
  bool write_frame(FrameType type, const std::vector<std::uint8_t>& header,
                   const std::vector<std::uint8_t>& payload = {}) const {
    return write(frame_front(type, header, payload)) && write(payload);
  }
  Result<Frame> read_frame() const {
    std::array<std::uint8_t, kFrameHeadBytes> head;
    if (!read(head.data(), head.size())) return fail(ErrorCode::kPeerUnreachable, "closed");
    const auto parsed = parse_frame_head(head);
    if (!parsed) return std::unexpected<Error>(parsed.error());
    Frame frame{parsed->type, std::vector<std::uint8_t>(parsed->header_bytes),
                std::vector<std::uint8_t>(parsed->payload_bytes)};
    if (!read(frame.header.data(), frame.header.size()) || !read(frame.payload.data(), frame.payload.size()))
      return fail(ErrorCode::kPeerUnreachable, "cut");
    GRADTAP_TRY(check_frame(head, frame.header, frame.payload));
    return frame;
  }

 private:
  int fd_ = -1;
};

inline Socket dial(const std::string& from, const std::string& to, std::uint16_t port) {
  Socket socket(::socket(AF_INET, SOCK_STREAM | SOCK_CLOEXEC, 0));
  const sockaddr_in local = ipv4(from, 0);
  const sockaddr_in remote = ipv4(to, port);
  REQUIRE(::bind(socket.fd(), reinterpret_cast<const sockaddr*>(&local), sizeof local) == 0);
  if (::connect(socket.fd(), reinterpret_cast<const sockaddr*>(&remote), sizeof remote) != 0) return {};
  return socket;
}

class Listener {
 public:
  explicit Listener(const std::string& address = "127.0.0.1")
      : socket_(::socket(AF_INET, SOCK_STREAM | SOCK_CLOEXEC, 0)) {
    const sockaddr_in local = ipv4(address, 0);
    REQUIRE(::bind(socket_.fd(), reinterpret_cast<const sockaddr*>(&local), sizeof local) == 0);
    REQUIRE(::listen(socket_.fd(), 64) == 0);
    sockaddr_in bound{};
    socklen_t length = sizeof bound;
    REQUIRE(::getsockname(socket_.fd(), reinterpret_cast<sockaddr*>(&bound), &length) == 0);
    port_ = ntohs(bound.sin_port);
  }
  [[nodiscard]] std::uint16_t port() const { return port_; }
  // Not open once the listener was stopped.
  Socket accept() const {
    const int fd = ::accept4(socket_.fd(), nullptr, nullptr, SOCK_CLOEXEC);
    return fd < 0 ? Socket() : Socket(fd);
  }
  void stop() const { socket_.shutdown(); }

 private:
  Socket socket_;
  std::uint16_t port_ = 0;
};

// A port that was free a moment ago.
inline std::uint16_t free_port(const std::string& address) {
  return Listener(address).port();
}

inline std::vector<std::uint8_t> pattern(std::size_t count, std::uint8_t salt = 0) {
  std::vector<std::uint8_t> bytes(count);
  for (std::size_t i = 0; i < count; ++i) bytes[i] = static_cast<std::uint8_t>(i * 131 + (i >> 8) * 7 + salt);
  return bytes;
}

inline Sha256 cluster() {
  Sha256 digest{};
  digest[0] = 0xC1;
  return digest;
}

// Three members on addresses of their own; a link is started for the ones that a test asks for.
struct LinkRig {
  static constexpr int kMembers = 3;
  static std::string name(int i) { return "tap" + std::to_string(i); }
  static std::string address(int i) { return "127.0.0." + std::to_string(i + 1); }

  LinkRig() {
    for (int i = 0; i < kMembers; ++i) members.push_back({name(i), address(i), free_port(address(i))});
  }

  NodeLinkOptions options(int i, BulkHandler handler) {
    NodeLinkOptions out;
    out.self = name(i);
    out.members = members;
    out.cluster = cluster();
    out.handler = std::move(handler);
    out.metrics = &metrics[static_cast<std::size_t>(i)];
    out.events = &events[static_cast<std::size_t>(i)];
    return out;
  }

  std::uint64_t counted(int i, const std::string& counter) {
    return metrics[static_cast<std::size_t>(i)].counter("link." + counter).read();
  }
  // Counters of another thread: waits until it has counted that far.
  bool counts_to(int i, const std::string& counter, std::uint64_t value) {
    for (int tries = 0; tries < 20000 && counted(i, counter) < value; ++tries)
      std::this_thread::sleep_for(std::chrono::milliseconds(1));
    return counted(i, counter) >= value;
  }

  // A plain socket that has greeted link `to` as member `from`.
  Socket greeted(int from, int to, schema::LinkKind kind = schema::LinkKind::kBulk) {
    Socket socket = dial(address(from), address(to), members[static_cast<std::size_t>(to)].port);
    REQUIRE(socket.open());
    REQUIRE(socket.write_frame(FrameType::kHello,
                               schema::encode(schema::LinkHello{name(from), name(to), cluster(), kind})));
    const auto welcome = socket.read_frame();
    REQUIRE(welcome);
    REQUIRE(welcome->type == FrameType::kWelcome);
    return socket;
  }

  std::vector<LinkMember> members;
  SystemClock clock;
  std::array<MetricsRegistry, kMembers> metrics;
  std::array<EventRing, kMembers> events{EventRing(64, clock), EventRing(64, clock), EventRing(64, clock)};
};

inline std::unique_ptr<NodeLink> started(NodeLinkOptions options) {
  auto link = NodeLink::start(std::move(options));
  if (!link) FAIL(link.error().text());
  return std::move(*link);
}

inline BulkHandler answering(std::vector<std::uint8_t> bytes, std::string meta = {}, std::size_t chunk = 1000) {
  return [=](const std::string&, BulkRequest&&) -> Result<std::unique_ptr<ChunkSource>> {
    return std::make_unique<MemorySource>(bytes, meta, chunk);
  };
}

inline BulkHandler refusing() {
  return [](const std::string&, BulkRequest&&) -> Result<std::unique_ptr<ChunkSource>> {
    return fail(ErrorCode::kUnsupported, "not asked");
  };
}

}  // namespace gradtap::link::testing
