// Connections that break under an answer: a relay between two links cuts them after so many bytes.
#include <mutex>

#include <doctest/doctest.h>

#include "link/node_link.h"
#include "tests/unit/link/link_rig.h"

using namespace gradtap;
using namespace gradtap::link;
using namespace gradtap::link::testing;

namespace {

// Stands at the address of the second member, and dials the real one from the address of the first.
class CuttingRelay {
 public:
  // Each connection ends after `back_bytes` towards the caller; 0: at once. After `cuts` of them none is cut.
  CuttingRelay(std::uint16_t real_port, std::size_t back_bytes, int cuts)
      : listener_(LinkRig::address(1)), real_port_(real_port), back_bytes_(back_bytes), cuts_(cuts) {
    thread_ = std::thread([this] { run(); });
  }
  ~CuttingRelay() {
    listener_.stop();
    thread_.join();
  }
  [[nodiscard]] std::uint16_t port() const { return listener_.port(); }
  [[nodiscard]] int connections() const { return connections_.load(); }

 private:
  void run() {
    for (;;) {
      Socket caller = listener_.accept();
      if (!caller.open()) return;
      const bool cut = connections_.fetch_add(1) < cuts_;
      Socket real = dial(LinkRig::address(0), LinkRig::address(1), real_port_);
      if (real.open()) relay(caller, real, cut ? back_bytes_ : ~std::size_t{0});
    }
  }

