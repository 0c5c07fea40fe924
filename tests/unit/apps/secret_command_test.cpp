// gradtap secret, and what the commands show to a node: the program run beside this test, and a node that it plays.
#include <filesystem>
#include <fstream>
#include <string>
#include <thread>

#include <arpa/inet.h>
#include <doctest/doctest.h>
#include <fmt/format.h>
#include <sys/socket.h>
#include <sys/stat.h>
#include <unistd.h>

#include "tests/unit/apps/run_gradtap.h"
#include "tests/unit/storage/store_fixture.h"

namespace gradtap {
namespace {

using testing::Answer;
using testing::run_gradtap;

// Answers one request with a refusal, and keeps its head.
class RefusingNode {
 public:
  RefusingNode() : listener_(::socket(AF_INET, SOCK_STREAM | SOCK_CLOEXEC, 0)) {
    sockaddr_in place{};
    place.sin_family = AF_INET;
    place.sin_addr.s_addr = htonl(INADDR_LOOPBACK);
    REQUIRE(::bind(listener_, reinterpret_cast<const sockaddr*>(&place), sizeof place) == 0);
    REQUIRE(::listen(listener_, 4) == 0);
    socklen_t size = sizeof place;
    REQUIRE(::getsockname(listener_, reinterpret_cast<sockaddr*>(&place), &size) == 0);
    port_ = ntohs(place.sin_port);
    thread_ = std::thread([this] { serve(); });
  }
  ~RefusingNode() {
    ::shutdown(listener_, SHUT_RDWR);
    if (thread_.joinable()) thread_.join();
    ::close(listener_);
  }
  RefusingNode(const RefusingNode&) = delete;
  RefusingNode& operator=(const RefusingNode&) = delete;
  [[nodiscard]] std::string endpoint() const { return fmt::format(" --endpoint http://127.0.0.1:{}", port_); }
  [[nodiscard]] std::string heard() {
    thread_.join();
    return heard_;
  }

 private:
  void serve() {
    const int peer = ::accept(listener_, nullptr, nullptr);
    if (peer < 0) return;
    char part[4096];
    while (heard_.find("\r\n\r\n") == std::string::npos) {
      const ssize_t got = ::recv(peer, part, sizeof part, 0);
      if (got <= 0) break;
      heard_.append(part, static_cast<std::size_t>(got));
    }
    const std::string body = R"({"error": {"code": 541, "name": "FORBIDDEN", "what": "no", "remedy": "ask somebody"}})";
    const std::string text =
        fmt::format("HTTP/1.1 403 X\r\nConnection: close\r\nContent-Length: {}\r\n\r\n{}", body.size(), body);
    (void)!::send(peer, text.data(), text.size(), MSG_NOSIGNAL);
    ::close(peer);
  }

  int listener_;
  std::uint16_t port_ = 0;
  std::string heard_;
  std::thread thread_;
};

bool holds(const std::string& text, const std::string& part) {
  return text.find(part) != std::string::npos;
}

}  // namespace

TEST_CASE("gradtap secret makes files that are closed, and replaces none") {
  const storage::test::TempDir work{true};
  const std::string key = work.path + "/key", token = work.path + "/token";
  CHECK(run_gradtap("secret").code != 0);
  CHECK(run_gradtap("secret new").code != 0);
  CHECK(run_gradtap("secret new " + key + " --id demo").code == 0);
  CHECK(run_gradtap("secret token " + token).code == 0);
  for (const std::string& file : {key, token}) {
    struct stat about{};
    REQUIRE(::stat(file.c_str(), &about) == 0);
    CHECK((about.st_mode & 07777) == 0600);
    CHECK(about.st_size >= 65);
  }
  const Answer again = run_gradtap("secret new " + key + " --id demo");
  CHECK(again.code == 1);
  CHECK(holds(again.text, "E106"));
  CHECK(holds(again.text, "it is there already"));
  CHECK(run_gradtap("secret new " + work.path + "/other --id 'a b'").code == 2);
  CHECK(run_gradtap("secret token " + work.path + "/absent/token").code == 1);
}

TEST_CASE("commands show a token, or the job's key at the job's paths, and say what a refusal says") {
  const storage::test::TempDir work{true};
  const std::string key = work.path + "/key", token = work.path + "/token";
  std::ofstream(key) << "GT1 demo 000102030405060708090a0b0c0d0e0f101112131415161718191a1b1c1d1e1f\n";
  std::ofstream(token) << std::string(40, 't') << "\n";
  REQUIRE(::chmod(key.c_str(), 0600) == 0);
  REQUIRE(::chmod(token.c_str(), 0600) == 0);
  {
    RefusingNode node;
    const Answer refused = run_gradtap("status" + node.endpoint());
    CHECK(refused.code == 2);
    CHECK(holds(refused.text, "E541 FORBIDDEN"));
    CHECK(holds(refused.text, "ask somebody"));
    CHECK_FALSE(holds(node.heard(), "Authorization"));
  }
  for (const std::string& how : {" --token-file " + token, std::string()}) {
    RefusingNode node;
    CHECK(run_gradtap("nodes drain tap1" + node.endpoint() + how, how.empty() ? "GRADTAP_TOKEN_FILE=" + token : "")
              .code == 1);
    CHECK(holds(node.heard(), "Authorization: Bearer " + std::string(40, 't') + "\r\n"));
  }
  {
    // Computed with hmac of Python over "GET\n/v1/jobs/demo/points?lineage=1\n\n\n" and the digest of nothing.
    RefusingNode node;
    const std::string source = node.endpoint().substr(12);
    CHECK(run_gradtap("points list --job demo --lineage 1 --source " + source + " --secret-file " + key).code != 0);
    CHECK(holds(node.heard(),
                "Authorization: GT1 demo:d7b763e23eac1fb1348d9d567af9f60e01194f86e39dd14eb8865feefa8df8a3\r\n"));
  }
  {
    RefusingNode node;
    CHECK(run_gradtap("status" + node.endpoint() + " --secret-file " + key).code == 2);
    CHECK_FALSE(holds(node.heard(), "Authorization"));
  }
  REQUIRE(::chmod(token.c_str(), 0644) == 0);
  const Answer open = run_gradtap("status --endpoint http://127.0.0.1:1 --token-file " + token);
  CHECK(open.code == 2);
  CHECK(holds(open.text, "E105"));
  CHECK_FALSE(holds(open.text, "tttt"));
}

}  // namespace gradtap
