#include "actors/http_server.h"

#include <atomic>
#include <chrono>
#include <condition_variable>
#include <fstream>
#include <iterator>
#include <map>
#include <mutex>
#include <optional>
#include <thread>

#include <arpa/inet.h>
#include <doctest/doctest.h>
#include <fmt/format.h>
#include <netinet/in.h>
#include <poll.h>
#include <sys/socket.h>
#include <unistd.h>

#include "common/random.h"

namespace gradtap::actors {
namespace {

using namespace std::chrono_literals;
using Seconds = std::chrono::duration<double>;

// A client of plain sockets: the server's own library is not the judge.
class Client {
 public:
  explicit Client(std::uint16_t port) : fd_(::socket(AF_INET, SOCK_STREAM, 0)) {
    sockaddr_in address{};
    address.sin_family = AF_INET;
    address.sin_port = htons(port);
    address.sin_addr.s_addr = htonl(INADDR_LOOPBACK);
    connected = ::connect(fd_, reinterpret_cast<const sockaddr*>(&address), sizeof address) == 0;
  }
  ~Client() { ::close(fd_); }
  Client(const Client&) = delete;
  Client& operator=(const Client&) = delete;

  void send(const std::string& text) const { (void)::send(fd_, text.data(), text.size(), MSG_NOSIGNAL); }
  // One answer with a Content-Length; empty when the server closed or said nothing in time.
  std::string answer(std::chrono::milliseconds most = 10s) {
    for (;;) {
      const std::size_t head = pending_.find("\r\n\r\n");
      if (head != std::string::npos) {
        const std::size_t at = pending_.find("Content-Length: ");
        const std::size_t length = at < head ? std::stoul(pending_.substr(at + 16)) : 0;
        if (pending_.size() >= head + 4 + length) {
          std::string whole = pending_.substr(0, head + 4 + length);
          pending_.erase(0, whole.size());
          return whole;
        }
      }
      if (!more(most)) return {};
    }
  }
  // Everything until the server closes.
  std::string rest(std::chrono::milliseconds most = 10s) {
    while (more(most)) continue;
    return std::exchange(pending_, {});
  }
  [[nodiscard]] bool closed() const { return closed_; }
  bool connected = false;

 private:
  bool more(std::chrono::milliseconds most) {
    pollfd wait{fd_, POLLIN, 0};
    if (::poll(&wait, 1, static_cast<int>(most.count())) <= 0) return false;
    char buffer[65536];
    const ssize_t count = ::recv(fd_, buffer, sizeof buffer, 0);
    if (count <= 0) {
      closed_ = true;
      return false;
    }
    pending_.append(buffer, static_cast<std::size_t>(count));
    return true;
  }
  int fd_;
  std::string pending_;
  bool closed_ = false;
};

std::string request(const std::string& method, const std::string& path, const std::string& body = {},
                    const std::string& headers = {}) {
  return fmt::format("{} {} HTTP/1.1\r\nHost: x\r\n{}Content-Length: {}\r\n\r\n{}", method, path, headers, body.size(),
                     body);
}

struct Server {
  std::mutex mutex;
  std::condition_variable change;
  bool hold = false;
  std::atomic<int> running{0}, most_running{0};
  std::vector<HttpRequest> seen;
  std::unique_ptr<HttpServer> server;

