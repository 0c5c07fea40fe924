// gradtap nodes, run beside this test, against a node that the test plays.
#include <atomic>
#include <cstdlib>
#include <filesystem>
#include <fstream>
#include <functional>
#include <mutex>
#include <string>
#include <thread>
#include <vector>

#include <arpa/inet.h>
#include <doctest/doctest.h>
#include <fmt/format.h>
#include <nlohmann/json.hpp>
#include <sys/socket.h>
#include <sys/wait.h>
#include <unistd.h>

#include "common/error.h"
#include "tests/unit/storage/store_fixture.h"

namespace gradtap {
namespace {

using nlohmann::json;

struct NodeAnswer {
  int status = 200;
  std::string body;
};

// Answers one request a connection by a function of method and body.
class FakeNode {
 public:
  using Play = std::function<NodeAnswer(const std::string& method, const std::string& body)>;

  explicit FakeNode(Play play) : play_(std::move(play)) {
    listener_ = ::socket(AF_INET, SOCK_STREAM | SOCK_CLOEXEC, 0);
    sockaddr_in place{};
    place.sin_family = AF_INET;
    place.sin_addr.s_addr = htonl(INADDR_LOOPBACK);
    REQUIRE(::bind(listener_, reinterpret_cast<const sockaddr*>(&place), sizeof place) == 0);
    REQUIRE(::listen(listener_, 16) == 0);
    socklen_t size = sizeof place;
    REQUIRE(::getsockname(listener_, reinterpret_cast<sockaddr*>(&place), &size) == 0);
    port_ = ntohs(place.sin_port);
    thread_ = std::thread([this] { serve(); });
  }
  ~FakeNode() {
    ::shutdown(listener_, SHUT_RDWR);
    thread_.join();
    ::close(listener_);
  }
  FakeNode(const FakeNode&) = delete;
  FakeNode& operator=(const FakeNode&) = delete;

  [[nodiscard]] std::string endpoint() const { return fmt::format("http://127.0.0.1:{}", port_); }
  // Bodies of the requests that were to change something.
  [[nodiscard]] std::vector<json> posted() const {
    const std::lock_guard lock(mutex_);
    return posted_;
  }

 private:
  void serve() {
    for (;;) {
      const int peer = ::accept(listener_, nullptr, nullptr);
      if (peer < 0) return;
      std::string request;
      char part[4096];
      std::size_t head = std::string::npos, length = 0;
      while (head == std::string::npos || request.size() < head + 4 + length) {
        const ssize_t got = ::recv(peer, part, sizeof part, 0);
        if (got <= 0) break;
        request.append(part, static_cast<std::size_t>(got));
        if (head != std::string::npos || (head = request.find("\r\n\r\n")) == std::string::npos) continue;
        if (const auto at = request.find("Content-Length: "); at < head)
          length = std::strtoul(request.c_str() + at + 16, nullptr, 10);
      }
      if (head != std::string::npos) {
        const std::string method = request.substr(0, request.find(' '));
        const std::string body = request.substr(head + 4);
        CHECK(request.find(" /v1/nodes HTTP/1.1\r\n") != std::string::npos);
        if (method == "POST") {
          const std::lock_guard lock(mutex_);
          posted_.push_back(json::parse(body, nullptr, false));
        }
        const NodeAnswer answer = play_(method, body);
        const std::string text = fmt::format(
            "HTTP/1.1 {} X\r\nContent-Type: application/json\r\nConnection: close\r\nContent-Length: {}\r\n\r\n{}",
            answer.status, answer.body.size(), answer.body);
        (void)!::send(peer, text.data(), text.size(), MSG_NOSIGNAL);
      }
      ::close(peer);
    }
  }

