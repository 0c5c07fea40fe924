#include "link/node_link.h"

#include <condition_variable>
#include <mutex>

#include <doctest/doctest.h>

#include "tests/unit/link/link_rig.h"

using namespace gradtap;
using namespace gradtap::link;
using namespace gradtap::link::testing;

namespace {

// A call that ends by anything but its deadline ends long before this.
class FunctionSource final : public ChunkSource {
 public:
  FunctionSource(std::uint64_t chunks, std::function<Result<std::vector<std::uint8_t>>(std::uint64_t)> chunk)
      : chunks_(chunks), chunk_(std::move(chunk)) {}
  [[nodiscard]] std::uint64_t chunks() const override { return chunks_; }
  [[nodiscard]] Result<std::vector<std::uint8_t>> chunk(std::uint64_t n) override { return chunk_(n); }

 private:
  std::uint64_t chunks_;
  std::function<Result<std::vector<std::uint8_t>>(std::uint64_t)> chunk_;
};

}  // namespace

TEST_CASE("a request arrives as it was sent, and its answer comes back whole") {
  LinkRig rig;
  std::mutex mutex;
  BulkRequest seen;
  std::string seen_peer;
  const auto bytes = pattern(100'001);
  const auto a = started(rig.options(0, answering(pattern(10), "from a")));
  const auto b = started(
      rig.options(1, [&](const std::string& peer, BulkRequest&& request) -> Result<std::unique_ptr<ChunkSource>> {
        const std::lock_guard lock(mutex);
        seen = std::move(request);
        seen_peer = peer;
        return std::make_unique<MemorySource>(bytes, "the meta", 1000);
      }));
  BulkRequest request;
  request.kind = BulkKind::kSidePut;
  for (std::size_t i = 0; i < request.job.size(); ++i) request.job[i] = static_cast<std::uint8_t>(i);
  request.lineage = 3;
  request.shard = 8;
  request.step = 1234567890123;
  request.argument = ~std::uint64_t{0};
  request.text = "GET /v1/status";
  request.body = pattern(5'000'003, 9);  // more than one frame
  const auto answer = a->call("tap1", request, kForEverMs);
  if (!answer) FAIL(answer.error().text());
  CHECK(answer->meta == "the meta");
  CHECK(answer->bytes == bytes);
  {
    const std::lock_guard lock(mutex);
    CHECK(seen_peer == "tap0");
    CHECK(seen.kind == BulkKind::kSidePut);
    CHECK(seen.job == request.job);
    CHECK(seen.lineage == 3);
    CHECK(seen.shard == 8);
    CHECK(seen.step == 1234567890123);
    CHECK(seen.argument == ~std::uint64_t{0});
    CHECK(seen.text == request.text);
    CHECK(seen.first_chunk == 0);
    CHECK(seen.body == request.body);
  }
  CHECK(b->call("tap0", {}, kForEverMs).value().bytes == pattern(10));
  // One connection served each direction, and goes on serving.
  for (int i = 0; i < 20; ++i) CHECK(a->call("tap1", {}, kForEverMs).value().bytes == bytes);
  CHECK(rig.counted(1, "accepted") == 1);
  CHECK(rig.counted(1, "chunks_out") == 21 * 101);
  CHECK(rig.counted(0, "chunks_in") == 21 * 101);
}

TEST_CASE("an empty answer, and one of empty chunks") {
  LinkRig rig;
  const auto a = started(rig.options(0, refusing()));
  const auto b =
      started(rig.options(1, [](const std::string&, BulkRequest&& request) -> Result<std::unique_ptr<ChunkSource>> {
        return std::make_unique<FunctionSource>(request.argument,
                                                [](std::uint64_t) { return std::vector<std::uint8_t>(); });
      }));
  BulkRequest request;
  for (const std::uint64_t chunks : {0u, 1u, 1000u}) {
    request.argument = chunks;
    CHECK(a->call("tap1", request, kForEverMs).value().bytes.empty());
  }
}

TEST_CASE("an error of the handler, or of a chunk, arrives with its code and texts") {
  LinkRig rig;
  const Error first{ErrorCode::kStepUnavailable, "no such step", "shard 3", "7..9", "10", "ask for another"};
  const Error later{ErrorCode::kStoreCorrupt, "a chunk is corrupt", "000012.sst:77", "aa", "bb", "use the twin"};
  const auto a = started(rig.options(0, refusing()));
  const auto b =
      started(rig.options(1, [&](const std::string&, BulkRequest&& request) -> Result<std::unique_ptr<ChunkSource>> {
        if (request.argument == 0) return std::unexpected(first);
        if (request.argument == 1) throw std::runtime_error("thrown");
        if (request.argument == 2) return nullptr;
        if (request.argument == 3)
          return std::make_unique<FunctionSource>(
              1, [](std::uint64_t) { return std::vector<std::uint8_t>(kPayloadBytesMax + 1); });
        return std::make_unique<FunctionSource>(10, [&](std::uint64_t n) -> Result<std::vector<std::uint8_t>> {
          if (n == 5) return std::unexpected(later);
          return pattern(100);
        });
      }));
  BulkRequest request;
  CHECK(a->call("tap1", request, kForEverMs).error().text() == first.text());
  request.argument = 1;
  CHECK(a->call("tap1", request, kForEverMs).error().actual == "thrown");
  request.argument = 2;
  CHECK(a->call("tap1", request, kForEverMs).error().code == ErrorCode::kUnsupported);
  request.argument = 3;
  CHECK(a->call("tap1", request, kForEverMs).error().code == ErrorCode::kLimitReached);
  request.argument = 4;
  CHECK(a->call("tap1", request, kForEverMs).error().text() == later.text());
  // The connection outlived all of it.
  CHECK(rig.counted(1, "accepted") == 1);
  CHECK(rig.counted(1, "requests_failed") == 5);
  CHECK(rig.counted(0, "calls_failed") == 5);
}

TEST_CASE("a sink's error ends the call, and limits on both sizes hold") {
  LinkRig rig;
  auto options = rig.options(0, refusing());
  options.limits.answer_bytes_max = 5000;
  options.limits.body_bytes_max = 100;
  const auto a = started(std::move(options));
  auto answerer = rig.options(1, answering(pattern(5001)));
  answerer.limits.body_bytes_max = 50;
  const auto b = started(std::move(answerer));
  CHECK(a->call("tap1", {}, kForEverMs).error().code == ErrorCode::kLimitReached);
  const auto stopped = a->fetch(
      "tap1", {},
      [](std::uint64_t n, std::vector<std::uint8_t>&&) -> Status {
        if (n == 2) return fail(ErrorCode::kStoreFull, "full");
        return {};
      },
      kForEverMs);
  CHECK(stopped.error().code == ErrorCode::kStoreFull);
  BulkRequest request;
  request.body = pattern(101);
  CHECK(a->call("tap1", request, kForEverMs).error().code == ErrorCode::kRequestTooLarge);
  request.body = pattern(51);  // only the other side refuses this one
  CHECK(a->call("tap1", request, kForEverMs).error().code == ErrorCode::kRequestTooLarge);
  request.text = std::string(kHeaderBytesMax, 'x');
  request.body.clear();
  CHECK(a->call("tap1", request, kForEverMs).error().code == ErrorCode::kLimitReached);
}

TEST_CASE("a stopped peer is unreachable at once, a frozen one at the deadline, and nobody else is a peer") {
  LinkRig rig;
  Listener frozen(LinkRig::address(1));
  rig.members[1].port = frozen.port();
  const auto a = started(rig.options(0, refusing()));
  CHECK(a->call("tap2", {}, kForEverMs).error().code == ErrorCode::kPeerUnreachable);
  CHECK(a->call("tap1", {}, 50).error().code == ErrorCode::kTimeout);
  CHECK(a->call("tap0", {}, kForEverMs).error().code == ErrorCode::kPeerUnreachable);
  CHECK(a->call("tap9", {}, kForEverMs).error().code == ErrorCode::kPeerUnreachable);
  CHECK(rig.counted(0, "calls_timed_out") == 1);
}

TEST_CASE("a handler that hangs costs its caller the deadline, and others nothing") {
  LinkRig rig;
  std::mutex mutex;
  std::condition_variable wake;
  bool go = false;
  const auto a = started(rig.options(0, refusing()));
  const auto b =
      started(rig.options(1, [&](const std::string&, BulkRequest&& request) -> Result<std::unique_ptr<ChunkSource>> {
        std::unique_lock lock(mutex);
        if (request.argument == 1) wake.wait(lock, [&] { return go; });
        return std::make_unique<MemorySource>(pattern(5));
      }));
  BulkRequest hang;
  hang.argument = 1;
  CHECK(a->call("tap1", hang, 50).error().code == ErrorCode::kTimeout);
  CHECK(a->call("tap1", {}, kForEverMs).value().bytes == pattern(5));
  {
    const std::lock_guard lock(mutex);
    go = true;
  }
  wake.notify_all();
}

TEST_CASE("no more chunks leave than were granted") {
  LinkRig rig;
  auto options = rig.options(0, refusing());
  options.limits.credits = 4;
  const auto a = started(std::move(options));
  std::atomic<std::uint64_t> consumed{0};
  std::atomic<std::uint64_t> ahead_max{0};
  const auto b = started(rig.options(1, [&](const std::string&, BulkRequest&&) -> Result<std::unique_ptr<ChunkSource>> {
    return std::make_unique<FunctionSource>(300, [&](std::uint64_t n) -> Result<std::vector<std::uint8_t>> {
      const std::uint64_t ahead = n + 1 - consumed.load();
      std::uint64_t most = ahead_max.load();
      while (ahead > most && !ahead_max.compare_exchange_weak(most, ahead)) {
      }
      return pattern(1);
    });
  }));
  std::vector<std::uint64_t> order;
  const auto meta = a->fetch(
      "tap1", {},
      [&](std::uint64_t n, std::vector<std::uint8_t>&&) -> Status {
        if (n % 50 == 0) std::this_thread::sleep_for(std::chrono::milliseconds(5));  // the peer could run ahead
        order.push_back(n);
        consumed.fetch_add(1);
        return {};
      },
      kForEverMs);
  REQUIRE(meta);
  REQUIRE(order.size() == 300);
  for (std::uint64_t n = 0; n < 300; ++n) CHECK(order[n] == n);
  // One more: the sink counts before its thread grants.
  CHECK(ahead_max.load() <= 5);
  CHECK(rig.counted(1, "waits_for_credit") > 0);
}

TEST_CASE("connections with a peer are bounded: callers wait, and say so at their deadline") {
  LinkRig rig;
  auto options = rig.options(0, refusing());
  options.limits.connections_max = 2;
  const auto a = started(std::move(options));
  std::mutex mutex;
  std::condition_variable wake;
  bool go = false;
  int inside = 0;
  int most = 0;
  const auto b = started(rig.options(1, [&](const std::string&, BulkRequest&&) -> Result<std::unique_ptr<ChunkSource>> {
    std::unique_lock lock(mutex);
    most = std::max(most, ++inside);
    wake.notify_all();
    wake.wait(lock, [&] { return go; });
    --inside;
    return std::make_unique<MemorySource>(pattern(7));
  }));
  std::vector<std::thread> callers;
  std::atomic<int> right{0};
  for (int i = 0; i < 6; ++i)
    callers.emplace_back([&] {
      const auto answer = a->call("tap1", {}, kForEverMs);
      if (answer && answer->bytes == pattern(7)) ++right;
    });
  {
    std::unique_lock lock(mutex);
    wake.wait(lock, [&] { return inside == 2; });
  }
  CHECK(rig.counts_to(0, "waits_for_connection", 4));
  const auto late = a->call("tap1", {}, 20);
  CHECK(late.error().code == ErrorCode::kTimeout);
  {
    const std::lock_guard lock(mutex);
    go = true;
  }
  wake.notify_all();
  for (std::thread& caller : callers) caller.join();
  CHECK(right == 6);
  CHECK(most == 2);
}

TEST_CASE("a peer that comes back on the same address is reached again") {
  LinkRig rig;
  const auto a = started(rig.options(0, refusing()));
  for (int round = 0; round < 3; ++round) {
    auto b = started(rig.options(1, answering(pattern(3000, static_cast<std::uint8_t>(round)))));
    CHECK(a->call("tap1", {}, kForEverMs).value().bytes == pattern(3000, static_cast<std::uint8_t>(round)));
    b->stop();
    b.reset();
    CHECK(a->call("tap1", {}, kForEverMs).error().code == ErrorCode::kPeerUnreachable);
  }
}

TEST_CASE("stop ends calls that wait, on both sides") {
  LinkRig rig;
  std::mutex mutex;
  std::condition_variable wake;
  bool inside = false;
  bool go = false;
  const auto a = started(rig.options(0, refusing()));
  const auto b = started(rig.options(1, [&](const std::string&, BulkRequest&&) -> Result<std::unique_ptr<ChunkSource>> {
    std::unique_lock lock(mutex);
    inside = true;
    wake.notify_all();
    wake.wait(lock, [&] { return go; });
    return std::make_unique<MemorySource>(pattern(7));
  }));
  Result<NodeLink::Answer> answer = NodeLink::Answer{};
  std::thread caller([&] { answer = a->call("tap1", {}, kForEverMs); });
  {
    std::unique_lock lock(mutex);
    wake.wait(lock, [&] { return inside; });
  }
  a->stop();
  caller.join();
  CHECK(answer.error().code == ErrorCode::kPeerUnreachable);
  CHECK(a->call("tap1", {}, kForEverMs).error().code == ErrorCode::kPeerUnreachable);
  {
    const std::lock_guard lock(mutex);
    go = true;
  }
  wake.notify_all();
  b->stop();
}

TEST_CASE("a link that cannot be is refused at start") {
  LinkRig rig;
  auto stranger = rig.options(0, refusing());
  stranger.self = std::string("nobody");
  CHECK(NodeLink::start(std::move(stranger)).error().code == ErrorCode::kConfigImpossibleValue);
  CHECK(NodeLink::start(rig.options(0, nullptr)).error().code == ErrorCode::kConfigImpossibleValue);
  auto elsewhere = rig.options(0, refusing());
  elsewhere.members[0].address = std::string("192.0.2.1");
  CHECK(NodeLink::start(std::move(elsewhere)).error().code == ErrorCode::kPortOpen);
  const auto a = started(rig.options(0, refusing()));
  CHECK(NodeLink::start(rig.options(0, refusing())).error().code == ErrorCode::kPortOpen);
}

TEST_CASE("the options that follow from the configuration") {
  NodeConfig node;
  node.node.name = std::string("b");
  node.link.credits = 7;
  const auto cluster = parse_cluster_config(R"(
security = "none"
replicas = 1
[[member]]
name = "a"
link = "[fd00::1]:7800"
http = "http://a:1"
domain = "x"
[[member]]
name = "b"
link = "10.0.0.2:7801"
http = "http://b:1"
domain = "x"
)",
                                            "c.toml");
  REQUIRE(cluster);
  const NodeLinkOptions options = link_options(node, *cluster).value();
  CHECK(options.self == "b");
  CHECK(options.cluster == cluster->digest());
  CHECK(options.limits.credits == 7);
  REQUIRE(options.members.size() == 2);
  CHECK(options.members[0].address == "fd00::1");
  CHECK(options.members[0].port == 7800);
  CHECK(options.members[1].address == "10.0.0.2");
}
