// The bounds of one connection, over a pair of sockets: what is there too late, too long, or too much.
#include "actors/http_connection.h"

#include <array>
#include <thread>

#include <doctest/doctest.h>
#include <sys/socket.h>
#include <unistd.h>

namespace gradtap::actors {
namespace {

using namespace std::chrono_literals;
using Clock = std::chrono::steady_clock;

struct Pair {
  std::array<int, 2> fds{};
  ConnectionTable table;
  HttpConnectionCounters counters;
  std::unique_ptr<HttpConnection> connection;
  std::atomic<socket_t> listening{1};

  explicit Pair(const HttpConnectionLimits& limits) {
    REQUIRE(::socketpair(AF_UNIX, SOCK_STREAM, 0, fds.data()) == 0);
    connection = std::make_unique<HttpConnection>(fds[0], limits, table, counters);
    connection->begin_request();
  }
  ~Pair() {
    connection.reset();
    if (fds[1] >= 0) ::close(fds[1]);
  }
  void send(const std::string& text) const { (void)::send(fds[1], text.data(), text.size(), MSG_NOSIGNAL); }
  // Sends and reads so many bytes, part by part.
  bool pass(std::size_t bytes) {
    const std::string part(32'768, 'x');
    for (std::size_t left = bytes; left > 0;) {
      const std::size_t now = std::min(left, part.size());
      send(part.substr(0, now));
      for (std::size_t taken = 0; taken < now;) {
        const ssize_t got = read(now - taken);
        if (got <= 0) return false;
        taken += static_cast<std::size_t>(got);
      }
      left -= now;
    }
    return true;
  }
  ssize_t read(std::size_t most = 64) {
    std::string buffer(most, 0);
    return connection->read(buffer.data(), buffer.size());
  }
};

constexpr std::size_t kMiB = std::size_t{1} << 20;

}  // namespace

TEST_CASE("what comes after the deadline is not read, although it is there") {
  Pair pair({0ms, 5000ms, 64u << 10});
  pair.send("x");
  CHECK(pair.read() == -1);
  CHECK(pair.counters.late == 1);
  CHECK(pair.connection->closing());
}

TEST_CASE("a head that is too long ends the connection for good") {
  Pair pair({5000ms, 5000ms, 4});
  pair.send("1234");
  CHECK(pair.read(4) == 4);
  pair.send("56");
  CHECK(pair.read() == -1);
  CHECK(pair.counters.long_heads == 1);
  CHECK(pair.connection->closing());
  pair.connection->begin_request();
  pair.send("7");
  CHECK(pair.read(1) == -1);
}

TEST_CASE("a body earns time by its own bytes; a head earns none") {
  const HttpConnectionLimits limits{300ms, 5000ms, 8 * kMiB};
  {
    Pair head(limits);
    REQUIRE(head.pass(2 * kMiB));
    std::this_thread::sleep_for(320ms);
    head.send("x");
    CHECK(head.read() == -1);
  }
  for (const bool enough : {false, true}) {
    Pair body(limits);
    REQUIRE(body.pass(kMiB - 1));
    body.connection->head_ends();
    REQUIRE(body.pass(enough ? kMiB : kMiB / 2));
    std::this_thread::sleep_for(320ms);
    body.send("x");
    CHECK(body.read() == (enough ? 1 : -1));
    CHECK(body.counters.late == (enough ? 0 : 1));
  }
}

TEST_CASE("another request begins as a stranger's, with a head to come") {
  Pair pair({5000ms, 5000ms, 64u << 10});
  pair.connection->head_ends();
  pair.connection->admission = {"somebody", "digest"};
  pair.connection->begin_request();
  CHECK_FALSE(pair.connection->head_ended());
  CHECK(pair.connection->admission.caller.empty());
  CHECK_FALSE(pair.connection->admission.body_sha256);
}

TEST_CASE("between requests: the peer's next byte, its silence, its end, and a server that stops") {
  Pair pair({5000ms, 100ms, 64u << 10});
  auto begun = Clock::now();
  CHECK_FALSE(pair.connection->wait_for_request(pair.listening));
  CHECK(Clock::now() - begun >= 100ms);
  CHECK(Clock::now() - begun < 3s);
  pair.send("x");
  CHECK(pair.connection->wait_for_request(pair.listening));
  CHECK(pair.read() == 1);
  ::shutdown(pair.fds[1], SHUT_WR);
  CHECK(pair.read() == 0);
  CHECK(pair.connection->closing());
  Pair stopped({5000ms, 5000ms, 64u << 10});
  stopped.listening = INVALID_SOCKET;
  begun = Clock::now();
  CHECK_FALSE(stopped.connection->wait_for_request(stopped.listening));
  CHECK(Clock::now() - begun < 3s);
}

TEST_CASE("whose answer was given may give way again") {
  Pair pair({5000ms, 5000ms, 64u << 10});
  pair.connection->busy();
  CHECK_FALSE(pair.table.drop_one(Clock::now() + 1h, 100ms));
  pair.connection->end_request();
  CHECK_FALSE(pair.table.drop_one(Clock::now(), 10s));
  CHECK(pair.table.drop_one(Clock::now() + 1h, 100ms));
}

TEST_CASE("what a refused peer still sends is taken for a moment, and not for ever") {
  Pair pair({5000ms, 5000ms, 64u << 10});
  std::atomic<std::size_t> sent{0};
  std::thread flood([&] {
    const std::string part(65'536, 'x');
    for (ssize_t got = 0; (got = ::send(pair.fds[1], part.data(), part.size(), MSG_NOSIGNAL)) > 0;)
      sent += static_cast<std::size_t>(got);
  });
  pair.connection->linger();
  pair.connection.reset();
  flood.join();
  CHECK(sent >= kMiB);
  CHECK(sent < 3 * kMiB);  // and what the socket holds
}

}  // namespace gradtap::actors
