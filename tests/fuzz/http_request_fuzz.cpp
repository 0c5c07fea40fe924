// Bytes of a stranger on a connection of the gateway, through the HTTP library and our bounds, up to the handlers: who
// has shown nothing reaches none of them, and what reaches one is within its bounds.
#include <cstdint>
#include <cstdlib>
#include <string>
#include <string_view>
#include <vector>

#include <sys/socket.h>
#include <sys/time.h>
#include <unistd.h>

#include "actors/access_guard.h"
#include "actors/http_server.h"
#include "common/random.h"

using namespace gradtap;
using namespace gradtap::actors;

namespace {

constexpr std::size_t kBodyMax = 300;
constexpr std::string_view kMark = "a handler answered";

void require(bool holds) {
  if (!holds) std::abort();
}

// What docs/security.md leaves open to everybody, written down a second time: files of the page and paths of nothing.
bool open_to_all(std::string_view path) {
  std::vector<std::string> parts(1);
  for (const char c : path) {
    if (c != '/')
      parts.back() += c;
    else if (!parts.back().empty())
      parts.emplace_back();
  }
  if (parts.back().empty()) parts.pop_back();
  const bool probe = parts.size() == 1 && (parts[0] == "metrics" || parts[0] == "healthz" || parts[0] == "readyz");
  const bool job = parts.size() > 3 && parts[0] == "v1" && parts[1] == "jobs";
  const bool node = parts.size() == 2 && parts[0] == "v1" && parts[1] != "jobs";
  return !probe && !job && !node;
}

// A server whose every request is judged; closed: by a guard with a key that nobody knows.
struct Gateway {
  AccessGuard guard;
  bool closed;
  HttpServer server;

  explicit Gateway(bool closed_) : guard(rules()), closed(closed_), server(options(), handlers()) {
    require(server.start().has_value());
  }
  static AccessRules rules() {
    SystemRandom random;
    const auto text = [&] {
      std::string token;
      for (int i = 0; i < 40; ++i) token += static_cast<char>('a' + random.next() % 26);
      return token;
    };
    JobSecret secret{"demo", {}};
    for (std::uint8_t& byte : secret.key) byte = static_cast<std::uint8_t>(random.next());
    return {"demo", {secret}, text(), text(), true};
  }
  static HttpServerOptions options() {
    HttpServerOptions options;
    options.connections_max = 1;
    options.body_bytes_max = kBodyMax;
    options.request_timeout_ms = 100;
    return options;
  }
  void judge(const HttpRequest& request) const {
    require(!closed || open_to_all(request.path));
    require(request.body.size() <= kBodyMax);
    require(request.method == "GET" || request.method == "POST" || request.method == "PUT" ||
            request.method == "DELETE" || request.method == "HEAD");
  }
  HttpHandlers handlers() {
    HttpHandlers handlers;
    handlers.admit = [this](const RequestHead& head) -> Result<Admission> {
      require(head.target.size() <= 64u << 10 && head.authorization.size() <= 64u << 10);
      auto admitted = guard.admit(head);
      return closed ? admitted : Result<Admission>(Admission{"all", {}});
    };
    handlers.check_body = [this](const Admission& admission, std::string_view body) {
      return guard.check_body(admission, body);
    };
    handlers.answer = [this](HttpRequest&& request) {
      judge(request);
      return HttpAnswer{200, std::string(kMark)};
    };
    handlers.stream = [this](const HttpRequest& request) -> Result<std::function<bool(const ByteSink&)>> {
      judge(request);
      return [](const ByteSink& sink) { return sink(kMark.data(), kMark.size()); };
    };
    return handlers;
  }
};

}  // namespace

extern "C" int LLVMFuzzerTestOneInput(const std::uint8_t* data, std::size_t size) {
  static Gateway closed(true), open(false);
  if (size == 0) return 0;
  int pair[2];
  require(::socketpair(AF_UNIX, SOCK_STREAM, 0, pair) == 0);
  const timeval most{5, 0};  // a write that finds no room would wait for ever
  (void)::setsockopt(pair[0], SOL_SOCKET, SO_SNDTIMEO, &most, sizeof most);
  require(::send(pair[0], data + 1, size - 1, MSG_NOSIGNAL) == static_cast<ssize_t>(size - 1));
  ::shutdown(pair[0], SHUT_WR);
  (data[0] % 4 != 0 ? closed : open).server.serve(pair[1]);
  std::string got;
  char buffer[4096];
  for (ssize_t count; (count = ::recv(pair[0], buffer, sizeof buffer, 0)) > 0;)
    got.append(buffer, static_cast<std::size_t>(count));
  ::close(pair[0]);
  require(got.empty() || got.starts_with("HTTP/1."));
  return 0;
}
