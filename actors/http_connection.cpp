#include "actors/http_connection.h"

#include <algorithm>
#include <cerrno>
#include <cstring>

#include <arpa/inet.h>
#include <netinet/in.h>
#include <poll.h>
#include <sys/socket.h>
#include <unistd.h>

namespace gradtap::actors {

namespace {

using std::chrono::milliseconds;

constexpr milliseconds kStopPoll{200};
constexpr milliseconds kLinger{500};
constexpr std::size_t kLingerBytesMax = std::size_t{1} << 20;
constexpr std::uint64_t kBytesForMoreTime = std::uint64_t{1} << 20;

thread_local HttpConnection* t_connection = nullptr;

std::pair<std::string, int> name_of(int socket, int (*ask)(int, sockaddr*, socklen_t*)) {
  sockaddr_storage place{};
  socklen_t size = sizeof place;
  std::array<char, INET6_ADDRSTRLEN> text{};
  if (ask(socket, reinterpret_cast<sockaddr*>(&place), &size) != 0) return {};
  if (place.ss_family == AF_INET) {
    const auto& v4 = reinterpret_cast<const sockaddr_in&>(place);
    if (::inet_ntop(AF_INET, &v4.sin_addr, text.data(), text.size()) == nullptr) return {};
    return {text.data(), ntohs(v4.sin_port)};
  }
  if (place.ss_family != AF_INET6) return {};
  const auto& v6 = reinterpret_cast<const sockaddr_in6&>(place);
  if (::inet_ntop(AF_INET6, &v6.sin6_addr, text.data(), text.size()) == nullptr) return {};
  return {text.data(), ntohs(v6.sin6_port)};
}

// Whether the socket is ready for `what` before `until`.
bool ready(int socket, short what, std::chrono::steady_clock::time_point until) {
  for (;;) {
    const auto left = std::chrono::ceil<milliseconds>(until - std::chrono::steady_clock::now()).count();
    pollfd wait{socket, what, 0};
    const int got = ::poll(&wait, 1, static_cast<int>(std::clamp<std::int64_t>(left, 0, 3'600'000)));
    if (got > 0) return true;
    if (got == 0 || errno != EINTR) return false;
  }
}

}  // namespace

HttpConnection::HttpConnection(int socket, const HttpConnectionLimits& limits, ConnectionTable& table,
                               HttpConnectionCounters& counters)
    : socket_(socket), limits_(limits), table_(table), counters_(counters) {
  std::tie(address_, port_) = name_of(socket, ::getpeername);
  entry_ = table_.enter(socket, address_, Clock::now());
  t_connection = this;
}

HttpConnection::~HttpConnection() {
  t_connection = nullptr;
  table_.leave(entry_);
  ::shutdown(socket_, SHUT_RDWR);
  ::close(socket_);
}

HttpConnection& HttpConnection::current() {
  return *t_connection;
}

bool HttpConnection::wait_for_request(const std::atomic<socket_t>& listening) {
  if (begin_ < end_) return true;
  for (const auto until = Clock::now() + limits_.idle; Clock::now() < until && listening.load() != INVALID_SOCKET;)
    if (ready(socket_, POLLIN, std::min(until, Clock::now() + kStopPoll))) return true;
  return false;
}

void HttpConnection::begin_request() {
  head_ended_ = false;
  admission = {};
  request_bytes_ = 0;
  deadline_ = Clock::now() + limits_.request;
}

void HttpConnection::head_ends() {
  head_ended_ = true;
  request_bytes_ = 0;
}

void HttpConnection::end_request() {
  memory = {};
  table_.busy(entry_, false, Clock::now());
}

void HttpConnection::linger() {
  ::shutdown(socket_, SHUT_WR);
  const auto until = Clock::now() + kLinger;
  for (std::size_t taken = 0; taken < kLingerBytesMax && ready(socket_, POLLIN, until);) {
    const ssize_t got = ::recv(socket_, buffer_.data(), buffer_.size(), MSG_DONTWAIT);
    if (got == 0 || (got < 0 && errno != EINTR && errno != EAGAIN)) return;
    taken += static_cast<std::size_t>(std::max<ssize_t>(got, 0));
  }
}

bool HttpConnection::is_readable() const {
  return begin_ < end_ || ready(socket_, POLLIN, Clock::now() + limits_.request);
}

bool HttpConnection::is_writable() const {
  pollfd wait{socket_, POLLOUT, 0};
  if (!ready(socket_, POLLOUT, Clock::now() + limits_.request)) return false;
  return ::poll(&wait, 1, 0) > 0 && (wait.revents & (POLLERR | POLLHUP)) == 0;
}

ssize_t HttpConnection::receive(char* bytes, size_t count) {
  for (;;) {
    const auto earned = limits_.request * (head_ended_ ? request_bytes_ / kBytesForMoreTime : 0);
    // The clock counts although there is something to read: whoever sends a byte at a time is late too.
    if (Clock::now() >= deadline_ + earned || !ready(socket_, POLLIN, deadline_ + earned)) {
      counters_.late.fetch_add(1, std::memory_order_relaxed);
      failed_ = true;
      return -1;
    }
    const ssize_t got = ::recv(socket_, bytes, count, MSG_DONTWAIT);
    if (got < 0 && (errno == EINTR || errno == EAGAIN)) continue;
    if (got <= 0) failed_ = true;
    return got;
  }
}

ssize_t HttpConnection::read(char* bytes, size_t count) {
  if (failed_) return -1;
  ssize_t taken = 0;
  if (begin_ == end_ && count >= buffer_.size()) {
    taken = receive(bytes, count);
  } else {
    if (begin_ == end_) {
      const ssize_t got = receive(buffer_.data(), buffer_.size());
      if (got <= 0) return got;
      begin_ = 0;
      end_ = static_cast<std::size_t>(got);
    }
    const std::size_t part = std::min(count, end_ - begin_);
    std::memcpy(bytes, buffer_.data() + begin_, part);
    begin_ += part;
    taken = static_cast<ssize_t>(part);
  }
  if (taken > 0) request_bytes_ += static_cast<std::uint64_t>(taken);
  if (!head_ended_ && request_bytes_ > limits_.head_bytes) {
    counters_.long_heads.fetch_add(1, std::memory_order_relaxed);
    failed_ = true;
    return -1;
  }
  return taken;
}

ssize_t HttpConnection::write(const char* bytes, size_t count) {
  for (;;) {
    if (!is_writable()) return -1;
    const ssize_t put = ::send(socket_, bytes, count, MSG_NOSIGNAL | MSG_DONTWAIT);
    if (put >= 0 || (errno != EINTR && errno != EAGAIN)) return put;
  }
}

void HttpConnection::get_remote_ip_and_port(std::string& ip, int& port) const {
  ip = address_;
  port = port_;
}

void HttpConnection::get_local_ip_and_port(std::string& ip, int& port) const {
  std::tie(ip, port) = name_of(socket_, ::getsockname);
}

}  // namespace gradtap::actors
