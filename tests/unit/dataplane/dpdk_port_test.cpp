// The DPDK ports against a capture, a ring and a real (veth) interface.
#include "dataplane/dpdk/dpdk_port.h"

#include <array>
#include <chrono>
#include <cstring>
#include <fstream>
#include <set>
#include <thread>

#include <arpa/inet.h>
#include <doctest/doctest.h>
#include <linux/if_packet.h>
#include <net/if.h>
#include <sched.h>
#include <sys/socket.h>
#include <unistd.h>

#include "tests/unit/dataplane/decode_harness.h"

namespace gradtap::dataplane {
namespace {

using namespace testing;

// DPDK starts once per process.
Eal& eal() {
  static std::unique_ptr<Eal> instance = [] {
    cpu_set_t before;
    sched_getaffinity(0, sizeof before, &before);
    EalConfig config;
    config.memory_mb = 256;
    auto started = Eal::start(config);
    if (!started) FAIL(started.error().text());
    cpu_set_t after;
    sched_getaffinity(0, sizeof after, &after);
    CHECK(CPU_EQUAL(&before, &after));
    CHECK(!Eal::start(config).has_value());
    return std::move(*started);
  }();
  return *instance;
}

// A capture file of the given (captured bytes, wire bytes) records, all bytes of record i being i.
std::string write_capture(const std::string& name,
                          const std::vector<std::pair<std::uint32_t, std::uint32_t>>& records) {
  const std::string path =
      (std::filesystem::temp_directory_path() / (name + std::to_string(getpid()) + ".pcap")).string();
  std::ofstream out(path, std::ios::binary);
  const auto word = [&](std::uint32_t v) { out.write(reinterpret_cast<const char*>(&v), 4); };
  for (const std::uint32_t v : {0xa1b2c3d4U, 0x00040002U, 0U, 0U, 262144U, 1U}) word(v);
  for (std::size_t i = 0; i < records.size(); ++i) {
    for (const std::uint32_t v : {1U, 2U, records[i].first, records[i].second}) word(v);
    out << std::string(records[i].first, static_cast<char>(i));
  }
  return path;
}

TEST_CASE("pcap port: every record of a capture once, with its bytes, through a small pool") {
  const std::string path = capture_path("gloo-n4/mon.pcap", "dpdk_port pcap");
  if (path.empty()) return;
  const auto truth = read_capture(path);
  REQUIRE(truth.has_value());
  auto port = open_pcap_port(eal(), {.file = path, .pool_frames = 100});
  REQUIRE(port.has_value());
  CHECK((*port)->queue_count() == 1);
  CHECK(!(*port)->live());
  std::size_t at = 0;
  std::vector<Frame> held;
  while (!(*port)->exhausted()) {
    std::array<Frame, 64> frames;
    const auto count = (*port)->rx_burst(0, frames);
    for (int i = 0; i < count; ++i, ++at) {
      REQUIRE(at < truth->size());
      REQUIRE(frames[i].bytes == (*truth)[at].bytes.size());
      REQUIRE(std::memcmp(frames[i].data, (*truth)[at].bytes.data(), frames[i].bytes) == 0);
      held.push_back(frames[i]);
    }
    // Held until the pool is empty: the driver would lose records then. Freed by a thread that DPDK does not know.
    if (count == 0) {
      CHECK(held.size() >= 90);
      std::thread([&] { (*port)->release(held); }).join();
      held.clear();
    }
  }
  (*port)->release(held);
  CHECK(at == 4820);
  CHECK((*port)->counters().frames == 4820);
  CHECK((*port)->counters().oversized == 0);
  std::array<Frame, 4> frames;
  CHECK((*port)->rx_burst(0, frames) == 0);
}

TEST_CASE("pcap port: cut and giant records are counted, never handed out (N9)") {
  const std::string path =
      write_capture("cut", {{60, 60}, {60, 1514}, {9014, 9014}, {70000, 70000}, {64, 65}, {62, 62}});
  auto port = open_pcap_port(eal(), {.file = path, .pool_frames = 64});
  REQUIRE(port.has_value());
  std::vector<int> seen;
  for (int turn = 0; turn < 100 && !(*port)->exhausted(); ++turn) {
    std::array<Frame, 4> frames;
    const auto count = (*port)->rx_burst(0, frames);
    for (int i = 0; i < count; ++i) seen.push_back(frames[i].data[0]);
    (*port)->release(std::span(frames).first(count));
  }
  CHECK((*port)->exhausted());
  CHECK(seen == std::vector<int>{0, 2, 5});
  CHECK((*port)->counters().oversized == 3);
  std::filesystem::remove(path);
}

TEST_CASE("ring port: what is offered comes in order with its bytes; beyond pool and ring nothing is taken") {
  auto ring = open_ring_port(eal(), {.frame_bytes = 2048, .pool_frames = 600});
  REQUIRE_MESSAGE(ring.has_value(), (ring ? "" : ring.error().text()));
  std::vector<std::vector<std::uint8_t>> frames;
  std::vector<ByteSpan> offered;
  for (std::size_t i = 0; i < 700; ++i) frames.emplace_back(64 + i, static_cast<std::uint8_t>(i));
  for (const auto& frame : frames) offered.emplace_back(frame);
  std::size_t next = 0;
  for (int round = 0; round < 3; ++round) {  // buffers come back
    const std::size_t taken = ring->feed->offer(std::span(offered).subspan(next));
    CHECK(taken > 0);
    CHECK(taken <= 600);
    std::array<Frame, 64> burst;
    std::size_t seen = 0;
    while (const std::uint16_t count = ring->port->rx_burst(0, burst)) {
      for (std::uint16_t i = 0; i < count; ++i, ++seen) {
        REQUIRE(burst[i].bytes == offered[next + seen].size());
        CHECK(std::memcmp(burst[i].data, offered[next + seen].data(), burst[i].bytes) == 0);
      }
      ring->port->release(std::span(burst).first(count));
    }
    CHECK(seen == taken);
    next = (next + taken) % 600;
  }
  const std::vector<std::uint8_t> long_frame(2049);
  const std::array<ByteSpan, 1> too_long{ByteSpan(long_frame)};
  CHECK(ring->feed->offer(too_long) == 0);
  CHECK(open_ring_port(eal(), {.pool_frames = 1}).error().code == ErrorCode::kConfigImpossibleValue);
}

TEST_CASE("ports that cannot be opened say why") {
  CHECK(open_pcap_port(eal(), {.file = "/nonexistent.pcap"}).error().code == ErrorCode::kFileUnreadable);
  CHECK(open_pcap_port(eal(), {.file = "a,b.pcap"}).error().code == ErrorCode::kPortUnsupported);
  CHECK(open_af_packet_port(eal(), {.interface = "nosuch0"}).error().code == ErrorCode::kPortOpen);
  CHECK(open_af_packet_port(eal(), {.interface = "lo", .frame_bytes = 3000}).error().code ==
        ErrorCode::kConfigImpossibleValue);
  // The loopback's MTU is 65536.
  const auto large = open_af_packet_port(eal(), {.interface = "lo"});
  REQUIRE(!large.has_value());
  CHECK(large.error().code == ErrorCode::kPortFrameTooLarge);
  CHECK(large.error().remedy.find("65624") != std::string::npos);  // 65536 + 14 + 8 + 66
}

TEST_CASE("af_packet port: frames of a veth pair, on two queues") {
  const std::string suffix = std::to_string(getpid() % 10000);
  const std::string a = "gta" + suffix;
  const std::string b = "gtb" + suffix;
  const std::string quiet = " >/dev/null 2>&1";
  const auto shell = [&](const std::string& command) { return std::system((command + quiet).c_str()) == 0; };
  if (getuid() != 0 || !shell("ip link add " + a + " type veth peer name " + b)) {
    std::printf("SKIPPED dpdk_port af_packet: needs root and ip link\n");
    return;
  }
  struct Cleanup {
    std::string command;
    ~Cleanup() { (void)!std::system(command.c_str()); }
  } cleanup{"ip link del " + a + quiet};
  for (const std::string& name : {a, b}) {
    (void)!std::ofstream("/proc/sys/net/ipv6/conf/" + name + "/disable_ipv6").put('1').good();
    REQUIRE(shell("ip link set " + name + " up"));
  }
  auto port = open_af_packet_port(eal(), {.interface = b, .queues = 2, .ring_frames = 1024, .pool_frames = 4096});
  if (!port) {
    std::printf("SKIPPED dpdk_port af_packet: %s\n", port.error().text().c_str());
    return;
  }
  CHECK((*port)->live());
  CHECK(!(*port)->exhausted());
  const int fd = socket(AF_PACKET, SOCK_RAW, 0);
  REQUIRE(fd >= 0);
  sockaddr_ll to{};
  to.sll_family = AF_PACKET;
  to.sll_ifindex = static_cast<int>(if_nametoindex(a.c_str()));
  std::set<std::string> sent;
  for (int i = 0; i < 200; ++i) {
    FrameSpec spec;
    spec.source_port = static_cast<std::uint16_t>(1000 + i % 20);
    spec.sequence = static_cast<std::uint32_t>(i);
    spec.payload.assign(static_cast<std::size_t>(i * 7 % 1448), static_cast<std::uint8_t>(i));
    if (i % 3 == 0) spec.vlan_types = {0x8100};
    const auto frame = make_frame(spec);
    REQUIRE(sendto(fd, frame.data(), frame.size(), 0, reinterpret_cast<sockaddr*>(&to), sizeof to) ==
            static_cast<ssize_t>(frame.size()));
    sent.emplace(frame.begin(), frame.end());
  }
  std::set<std::string> received;
  std::set<int> queues;
  const auto deadline = std::chrono::steady_clock::now() + std::chrono::seconds(5);
  while (received.size() < sent.size() && std::chrono::steady_clock::now() < deadline) {
    for (std::uint16_t queue = 0; queue < 2; ++queue) {
      std::array<Frame, 32> frames;
      const auto count = (*port)->rx_burst(queue, frames);
      for (int i = 0; i < count; ++i) {
        const std::string bytes(frames[i].data, frames[i].data + frames[i].bytes);
        if (!sent.contains(bytes)) continue;
        received.insert(bytes);
        queues.insert(queue);
      }
      (*port)->release(std::span(frames).first(count));
    }
  }
  CHECK(received == sent);
  CHECK(queues.size() == 2);
  CHECK((*port)->counters().no_buffers == 0);

  // Whoever gives nothing back has no buffer for the next frame: it waits, which is counted.
  std::vector<Frame> held;
  const auto patience = std::chrono::steady_clock::now() + std::chrono::seconds(5);
  while ((*port)->counters().no_buffers == 0 && std::chrono::steady_clock::now() < patience) {
    const auto frame = make_frame(FrameSpec{});
    (void)sendto(fd, frame.data(), frame.size(), 0, reinterpret_cast<sockaddr*>(&to), sizeof to);
    for (std::uint16_t queue = 0; queue < 2; ++queue) {
      std::array<Frame, 32> frames;
      const auto count = (*port)->rx_burst(queue, frames);
      held.insert(held.end(), frames.begin(), frames.begin() + count);
    }
  }
  close(fd);
  CHECK((*port)->counters().no_buffers > 0);
  CHECK(held.size() > 3000);
  CHECK(held.size() <= 4096);
  (*port)->release(held);
}

}  // namespace
}  // namespace gradtap::dataplane