  static void relay(const Socket& caller, const Socket& real, std::size_t left) {
    std::array<char, 4096> buffer;
    for (;;) {
      std::array<pollfd, 2> both{{{caller.fd(), POLLIN, 0}, {real.fd(), POLLIN, 0}}};
      if (::poll(both.data(), both.size(), 20'000) <= 0) return;
      if (both[0].revents != 0) {
        const ssize_t got = ::recv(caller.fd(), buffer.data(), buffer.size(), 0);
        if (got <= 0 || !real.write(buffer.data(), static_cast<std::size_t>(got))) return;
      }
      if (both[1].revents != 0) {
        const ssize_t got = ::recv(real.fd(), buffer.data(), std::min(buffer.size(), left), 0);
        if (got <= 0 || !caller.write(buffer.data(), static_cast<std::size_t>(got))) return;
        left -= static_cast<std::size_t>(got);
        if (left == 0) return;
      }
    }
  }

  Listener listener_;
  const std::uint16_t real_port_;
  const std::size_t back_bytes_;
  const int cuts_;
  std::atomic<int> connections_{0};
  std::thread thread_;
};

// No identity: what is broken off starts over.
class Anonymous final : public ChunkSource {
 public:
  Anonymous(std::vector<std::uint8_t> bytes, std::string meta) : source_(std::move(bytes), std::move(meta), 1000) {}
  [[nodiscard]] std::uint64_t chunks() const override { return source_.chunks(); }
  [[nodiscard]] Result<std::vector<std::uint8_t>> chunk(std::uint64_t n) override { return source_.chunk(n); }
  [[nodiscard]] std::string meta() const override { return source_.meta(); }

 private:
  MemorySource source_;
};

struct Relayed {
  Relayed(LinkRig& rig, BulkHandler handler, std::size_t back_bytes, int cuts)
      : relay(rig.members[1].port, back_bytes, cuts) {
    b = started(rig.options(1, [this, handler = std::move(handler)](const std::string& peer, BulkRequest&& request) {
      {
        const std::lock_guard lock(mutex);
        firsts.push_back(request.first_chunk);
      }
      return handler(peer, std::move(request));
    }));
    auto options = rig.options(0, refusing());
    options.members[1].port = relay.port();
    a = started(std::move(options));
  }
  ~Relayed() {
    a->stop();
    b->stop();
  }

  std::mutex mutex;
  std::vector<std::uint64_t> firsts;
  std::unique_ptr<NodeLink> a;
  std::unique_ptr<NodeLink> b;
  CuttingRelay relay;
};

}  // namespace

TEST_CASE("an answer that breaks off goes on at the chunk that is missing") {
  LinkRig rig;
  const auto bytes = pattern(200'000);
  Relayed relayed(rig, answering(bytes, "m", 1000), 30'000, 1'000);
  std::vector<std::uint64_t> order;
  std::vector<std::uint8_t> joined;
  const auto meta = relayed.a->fetch(
      "tap1", {},
      [&](std::uint64_t n, std::vector<std::uint8_t>&& chunk) -> Status {
        order.push_back(n);
        joined.insert(joined.end(), chunk.begin(), chunk.end());
        return {};
      },
      kForEverMs);
  if (!meta) FAIL(meta.error().text());
  CHECK(*meta == "m");
  CHECK(joined == bytes);
  REQUIRE(order.size() == 200);
  for (std::uint64_t n = 0; n < 200; ++n) CHECK(order[n] == n);  // each once, in order
  // 30 000 bytes hold at most 28 chunks of 1000 and their 64 bytes of framing.
  CHECK(relayed.relay.connections() >= 200 / 28);
  REQUIRE(relayed.firsts.size() == static_cast<std::size_t>(relayed.relay.connections()));
  CHECK(relayed.firsts.front() == 0);
  for (std::size_t i = 1; i < relayed.firsts.size(); ++i) CHECK(relayed.firsts[i] > relayed.firsts[i - 1]);
  CHECK(rig.counted(0, "resumed") == relayed.firsts.size() - 1);
  CHECK(rig.counted(0, "started_over") == 0);
}

TEST_CASE("an answer without an identity starts over, and is never joined from two") {
  LinkRig rig;
  std::atomic<int> generation{0};
  const auto handler = [&](const std::string&, BulkRequest&&) -> Result<std::unique_ptr<ChunkSource>> {
    const int now = generation.fetch_add(1);
    return std::make_unique<Anonymous>(pattern(50'000, static_cast<std::uint8_t>(now)), std::to_string(now));
  };
  Relayed relayed(rig, handler, 30'000, 3);
  const auto answer = relayed.a->call("tap1", {}, kForEverMs);
  if (!answer) FAIL(answer.error().text());
  CHECK(answer->meta == "3");
  CHECK(answer->bytes == pattern(50'000, 3));
  CHECK(relayed.firsts == std::vector<std::uint64_t>{0, 0, 0, 0});
  CHECK(rig.counted(0, "started_over") == 3);
}

TEST_CASE("an answer that changed between two connections starts over, although it had an identity") {
  LinkRig rig;
  std::atomic<int> generation{0};
  const auto handler = [&](const std::string&, BulkRequest&&) -> Result<std::unique_ptr<ChunkSource>> {
    const int now = std::min(generation.fetch_add(1), 1);
    return std::make_unique<MemorySource>(pattern(50'000, static_cast<std::uint8_t>(now)), "m", 1000);
  };
  Relayed relayed(rig, handler, 30'000, 1);
  const auto answer = relayed.a->call("tap1", {}, kForEverMs);
  if (!answer) FAIL(answer.error().text());
  CHECK(answer->bytes == pattern(50'000, 1));
  CHECK(rig.counted(0, "started_over") == 1);
}

TEST_CASE("connections that break without progress are given up") {
  LinkRig rig;
  // The welcome takes 40 + 40 bytes; nothing of the answer's head gets through.
  Relayed relayed(rig, answering(pattern(10)), 90, 1'000'000);
  CHECK(relayed.a->call("tap1", {}, kForEverMs).error().code == ErrorCode::kPeerUnreachable);
  CHECK(rig.counted(0, "breaks") <= LinkLimits{}.breaks_max);
}

TEST_CASE("an idle connection that died is replaced unseen") {
  LinkRig rig;
  auto answerer = rig.options(1, answering(pattern(10)));
  answerer.limits.idle_timeout_ms = 20;
  const auto b = started(std::move(answerer));
  const auto a = started(rig.options(0, refusing()));
  for (int i = 0; i < 5; ++i) {
    CHECK(a->call("tap1", {}, kForEverMs).value().bytes == pattern(10));
    std::this_thread::sleep_for(std::chrono::milliseconds(40));
  }
  CHECK(rig.counted(1, "accepted") >= 2);
}