  explicit Server(HttpServerOptions options = {}, std::function<Result<Admission>(const RequestHead&)> admit = {}) {
    HttpHandlers handlers;
    handlers.admit = std::move(admit);
    handlers.answer = [this](HttpRequest&& got) {
      const int now = ++running;
      std::unique_lock lock(mutex);
      most_running = std::max(most_running.load(), now);
      change.notify_all();
      change.wait(lock, [this] { return !hold; });
      --running;
      if (got.path == "/throw") throw std::runtime_error("handler");
      seen.push_back(got);
      return HttpAnswer{got.path == "/teapot" ? 418 : 200, fmt::format("{{\"bytes\": {}}}", got.body.size())};
    };
    handlers.stream = [](const HttpRequest& got) -> Result<std::function<bool(const ByteSink&)>> {
      if (got.query.contains("missing")) return fail(ErrorCode::kStepUnavailable, "no such step");
      const bool whole = !got.query.contains("cut");
      return [whole](const ByteSink& sink) {
        const std::string part(1000, 'x');
        for (int i = 0; i < 5; ++i)
          if (!sink(part.data(), part.size())) return false;
        return whole;
      };
    };
    server = std::make_unique<HttpServer>(std::move(options), std::move(handlers));
    const Status started = server->start();
    if (!started) FAIL(started.error().text());
  }
  ~Server() { release(); }
  void block() {
    const std::lock_guard lock(mutex);
    hold = true;
  }
  void release() {
    const std::lock_guard lock(mutex);
    hold = false;
    change.notify_all();
  }
  void wait_running(int count) {
    std::unique_lock lock(mutex);
    REQUIRE(change.wait_for(lock, 20s, [&] { return running >= count; }));
  }
  [[nodiscard]] std::uint16_t port() const { return server->port(); }
};

bool starts_with(const std::string& text, std::string_view with) {
  return text.rfind(with, 0) == 0;
}

}  // namespace

TEST_CASE("requests reach the handler as they came, on one connection") {
  Server server;
  Client client(server.port());
  REQUIRE(client.connected);
  client.send(request("POST", "/v1/jobs/x/messages?a=1&b=two", "hello", "X-Gradtap-Session: 0123\r\n"));
  const std::string first = client.answer();
  CHECK(starts_with(first, "HTTP/1.1 200"));
  CHECK(first.find("{\"bytes\": 5}") != std::string::npos);
  CHECK(first.find("application/json") != std::string::npos);
  client.send(request("PUT", "/chunk", std::string(100'000, 'z')));
  CHECK(client.answer().find("{\"bytes\": 100000}") != std::string::npos);
  client.send(request("GET", "/teapot"));
  CHECK(starts_with(client.answer(), "HTTP/1.1 418"));
  CHECK_FALSE(client.closed());
  REQUIRE(server.seen.size() == 3);
  CHECK(server.seen[0].method == "POST");
  CHECK(server.seen[0].path == "/v1/jobs/x/messages");
  CHECK(server.seen[0].query == std::map<std::string, std::string>{{"a", "1"}, {"b", "two"}});
  CHECK(server.seen[0].session == "0123");
  CHECK(server.seen[0].body == "hello");
  CHECK(server.server->requests() == 3);
}

TEST_CASE("DELETE, with a length and without one, on one connection") {
  Server server;
  Client client(server.port());
  client.send("DELETE /v1/jobs/x/points/1/2/lease/a HTTP/1.1\r\nHost: x\r\n\r\n");
  CHECK(starts_with(client.answer(2s), "HTTP/1.1 200"));
  client.send(request("DELETE", "/v1/jobs/x/points/1/2/lease/b"));
  CHECK(starts_with(client.answer(2s), "HTTP/1.1 200"));
  client.send(request("DELETE", "/c", "hello"));
  CHECK(client.answer(2s).find("{\"bytes\": 5}") != std::string::npos);
  client.send(request("GET", "/teapot"));
  CHECK(starts_with(client.answer(2s), "HTTP/1.1 418"));
  REQUIRE(server.seen.size() == 4);
  CHECK(server.seen[0].method == "DELETE");
  CHECK(server.seen[1].path == "/v1/jobs/x/points/1/2/lease/b");
  CHECK(server.server->requests() == 4);
}

TEST_CASE("a body for which no memory is left is refused unread, and taken once there is some") {
  HttpServerOptions options;
  options.memory = std::make_shared<MemoryLedger>(10'000);
  const auto memory = options.memory;
  Server server(options);
  Client client(server.port());
  const std::string body(2000, 'x');
  client.send(request("PUT", "/chunk", body));  // in three copies
  CHECK(starts_with(client.answer(2s), "HTTP/1.1 200"));
  CHECK(memory->usage(MemoryAccount::kRequests).peak_bytes == 6000);
  // It is given back after the answer has gone.
  for (int i = 0; i < 5000 && memory->total().in_use_bytes > 0; ++i) std::this_thread::sleep_for(1ms);
  REQUIRE(memory->take(MemoryAccount::kShards, 4001));
  client.send(fmt::format("PUT /chunk HTTP/1.1\r\nHost: x\r\nContent-Length: {}\r\n\r\n", body.size()));
  const std::string refused = client.answer(2s);
  CHECK(starts_with(refused, "HTTP/1.1 503"));
  CHECK(refused.find("MEMORY_EXHAUSTED") != std::string::npos);
  CHECK(memory->usage(MemoryAccount::kRequests).refused == 1);
  memory->give_back(MemoryAccount::kShards, 4001);
  Client other(server.port());
  other.send(request("PUT", "/chunk", body));
  CHECK(starts_with(other.answer(2s), "HTTP/1.1 200"));
  CHECK(server.seen.size() == 2);
}

TEST_CASE("a body over the limit is refused before it is read, and the server lives on") {
  HttpServerOptions options;
  options.body_bytes_max = 10'000;
  Server server(options);
  Client client(server.port());
  client.send("PUT /chunk HTTP/1.1\r\nHost: x\r\nContent-Length: 1000000000000\r\n\r\n");
  const std::string answer = client.answer();
  CHECK(starts_with(answer, "HTTP/1.1 413"));
  CHECK(answer.find("REQUEST_TOO_LARGE") != std::string::npos);
  CHECK(server.server->refused_bodies() == 1);
  Client chunked(server.port());
  chunked.send("PUT /chunk HTTP/1.1\r\nHost: x\r\nTransfer-Encoding: chunked\r\n\r\n");
  for (int i = 0; i < 4; ++i) chunked.send("1388\r\n" + std::string(5000, 'y') + "\r\n");
  chunked.send("0\r\n\r\n");
  CHECK(starts_with(chunked.answer(), "HTTP/1.1 411"));
  // A length beside it does not count: the library would gather the chunks.
  Client both(server.port());
  both.send("PUT /chunk HTTP/1.1\r\nContent-Length: 3\r\nTransfer-Encoding: chunked\r\n\r\n1388\r\n");
  CHECK(starts_with(both.answer(), "HTTP/1.1 411"));
  // Up to the end of the connection: as much as the client likes to send.
  for (const char* const method : {"POST", "PUT"}) {
    Client endless(server.port());
    endless.send(fmt::format("{} /chunk HTTP/1.1\r\nHost: x\r\n\r\n", method) + std::string(20'000, 'y'));
    CHECK(starts_with(endless.answer(), "HTTP/1.1 411"));
  }
  Client other(server.port());
  other.send(request("PUT", "/chunk", std::string(10'000, 'z')));
  CHECK(starts_with(other.answer(), "HTTP/1.1 200"));
  CHECK(server.seen.size() == 1);
}

TEST_CASE("no more handlers run at once than connections are allowed") {
  HttpServerOptions options;
  options.connections_max = 3;
  Server server(options);
  server.block();
  std::vector<std::unique_ptr<Client>> clients;
  for (int i = 0; i < 8; ++i) {
    clients.push_back(std::make_unique<Client>(server.port()));
    clients.back()->send(request("GET", "/slow", {}, "Connection: close\r\n"));
  }
  server.wait_running(3);
  std::this_thread::sleep_for(50ms);
  CHECK(server.running == 3);
  server.release();
  for (auto& client : clients) CHECK(starts_with(client->answer(20s), "HTTP/1.1 200"));
  CHECK(server.most_running == 3);
  CHECK(server.server->waits_for_thread() > 0);
  CHECK(server.server->requests() == 8);
}

TEST_CASE("a client that sends too slowly loses its connection, not the server's thread") {
  HttpServerOptions options;
  options.connections_max = 1;
  options.request_timeout_ms = 200;
  Server server(options);
  Client slow(server.port());
  slow.send("POST /never HTTP/1.1\r\nHost: x\r\nContent-Length: 100\r\n\r\nabc");
  CHECK_FALSE(starts_with(slow.rest(20s), "HTTP/1.1 200"));
  CHECK(slow.closed());
  Client next(server.port());
  next.send(request("GET", "/next"));
  CHECK(starts_with(next.answer(20s), "HTTP/1.1 200"));
  CHECK(server.seen.size() == 1);
}

TEST_CASE("after a head that is none nothing on that connection is taken for a request") {
  Server server;
  Client client(server.port());
  client.send("this is no head\r\n\r\nGET /hidden HTTP/1.1\r\nHost: x\r\n\r\n");
  const std::string all = client.rest();
  CHECK(starts_with(all, "HTTP/1.1 400"));
  CHECK(all.find("HTTP/1.1 ", 10) == std::string::npos);
  CHECK(client.closed());
  CHECK(server.seen.empty());
}

TEST_CASE("who was refused gives way before who was admitted, although it has waited less") {
  HttpServerOptions options;
  options.connections_max = 2;
  Server server(options, [](const RequestHead& head) -> Result<Admission> {
    if (head.session == "good") return Admission{};
    return fail(ErrorCode::kUnauthorized, "no");
  });
  const std::string good = request("GET", "/x", {}, "X-Gradtap-Session: good\r\n");
  Client admitted(server.port());
  admitted.send(good);
  CHECK(starts_with(admitted.answer(), "HTTP/1.1 200"));
  Client refused(server.port());
  refused.send(request("GET", "/x"));
  CHECK(starts_with(refused.answer(), "HTTP/1.1 401"));
  Client third(server.port());
  third.send(good);
  CHECK(starts_with(third.answer(), "HTTP/1.1 200"));
  admitted.send(good);
  CHECK(starts_with(admitted.answer(), "HTTP/1.1 200"));
  CHECK(refused.rest(2s).empty());
  CHECK(refused.closed());
}

TEST_CASE("who waits for its answer does not give way, whatever the request was") {
  for (const char* const path : {"/slow", "/v1/jobs/j/state"}) {
    CAPTURE(path);
    std::atomic<bool> begun{false}, go{false};
    const auto work = [&] {
      begun = true;
      while (!go) std::this_thread::sleep_for(1ms);
    };
    HttpHandlers handlers;
    handlers.answer = [&](HttpRequest&& got) {
      if (got.path == "/slow") work();
      return HttpAnswer{};
    };
    handlers.stream = [&](const HttpRequest&) -> Result<std::function<bool(const ByteSink&)>> {
      work();
      return [](const ByteSink& sink) { return sink("bytes", 5); };
    };
    HttpServerOptions options;
    options.connections_max = 1;
    HttpServer server(options, std::move(handlers));
    REQUIRE(server.start());
    Client patient(server.port());
    patient.send(request("GET", path, {}, "Connection: close\r\n"));
    while (!begun) std::this_thread::sleep_for(1ms);
    Client next(server.port());
    next.send(request("GET", "/next"));
    std::this_thread::sleep_for(250ms);  // more than the grace
    CHECK(server.dropped() == 0);
    go = true;
    CHECK(starts_with(patient.rest(), "HTTP/1.1 200"));
    CHECK(starts_with(next.answer(), "HTTP/1.1 200"));
  }
}

TEST_CASE("garbage on the socket ends that connection only") {
  HttpServerOptions options;
  options.request_timeout_ms = 200;
  Server server(options);
  SeededRandom random(11);
  for (int i = 0; i < 40; ++i) {
    Client client(server.port());
    std::string bytes;
    if (i % 4 == 0)
      bytes = "POST /x HTTP/1.1\r\nContent-Length: " + std::string(i % 8 == 0 ? "-5" : "99x") + "\r\n\r\n";
    for (std::uint64_t n = random.below(3000); n > 0; --n) bytes.push_back(static_cast<char>(random.next()));
    if (i % 3 == 0) bytes += "\r\n\r\n";
    client.send(bytes);
  }
  Client huge(server.port());
  std::string long_line = "GET /";
  long_line.append(200'000, 'a');
  long_line += " HTTP/1.1\r\nHost: x\r\n\r\n";
  huge.send(long_line);
  CHECK_FALSE(starts_with(huge.answer(), "HTTP/1.1 200"));
  Client client(server.port());
  client.send(request("GET", "/fine"));
  CHECK(starts_with(client.answer(20s), "HTTP/1.1 200"));
}

TEST_CASE("a handler that throws is a 500") {
  Server server;
  Client client(server.port());
  client.send(request("GET", "/throw"));
  CHECK(starts_with(client.answer(), "HTTP/1.1 500"));
  client.send(request("GET", "/fine"));
  CHECK(starts_with(client.answer(), "HTTP/1.1 200"));
}

TEST_CASE("a stream is whole, refused, or visibly cut") {
  Server server;
  Client whole(server.port());
  whole.send(request("GET", "/v1/jobs/j/state?step=1", {}, "Connection: close\r\n"));
  const std::string all = whole.rest();
  CHECK(starts_with(all, "HTTP/1.1 200"));
  CHECK(std::count(all.begin(), all.end(), 'x') == 5000);
  CHECK(all.size() > 5);
  CHECK(all.substr(all.size() - 5) == "0\r\n\r\n");  // the end of a chunked body
  Client cut(server.port());
  cut.send(request("GET", "/v1/jobs/j/state?cut=1", {}, "Connection: close\r\n"));
  const std::string part = cut.rest();
  CHECK(part.find("0\r\n\r\n") == std::string::npos);
  Client missing(server.port());
  missing.send(request("GET", "/v1/jobs/j/state?missing=1"));
  const std::string refused = missing.answer();
  CHECK(starts_with(refused, "HTTP/1.1 404"));
  CHECK(refused.find("STEP_UNAVAILABLE") != std::string::npos);
}

TEST_CASE("a port in use is an error") {
  Server server;
  HttpServerOptions options;
  options.port = server.port();
  HttpServer second(options, {});
  const Status started = second.start();
  REQUIRE(!started);
  CHECK(started.error().code == ErrorCode::kPortOpen);
}

TEST_CASE("stop returns while connections are open") {
  HttpServerOptions options;
  options.request_timeout_ms = 500;
  auto server = std::make_unique<Server>(options);
  Client idle(server->port());
  Client half(server->port());
  half.send("POST /x HTTP/1.1\r\nContent-Length: 50\r\n\r\nab");
  Client kept(server->port());
  kept.send(request("GET", "/fine"));
  CHECK(starts_with(kept.answer(), "HTTP/1.1 200"));
  const auto begin = std::chrono::steady_clock::now();
  server->server->stop();
  CHECK(Seconds(std::chrono::steady_clock::now() - begin) < 12s);
  server->server->stop();  // again: nothing
  Client late(server->port());
  late.send(request("GET", "/fine"));
  CHECK(late.answer(200ms).empty());
}

// What a header of an answer says; empty without it.
static std::string header_of(const std::string& answer, const std::string& name) {
  const std::size_t at = answer.find("\r\n" + name + ": ");
  if (at == std::string::npos || at > answer.find("\r\n\r\n")) return {};
  const std::size_t begin = at + name.size() + 4;
  return answer.substr(begin, answer.find("\r\n", begin) - begin);
}

TEST_CASE("the live page is served as it stands in its folder, with headers that let it speak to its node only") {
  Server server;
  Client client(server.port());
  const std::map<std::string, std::pair<std::string, std::string>> files = {
      {"/", {"index.html", "text/html; charset=utf-8"}},
      {"/page.css", {"page.css", "text/css; charset=utf-8"}},
      {"/page.js", {"page.js", "text/javascript; charset=utf-8"}},
      {"/words.js", {"words.js", "text/javascript; charset=utf-8"}},
      {"/judge.js", {"judge.js", "text/javascript; charset=utf-8"}},
      {"/charts.js", {"charts.js", "text/javascript; charset=utf-8"}},
      {"/reasons.js", {"reasons.js", "text/javascript; charset=utf-8"}},
      {"/icon.svg", {"icon.svg", "image/svg+xml"}}};
  for (const auto& [path, file] : files) {
    CAPTURE(path);
    client.send(request("GET", path));
    const std::string answer = client.answer();
    REQUIRE(answer.starts_with("HTTP/1.1 200 "));
    CHECK(header_of(answer, "Content-Type") == file.second);
    CHECK(header_of(answer, "X-Content-Type-Options") == "nosniff");
    CHECK(header_of(answer, "Cache-Control") == "no-store");
    CHECK(header_of(answer, "Referrer-Policy") == "no-referrer");
    const std::string policy = header_of(answer, "Content-Security-Policy");
    CHECK(policy.starts_with("default-src 'none'; "));
    for (const char* const loose : {"unsafe", "*", "http", "data:"}) CHECK(policy.find(loose) == std::string::npos);
    std::ifstream stored(std::string(GRADTAP_SOURCE_DIR) + "/actors/page/" + file.first, std::ios::binary);
    const std::string bytes{std::istreambuf_iterator<char>(stored), std::istreambuf_iterator<char>()};
    CHECK(bytes.size() > 100);
    CHECK(answer.substr(answer.find("\r\n\r\n") + 4) == bytes);
  }
  CHECK(server.seen.empty());  // no actor is asked for it
  client.send(request("POST", "/", "x"));
  CHECK(client.answer().find("text/html") == std::string::npos);
}

TEST_CASE("who is not admitted is answered before the body, and is not heard again on that connection") {
  Server server({}, [](const RequestHead& head) -> Result<Admission> {
    if (head.authorization == "good") return Admission{"somebody", std::string(64, 'd')};
    return fail(ErrorCode::kUnauthorized, "no", std::string(head.peer));
  });
  Client stranger(server.port());
  // The body is announced and never comes; a second request hides where it would be.
  stranger.send("POST /a HTTP/1.1\r\nHost: x\r\nContent-Length: 100000\r\n\r\nGET /hidden HTTP/1.1\r\nHost: x\r\n\r\n");
  const std::string refused = stranger.rest();
  CHECK(starts_with(refused, "HTTP/1.1 401"));
  CHECK(refused.find("UNAUTHORIZED") != std::string::npos);
  CHECK(refused.find("WWW-Authenticate: GT1, Bearer") != std::string::npos);
  CHECK(refused.find("127.0.0.1") != std::string::npos);
  CHECK(refused.find("HTTP/1.1", 10) == std::string::npos);
  CHECK(stranger.closed());
  // Without a body the connection may be used again.
  Client asker(server.port());
  asker.send(request("GET", "/a"));
  CHECK(starts_with(asker.answer(), "HTTP/1.1 401"));
  asker.send(request("GET", "/b", {}, "Authorization: good\r\n"));
  CHECK(starts_with(asker.answer(), "HTTP/1.1 200"));
  REQUIRE(server.seen.size() == 1);
  CHECK(server.seen[0].path == "/b");
  CHECK(server.seen[0].caller == "somebody");
}

TEST_CASE("what a head says reaches the judge as it was written") {
  std::string seen;
  Server server({}, [&seen](const RequestHead& head) -> Result<Admission> {
    seen = fmt::format("{} {} {} {} {} {} {} {}", head.method, head.path, head.target, head.session, head.first_seq,
                       head.body_sha256, head.authorization, head.proxied);
    return Admission{};
  });
  Client client(server.port());
  client.send(request("PUT", "/a%2Fb?x=%31&y", "body",
                      "X-Gradtap-Session: s\r\nX-Gradtap-Seq: 7\r\nX-Gradtap-Content-SHA256: d\r\n"
                      "authorization: GT1 k:0\r\nVia: 1.1 x\r\n"));
  CHECK(starts_with(client.answer(), "HTTP/1.1 200"));
  CHECK(seen == "PUT /a/b /a%2Fb?x=%31&y s 7 d GT1 k:0 true");
}

TEST_CASE("whoever asks for somebody else says so in one of three headers") {
  std::vector<bool> proxied;
  Server server({}, [&proxied](const RequestHead& head) -> Result<Admission> {
    proxied.push_back(head.proxied);
    return Admission{};
  });
  Client client(server.port());
  for (const char* const header :
       {"", "X-Forwarded-For: 1.2.3.4\r\n", "forwarded: for=1.2.3.4\r\n", "Via: 1.1 x\r\n"}) {
    client.send(request("GET", "/x", {}, header));
    CHECK(starts_with(client.answer(), "HTTP/1.1 200"));
  }
  CHECK(proxied == std::vector<bool>{false, true, true, true});
}

TEST_CASE("an admission is that of one request, and its body is judged before a handler sees it") {
  std::vector<std::string> judged;
  HttpHandlers handlers;
  handlers.admit = [](const RequestHead& head) -> Result<Admission> {
    return Admission{std::string(head.session), {}};
  };
  handlers.check_body = [&judged](const Admission& admission, std::string_view body) -> Status {
    judged.push_back(fmt::format("{}:{}", admission.caller, body));
    if (body == "forged") return fail(ErrorCode::kForbidden, "not what was signed");
    return {};
  };
  std::vector<std::string> answered;
  handlers.answer = [&answered](HttpRequest&& got) {
    answered.push_back(got.caller + ":" + got.body);
    return HttpAnswer{};
  };
  HttpServer server({}, std::move(handlers));
  REQUIRE(server.start());
  Client client(server.port());
  client.send(request("POST", "/x", "one", "X-Gradtap-Session: a\r\n"));
  CHECK(starts_with(client.answer(), "HTTP/1.1 200"));
  client.send(request("POST", "/x", "forged", "X-Gradtap-Session: b\r\n"));
  CHECK(starts_with(client.answer(), "HTTP/1.1 403"));
  client.send(request("POST", "/x", "two"));
  CHECK(starts_with(client.answer(), "HTTP/1.1 200"));
  CHECK(judged == std::vector<std::string>{"a:one", "b:forged", ":two"});
  CHECK(answered == std::vector<std::string>{"a:one", ":two"});
}

TEST_CASE("a body earns time by what has come of it; a head and a trickle earn none") {
  HttpServerOptions options;
  options.request_timeout_ms = 400;
  options.body_bytes_max = 8u << 20;
  Server server(options);
  // 3 MiB in 5 parts, 200 ms apart: a second in all, but never behind what it earned.
  Client steady(server.port());
  const std::string part((3u << 20) / 5, 'b');
  steady.send(fmt::format("PUT /x HTTP/1.1\r\nContent-Length: {}\r\n\r\n", part.size() * 5));
  for (int i = 0; i < 5; ++i) {
    steady.send(part);
    std::this_thread::sleep_for(i < 4 ? 200ms : 0ms);
  }
  CHECK(starts_with(steady.answer(), "HTTP/1.1 200"));
  CHECK(server.server->late() == 0);
  // The same second for a few bytes is too long.
  Client trickle(server.port());
  trickle.send("PUT /x HTTP/1.1\r\nContent-Length: 50\r\n\r\n");
  const auto begin = std::chrono::steady_clock::now();
  for (int i = 0; i < 40 && !trickle.closed(); ++i) {
    trickle.send("b");
    (void)trickle.rest(50ms);
  }
  CHECK(Seconds(std::chrono::steady_clock::now() - begin) < 1.5s);
  CHECK(server.server->late() == 1);
}

TEST_CASE("time and bytes are counted anew for each request of a connection") {
  HttpServerOptions options;
  options.request_timeout_ms = 400;
  Server server(options);
  Client client(server.port());
  // Three heads of 30 KiB, 250 ms apart: more bytes than one head may have, more time than one request.
  std::string headers;
  for (int i = 0; i < 300; ++i) headers += fmt::format("x{}: {}\r\n", i, std::string(90, 'y'));
  for (int i = 0; i < 3; ++i) {
    client.send(request("GET", "/x", {}, headers));
    CHECK(starts_with(client.answer(), "HTTP/1.1 200"));
    std::this_thread::sleep_for(250ms);
  }
  CHECK(server.server->late() == 0);
}

TEST_CASE("packed bodies, doubled headers, other methods and bodies of questions are refused by name") {
  Server server;
  const auto first_line = [&](const std::string& text) {
    Client client(server.port());
    client.send(text);
    return client.rest().substr(0, 12);
  };
  CHECK(first_line(request("POST", "/x", "abc", "Content-Encoding: gzip\r\n")) == "HTTP/1.1 415");
  CHECK(first_line("POST /x HTTP/1.1\r\nContent-Length: 3\r\nContent-Length: 4\r\n\r\nabc") == "HTTP/1.1 400");
  CHECK(first_line("GET /x HTTP/1.1\r\nAuthorization: a\r\nAuthorization: b\r\nConnection: close\r\n\r\n") ==
        "HTTP/1.1 400");
  for (const char* const method : {"HEAD", "OPTIONS", "PATCH"})
    CHECK(first_line(fmt::format("{} /x HTTP/1.1\r\nConnection: close\r\n\r\n", method)) == "HTTP/1.1 405");
  CHECK(server.seen.empty());
  // A question with a body is answered, and what follows is not taken for another one.
  Client client(server.port());
  client.send("GET /x HTTP/1.1\r\nContent-Length: 28\r\n\r\nGET /hidden HTTP/1.1\r\na: b\r\n\r\n");
  const std::string all = client.rest();
  CHECK(starts_with(all, "HTTP/1.1 200"));
  CHECK(all.find("HTTP/1.1", 10) == std::string::npos);
  CHECK(server.seen.size() == 1);
}

TEST_CASE("a head has an end: headers without number are cut off, and so is one byte at a time") {
  HttpServerOptions options;
  options.request_timeout_ms = 300;
  Server server(options);
  Client many(server.port());
  std::string text = "GET /x HTTP/1.1\r\n";
  for (int i = 0; i < 4000; ++i) text += fmt::format("x{}: {}\r\n", i, std::string(30, 'y'));
  many.send(text);
  CHECK_FALSE(starts_with(many.rest(), "HTTP/1.1 200"));
  CHECK(many.closed());
  Client drip(server.port());
  const auto begin = std::chrono::steady_clock::now();
  while (!drip.closed() && std::chrono::steady_clock::now() - begin < 10s) {
    drip.send("G");
    (void)drip.rest(20ms);
  }
  CHECK(Seconds(std::chrono::steady_clock::now() - begin) < 5s);
  CHECK(server.server->late() >= 1);
  CHECK(server.seen.empty());
}

TEST_CASE("strangers who fill every place give way; who was admitted and works does not") {
  HttpServerOptions options;
  options.connections_max = 4;
  options.request_timeout_ms = 30'000;
  Server server(options);
  Client known(server.port());
  known.send(request("GET", "/known"));
  CHECK(starts_with(known.answer(), "HTTP/1.1 200"));
  std::vector<std::unique_ptr<Client>> idle;
  for (int i = 0; i < 12; ++i) {
    idle.push_back(std::make_unique<Client>(server.port()));
    idle.back()->send("GET /half HTTP/1.1\r\n");
  }
  const auto begin = std::chrono::steady_clock::now();
  for (int i = 0; i < 5; ++i) {
    Client fresh(server.port());
    fresh.send(request("GET", "/fresh"));
    known.send(request("GET", "/known"));
    CHECK(starts_with(known.answer(), "HTTP/1.1 200"));
    CHECK(starts_with(fresh.answer(20s), "HTTP/1.1 200"));
  }
  CHECK(Seconds(std::chrono::steady_clock::now() - begin) < 20s);  // a half request may wait for 30 s
  CHECK(server.server->dropped() >= 8);
}

}  // namespace gradtap::actors