  Play play_;
  int listener_ = -1;
  std::uint16_t port_ = 0;
  std::thread thread_;
  mutable std::mutex mutex_;
  std::vector<json> posted_;
};

struct Ran {
  int code = -1;
  std::string out, err;
};

Ran run(const std::string& arguments) {
  const storage::test::TempDir work{true};
  const std::string program = std::filesystem::read_symlink("/proc/self/exe").parent_path() / "gradtap";
  const std::string command =
      fmt::format("{} nodes {} </dev/null >{}/out 2>{}/err", program, arguments, work.path, work.path);
  const int status = std::system(command.c_str());  // NOLINT(concurrency-mt-unsafe)
  Ran ran;
  ran.code = WIFEXITED(status) ? WEXITSTATUS(status) : -1;
  const auto read = [&](const char* name) {
    std::ifstream in(work.path + "/" + name);
    return std::string(std::istreambuf_iterator<char>(in), {});
  };
  ran.out = read("out");
  ran.err = read("err");
  return ran;
}

bool contains(const std::string& text, const std::string& part) {
  return text.find(part) != std::string::npos;
}

json member(const char* name, const char* membership, int assigned, int in_sync, int syncing, int releasing) {
  return {{"name", name},
          {"membership", membership},
          {"state", "up"},
          {"link", "10.0.0.1:7800"},
          {"domain", "rack"},
          {"tap", true},
          {"assigned", assigned},
          {"in_sync", in_sync},
          {"syncing", syncing},
          {"releasing", releasing},
          {"bytes_left", syncing << 20},
          {"waits_for", releasing > 0 ? "tap1 copies the shard" : ""}};
}
NodeAnswer nodes(std::vector<json> members, const char* home = "tap1") {
  return {
      200,
      json{{"epoch", 5}, {"cause", "drain tap0"}, {"replicas", 2}, {"shards", 4}, {"home", home}, {"members", members}}
          .dump()};
}
NodeAnswer accepted(bool changed = true) {
  return {200, json{{"epoch", 6}, {"changed", changed}, {"moves", 3}}.dump()};
}
NodeAnswer refusal(ErrorCode code, int status = 409) {
  return {status,
          json{{"error", {{"code", static_cast<unsigned>(code)}, {"what", "it is refused"}, {"remedy", "do better"}}}}
              .dump()};
}

}  // namespace

TEST_CASE("the list shows every member, and that the object store does not answer") {
  FakeNode node([](const std::string&, const std::string&) {
    json body = json::parse(nodes({member("tap0", "draining", 0, 0, 0, 4), member("tap1", "out", 0, 0, 0, 0)}).body);
    body["store_error"] = "disk is gone";
    return NodeAnswer{200, body.dump()};
  });
  const Ran ran = run("list --endpoint " + node.endpoint());
  CHECK(ran.code == 0);
  CHECK(contains(ran.out, "epoch 5 (drain tap0)  replicas 2  shards 4  home tap1"));
  CHECK(contains(ran.out, "draining"));
  CHECK(contains(ran.out, "members stay as they are: disk is gone"));
  CHECK(json::parse(run("list --json --endpoint " + node.endpoint()).out)["epoch"] == 5);
}

TEST_CASE("a check says what it costs, and only what is said to be safe is") {
  std::atomic<int> turn = 0;
  const std::vector<json> checks = {{{"safe", true}, {"held_shards", 3}, {"is_home", true}},
                                    {{"safe", false}, {"reasons", {"no other live owner", 5}}},
                                    {{"safe", "true"}},
                                    json::array({true}),
                                    nullptr};
  FakeNode node([&](const std::string& method, const std::string&) {
    CHECK(method == "POST");
    return NodeAnswer{
        200, json{{"epoch", 5}, {"changed", true}, {"check", checks[static_cast<std::size_t>(turn++)]}}.dump()};
  });
  const std::string command = "drain tap0 --check --endpoint " + node.endpoint();
  Ran ran = run(command);
  CHECK(ran.code == 0);
  CHECK(contains(ran.out, "tap0: safe to take down now"));
  CHECK(contains(ran.out, "it holds 3 shards"));
  CHECK(contains(ran.out, "it is the home of the job"));
  ran = run(command);
  CHECK(ran.code == 1);
  CHECK(contains(ran.out, "NOT safe"));
  CHECK(contains(ran.out, "because no other live owner"));
  for (int i = 0; i < 3; ++i) {
    ran = run(command);
    CHECK(ran.code == 1);
    CHECK_FALSE(contains(ran.out, ": safe to take down"));
  }
  for (const json& request : node.posted())
    CHECK(request == json{{"action", "drain"}, {"name", "tap0"}, {"force", false}, {"check", true}});
}

TEST_CASE("a drain waits until nothing is held and another is the home, then retires the member") {
  std::atomic<int> looks = 0, retires = 0;
  FakeNode node([&](const std::string& method, const std::string& body) {
    if (method == "POST") {
      if (!contains(body, "retire")) return accepted();
      // The node has started again and does not know yet what tap0 holds.
      return retires++ == 0 ? refusal(ErrorCode::kMemberUnsafe) : accepted();
    }
    switch (looks++) {
      case 0:
        return nodes({member("tap0", "draining", 0, 0, 0, 2), member("tap1", "in", 4, 2, 2, 0)});
      case 1:
        return NodeAnswer{503, "busy"};
      case 2:
        return nodes({member("tap0", "draining", 0, 0, 0, 0)}, "tap0");
      case 3:
        return nodes({});  // it is not even named: that proves nothing
      default:
        return nodes({member("tap0", "draining", 0, 0, 0, 0)});
    }
  });
  const Ran ran = run("drain tap0 --force --endpoint " + node.endpoint());
  CHECK(ran.code == 0);
  CHECK(looks >= 6);
  CHECK(contains(ran.out, "epoch 6: drain tap0, 3 shards move"));
  CHECK(contains(ran.out, "tap0 owns nothing and is out of the cluster (epoch 6): it may be stopped"));
  const std::vector<json> posted = node.posted();
  REQUIRE(posted.size() == 3);
  CHECK(posted[0]["force"] == true);
  CHECK(posted[2]["action"] == "retire");
}

TEST_CASE("what is not done in time is said, and the exit code is no success") {
  FakeNode node([](const std::string& method, const std::string&) {
    return method == "POST" ? accepted(false)
                            : nodes({member("tap0", "in", 4, 3, 1, 0), member("tap1", "draining", 0, 0, 0, 1)});
  });
  for (const char* action : {"add", "drain", "remove", "replace"}) {
    const Ran ran = run(fmt::format("{} tap0 --wait-s 1 --endpoint {}", action, node.endpoint()));
    CHECK(ran.code == 1);
    CHECK(contains(ran.out, "(already so)"));
    CHECK(contains(ran.out, "not done in 1 s; it goes on without this command"));
    for (const json& request : node.posted()) CHECK(request["action"] != "retire");
  }
  CHECK(run("add tap0 --wait-s 0 --endpoint " + node.endpoint()).code == 0);
}

TEST_CASE("an addition ends when every shard is where it belongs, a removal when the member is out") {
  std::atomic<int> looks = 0;
  FakeNode node([&](const std::string& method, const std::string&) {
    if (method == "POST") return accepted();
    json down = member("tap3", "in", 3, 3, 0, 0);
    down["state"] = "down";
    switch (looks++) {
      case 0:
        return nodes({down});
      case 1:
        return nodes({member("tap3", "in", 3, 2, 1, 0)});
      case 2:
        return nodes({member("tap3", "in", 3, 3, 0, 0), member("tap0", "in", 3, 3, 0, 1)});
      case 3:
        return nodes({member("tap3", "in", 3, 3, 0, 0)});
      case 4:
        return nodes({member("tap3", "draining", 0, 0, 0, 0)});
      default:
        return nodes({member("tap3", "out", 0, 0, 0, 0)});
    }
  });
  Ran ran = run("add tap3 --link 10.0.0.3:7800 --http http://10.0.0.3:7700 --domain r3 --capacity 2 --endpoint " +
                node.endpoint());
  CHECK(ran.code == 0);
  CHECK(looks == 4);
  CHECK(contains(ran.out, "add tap3: every shard is where it belongs"));
  const json request = node.posted().at(0);
  CHECK(request["link"] == "10.0.0.3:7800");
  CHECK(request["capacity"] == 2);
  ran = run("remove tap3 --endpoint " + node.endpoint());
  CHECK(ran.code == 0);
  CHECK(looks == 6);
}

TEST_CASE("a refusal is said with its remedy: 1 by the cluster, 2 by the node") {
  std::atomic<int> turn = 0;
  FakeNode node([&](const std::string&, const std::string&) {
    switch (turn++) {
      case 0:
        return refusal(ErrorCode::kMemberUnsafe);
      case 1:
        return refusal(ErrorCode::kObjectStore, 503);
      case 2:
        return refusal(ErrorCode::kRequestMalformed, 422);
      default:
        return NodeAnswer{500, "oh"};
    }
  });
  for (const int code : {1, 1, 2, 2}) {
    const Ran ran = run("remove tap0 --endpoint " + node.endpoint());
    CHECK(ran.code == code);
    if (turn < 4) CHECK(contains(ran.err, "do better"));
  }
  CHECK(node.posted().size() == 4);
  CHECK(run("list --endpoint http://127.0.0.1:1").code == 2);
  CHECK(run("remove tap0 --endpoint http://127.0.0.1:1").code == 2);
}

TEST_CASE("whatever answers there, the command does not crash") {
  std::vector<std::string> bodies = {"",
                                     "null",
                                     "[]",
                                     "5",
                                     "\"x\"",
                                     "{",
                                     "{}",
                                     R"({"members":5})",
                                     R"({"members":[5,null,[]]})",
                                     R"({"members":{"name":"tap0"}})",
                                     R"({"epoch":"x","home":[],"members":[{"name":7,"tap":"yes"}]})",
                                     R"({"epoch":-1,"changed":"yes","moves":1e99,"check":[1]})",
                                     R"({"check":{"safe":1,"reasons":{"a":1},"is_home":"x"}})"};
  std::size_t turn = 0;
  FakeNode node([&](const std::string&, const std::string&) { return NodeAnswer{200, bodies[turn]}; });
  for (turn = 0; turn < bodies.size(); ++turn) {
    CAPTURE(bodies[turn]);
    CHECK(run("list --endpoint " + node.endpoint()).code >= 0);
    CHECK(run("drain tap0 --check --endpoint " + node.endpoint()).code > 0);
    CHECK(run("add tap0 --wait-s 0 --endpoint " + node.endpoint()).code >= 0);
  }
  turn = 9;
  CHECK(run("drain tap0 --wait-s 1 --endpoint " + node.endpoint()).code == 1);
  for (const json& request : node.posted()) CHECK(request["action"] != "retire");
}

}  // namespace gradtap
