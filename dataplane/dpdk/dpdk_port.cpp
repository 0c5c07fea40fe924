#include "dataplane/dpdk/dpdk_port.h"

#include <algorithm>
#include <array>
#include <atomic>
#include <cstring>
#include <utility>
#include <vector>

#include <fmt/format.h>
#include <net/if.h>
#include <rte_dev.h>
#include <rte_errno.h>
#include <rte_ethdev.h>
#include <rte_mbuf.h>
#include <rte_mempool.h>
#include <sys/ioctl.h>
#include <sys/resource.h>
#include <sys/socket.h>
#include <unistd.h>

#include "dataplane/capture_file.h"

namespace gradtap::dataplane {
namespace {

constexpr std::uint32_t kVlanBytes = 8;  // two tags
constexpr std::size_t kBurst = 256;

std::atomic<unsigned> next_device{0};

// A virtual device with its pool; both go when it does.
class Device {
 public:
  Device() = default;
  Device(Device&& other) noexcept
      : name(std::exchange(other.name, {})), pool(std::exchange(other.pool, nullptr)), port(other.port) {}
  Device& operator=(Device&&) = delete;
  ~Device() {
    if (!name.empty()) {
      rte_eth_dev_stop(port);
      rte_eth_dev_close(port);
      rte_eal_hotplug_remove("vdev", name.c_str());
    }
    // Frames that somebody still holds keep their memory: leaking the pool is the safe way out.
    if (pool != nullptr && rte_mempool_in_use_count(pool) == 0) rte_mempool_free(pool);
  }

  std::string name;
  rte_mempool* pool = nullptr;
  std::uint16_t port = 0;
};

Status make_pool(Device& device, std::uint32_t frames, std::uint32_t cache, std::uint32_t room) {
  const std::string name = fmt::format("gradtap{}", next_device.fetch_add(1));
  device.pool = rte_pktmbuf_pool_create(name.c_str(), frames, cache, 0,
                                        static_cast<std::uint16_t>(room + RTE_PKTMBUF_HEADROOM), SOCKET_ID_ANY);
  if (device.pool != nullptr) return {};
  return fail(ErrorCode::kPortOpen, "no memory for the packet buffers", name,
              fmt::format("{} buffers of {} bytes ({} MiB)", frames, room, std::uint64_t{frames} * (room + 384) >> 20),
              rte_strerror(rte_errno), "raise dpdk memory_mb (or hugepages), or lower pool_frames");
}

Status start_device(Device& device, const std::string& driver, const std::string& arguments, std::uint16_t queues,
                    std::uint16_t descriptors, std::uint32_t mtu_bytes, const std::string& where,
                    const std::string& remedy) {
  const std::string name = fmt::format("{}{}", driver, next_device.fetch_add(1));
  int status = rte_eal_hotplug_add("vdev", name.c_str(), arguments.c_str());
  const auto failed = [&](const char* what) -> Status {
    return fail(ErrorCode::kPortOpen, what, where, {}, rte_strerror(status < 0 ? -status : rte_errno), remedy);
  };
  if (status != 0) return failed("the interface or file cannot be opened");
  device.name = name;
  status = rte_eth_dev_get_port_by_name(name.c_str(), &device.port);
  if (status != 0) return failed("the driver made no port");
  rte_eth_conf settings{};
  if (mtu_bytes != 0) settings.rxmode.mtu = mtu_bytes;
  // Only the ring is sent anything, but the driver for interfaces pairs its queues.
  rte_eth_dev_info info{};
  status = rte_eth_dev_info_get(device.port, &info);
  if (status != 0) return failed("the port does not describe itself");
  const auto sends = static_cast<std::uint16_t>(std::min(queues, info.max_tx_queues));
  status = rte_eth_dev_configure(device.port, queues, sends, &settings);
  if (status != 0) return failed("the port refuses its settings");
  for (std::uint16_t i = 0; i < queues; ++i) {
    status =
        rte_eth_rx_queue_setup(device.port, i, descriptors, static_cast<unsigned>(SOCKET_ID_ANY), nullptr, device.pool);
    if (status != 0) return failed("a receive queue cannot be set up");
  }
  for (std::uint16_t i = 0; i < sends; ++i) {
    status = rte_eth_tx_queue_setup(device.port, i, descriptors, static_cast<unsigned>(SOCKET_ID_ANY), nullptr);
    if (status != 0) return failed("a send queue cannot be set up");
  }
  status = rte_eth_dev_start(device.port);
  if (status != 0) return failed("the port does not start");
  // Mirrored frames bear foreign addresses. Drivers that cannot do it receive everything anyway.
  (void)rte_eth_promiscuous_enable(device.port);
  return {};
}

// Written by the queue's thread alone, once a burst; read by anybody.
struct alignas(64) QueueCounters {
  std::atomic<std::uint64_t> frames{0};
  std::atomic<std::uint64_t> bytes{0};
  std::atomic<std::uint64_t> oversized{0};

  void add(std::uint64_t more_frames, std::uint64_t more_bytes, std::uint64_t more_oversized) {
    const auto raise = [](std::atomic<std::uint64_t>& counter, std::uint64_t by) {
      counter.store(counter.load(std::memory_order_relaxed) + by, std::memory_order_relaxed);
    };
    raise(frames, more_frames);
    raise(bytes, more_bytes);
    raise(oversized, more_oversized);
  }
};

class DpdkPort : public Port {
 public:
  DpdkPort(Device device, std::uint16_t queues, std::string description)
      : device_(std::move(device)), counters_(queues), description_(std::move(description)) {}

  [[nodiscard]] std::uint16_t queue_count() const override { return static_cast<std::uint16_t>(counters_.size()); }

  void release(std::span<const Frame> frames) override {
    std::array<rte_mbuf*, kBurst> mbufs;
    while (!frames.empty()) {
      const std::size_t count = std::min(frames.size(), mbufs.size());
      for (std::size_t i = 0; i < count; ++i) mbufs[i] = static_cast<rte_mbuf*>(frames[i].handle);
      rte_pktmbuf_free_bulk(mbufs.data(), static_cast<unsigned>(count));
      frames = frames.subspan(count);
    }
  }

  [[nodiscard]] PortCounters counters() const override {
    PortCounters sum;
    for (const QueueCounters& queue : counters_) {
      sum.frames += queue.frames.load(std::memory_order_relaxed);
      sum.bytes += queue.bytes.load(std::memory_order_relaxed);
      sum.oversized += queue.oversized.load(std::memory_order_relaxed);
    }
    sum.no_buffers = no_buffers_.load(std::memory_order_relaxed);
    return sum;
  }
  [[nodiscard]] std::string describe() const override { return description_; }

 protected:
  std::uint16_t receive(std::uint16_t queue, std::span<rte_mbuf*> mbufs) {
    const std::uint16_t count =
        rte_eth_rx_burst(device_.port, queue, mbufs.data(), static_cast<std::uint16_t>(mbufs.size()));
    // The driver does not count it.
    if (count == 0 && rte_mempool_empty(device_.pool) != 0) no_buffers_.fetch_add(1, std::memory_order_relaxed);
    return count;
  }
  // Fills `out` with the frames that are whole; the others are freed. is_cut(i): mbuf i was captured shorter than it
  // was.
  template <class F>
  std::uint16_t hand_out(std::uint16_t queue, std::span<rte_mbuf* const> mbufs, std::span<Frame> out, F is_cut) {
    std::uint16_t filled = 0;
    std::uint64_t bytes = 0;
    for (std::size_t i = 0; i < mbufs.size(); ++i) {
      rte_mbuf* const mbuf = mbufs[i];
      if (is_cut(i) || mbuf->nb_segs != 1) {
        rte_pktmbuf_free(mbuf);
        continue;
      }
      Frame& frame = out[filled++];
      frame.data = rte_pktmbuf_mtod(mbuf, const std::uint8_t*);
      frame.bytes = rte_pktmbuf_data_len(mbuf);
      frame.wire_bytes = 0;
      frame.handle = mbuf;
      bytes += frame.bytes;
    }
    counters_[queue].add(filled, bytes, mbufs.size() - filled);
    return filled;
  }
  static bool never_cut(std::size_t /*index*/) { return false; }

  Device device_;

 private:
  std::vector<QueueCounters> counters_;
  std::atomic<std::uint64_t> no_buffers_{0};
  std::string description_;
};

// An interface, or a ring: whatever is there now is taken.
class LivePort final : public DpdkPort {
 public:
  using DpdkPort::DpdkPort;
  [[nodiscard]] std::uint16_t rx_burst(std::uint16_t queue, std::span<Frame> out) override {
    std::array<rte_mbuf*, kBurst> mbufs;
    const std::uint16_t count = receive(queue, std::span(mbufs).first(std::min(out.size(), mbufs.size())));
    return hand_out(queue, std::span(mbufs).first(count), out, never_cut);
  }
  [[nodiscard]] bool exhausted() const override { return false; }
  [[nodiscard]] bool live() const override { return true; }
};

class PcapPort final : public DpdkPort {
 public:
  PcapPort(Device device, std::string description, std::uint64_t records, std::vector<std::uint64_t> cut)
      : DpdkPort(std::move(device), 1, std::move(description)), records_(records), cut_(std::move(cut)) {}

  [[nodiscard]] std::uint16_t rx_burst(std::uint16_t queue, std::span<Frame> out) override {
    std::array<rte_mbuf*, kBurst> mbufs;
    // The driver takes a record from the file before it looks for a buffer.
    const std::size_t room = rte_mempool_avail_count(device_.pool);
    const std::size_t wanted = std::min({out.size(), mbufs.size(), room});
    const std::uint64_t first = received_.load(std::memory_order_relaxed);
    const std::uint16_t count = receive(queue, std::span(mbufs).first(wanted));
    const std::uint16_t filled = hand_out(queue, std::span(mbufs).first(count), out, [&](std::size_t i) {
      const bool cut = next_cut_ < cut_.size() && cut_[next_cut_] == first + i;
      if (cut) ++next_cut_;
      return cut;
    });
    received_.store(first + count, std::memory_order_release);
    return filled;
  }
  [[nodiscard]] bool exhausted() const override { return received_.load(std::memory_order_acquire) >= records_; }
  [[nodiscard]] bool live() const override { return false; }

 private:
  std::uint64_t records_;
  std::vector<std::uint64_t> cut_;  // records captured shorter than on the wire, ascending
  std::size_t next_cut_ = 0;
  std::atomic<std::uint64_t> received_{0};
};

// The driver's ring leads from its send queue to its receive queue.
class LoopFeed final : public RingFeed {
 public:
  LoopFeed(std::uint16_t port, rte_mempool* pool, std::uint32_t frame_bytes)
      : port_(port), pool_(pool), frame_bytes_(frame_bytes) {}

  [[nodiscard]] std::size_t offer(std::span<const ByteSpan> frames) override {
    std::size_t offered = 0;
    while (offered < frames.size()) {
      const auto part = frames.subspan(offered, std::min(frames.size() - offered, kBurst));
      const std::size_t sent = offer_burst(part);
      offered += sent;
      if (sent < part.size()) break;
    }
    return offered;
  }

 private:
  [[nodiscard]] std::size_t offer_burst(std::span<const ByteSpan> frames) {
    std::array<rte_mbuf*, kBurst> mbufs;
    std::uint16_t filled = 0;
    for (const ByteSpan frame : frames) {
      if (frame.size() > frame_bytes_) break;
      rte_mbuf* const mbuf = rte_pktmbuf_alloc(pool_);
      if (mbuf == nullptr) break;
      std::memcpy(rte_pktmbuf_mtod(mbuf, std::uint8_t*), frame.data(), frame.size());
      mbuf->data_len = static_cast<std::uint16_t>(frame.size());
      mbuf->pkt_len = mbuf->data_len;
      mbufs[filled++] = mbuf;
    }
    const std::uint16_t sent = rte_eth_tx_burst(port_, 0, mbufs.data(), filled);
    if (sent < filled) rte_pktmbuf_free_bulk(&mbufs[sent], filled - sent);
    return sent;
  }

  std::uint16_t port_;
  rte_mempool* pool_;
  std::uint32_t frame_bytes_;
};

Result<std::uint32_t> interface_mtu(const std::string& interface) {
  const auto failed = [&](const char* what) {
    return fail(ErrorCode::kPortOpen, what, interface, {}, std::strerror(errno),
                "name an interface of this network namespace (ip link)");
  };
  ifreq request{};
  if (interface.empty() || interface.size() >= sizeof request.ifr_name || interface.find(',') != std::string::npos) {
    errno = EINVAL;
    return failed("not an interface name");
  }
  const int fd = socket(AF_INET, SOCK_DGRAM | SOCK_CLOEXEC, 0);
  if (fd < 0) return failed("no socket");
  std::memcpy(request.ifr_name, interface.c_str(), interface.size());
  const int status = ioctl(fd, SIOCGIFMTU, &request);
  close(fd);
  if (status != 0) return failed("the interface has no MTU");
  return static_cast<std::uint32_t>(request.ifr_mtu);
}

}  // namespace

Result<std::unique_ptr<Port>> open_af_packet_port(Eal&, const AfPacketConfig& config) {
  const auto impossible = [&](const char* what, std::string expected, std::uint64_t actual) {
    return fail(ErrorCode::kConfigImpossibleValue, what, config.interface, std::move(expected), std::to_string(actual),
                "correct the port's settings");
  };
  const std::uint32_t slot = config.frame_bytes;
  if (slot < 2048 || slot > 32768 || (slot & (slot - 1)) != 0) {
    return impossible("frame_bytes is impossible", "a power of two from 2048 to 32768", slot);
  }
  if (config.queues < 1 || config.queues > 16) return impossible("queues is impossible", "1 to 16", config.queues);
  if (config.ring_frames < 64 || config.ring_frames > (1U << 20) || config.ring_frames % 2 != 0) {
    return impossible("ring_frames is impossible", "an even number from 64 to 1048576", config.ring_frames);
  }
  if (config.pool_frames < 512 || config.pool_frames > (1U << 24)) {
    return impossible("pool_frames is impossible", "512 to 16777216", config.pool_frames);
  }
  const auto mtu = interface_mtu(config.interface);
  if (!mtu) return std::unexpected(mtu.error());
  const std::uint32_t usable = slot - kAfPacketOverhead;
  const std::uint32_t largest = *mtu + RTE_ETHER_HDR_LEN + kVlanBytes;
  if (largest > usable) {
    return fail(ErrorCode::kPortFrameTooLarge, "frames of this interface could be cut", config.interface,
                fmt::format("at most {} bytes a frame (frame_bytes {} - {})", usable, slot, kAfPacketOverhead),
                fmt::format("MTU {}: frames of up to {} bytes", *mtu, largest),
                fmt::format("set frame_bytes to {} or more, or lower the MTU", largest + kAfPacketOverhead));
  }
  Device device;
  GRADTAP_TRY(make_pool(device, config.pool_frames, 256, slot));

  const std::uint64_t locked = std::uint64_t{2} * slot * config.ring_frames * config.queues;
  rlimit limit{};
  getrlimit(RLIMIT_MEMLOCK, &limit);
  std::string remedy = "run as root in the interface's namespace; bring the interface up (ip link set up)";
  if (limit.rlim_cur != RLIM_INFINITY && locked > limit.rlim_cur) {
    remedy += fmt::format("; the rings lock {} bytes and RLIMIT_MEMLOCK is {}: lower ring_frames or raise the limit",
                          locked, limit.rlim_cur);
  }
  const std::string arguments = fmt::format(
      "iface={},qpairs={},blocksz={},framesz={},framecnt={}", config.interface, config.queues,
      std::max<std::uint32_t>(slot, static_cast<std::uint32_t>(sysconf(_SC_PAGESIZE))), slot, config.ring_frames);
  const auto descriptors = static_cast<std::uint16_t>(512);
  GRADTAP_TRY(
      start_device(device, "net_af_packet", arguments, config.queues, descriptors, 0, config.interface, remedy));
  return std::make_unique<LivePort>(std::move(device), config.queues,
                                    fmt::format("af_packet {} ({} queues, slots of {} bytes, {} a queue, MTU {})",
                                                config.interface, config.queues, slot, config.ring_frames, *mtu));
}

Result<std::unique_ptr<Port>> open_pcap_port(Eal&, const PcapConfig& config) {
  if (config.file.find(',') != std::string::npos) {
    return fail(ErrorCode::kPortUnsupported, "a comma in the file's name cannot be passed to the driver", config.file,
                {}, {}, "rename the file");
  }
  if (config.pool_frames < 64) {
    return fail(ErrorCode::kConfigImpossibleValue, "pool_frames is impossible", config.file, "64 or more",
                std::to_string(config.pool_frames), "correct the port's settings");
  }
  const auto file = CaptureFile::open(config.file);
  if (!file) return std::unexpected(file.error());
  auto walker = file->walk();
  if (!walker) return std::unexpected(walker.error());
  if (walker->is_pcapng()) {
    // The driver's library refuses interfaces of different snap length, and its record count would not be ours.
    return fail(ErrorCode::kCaptureMalformed, "not a classic pcap file", config.file, "a pcap file", "a pcapng file",
                "convert it: editcap -F pcap IN OUT");
  }
  std::vector<std::uint64_t> cut;
  std::uint64_t records = 0;
  std::uint32_t largest = 0;
  CaptureRecord record;
  while (true) {
    const auto more = walker->next(record);
    if (!more) return std::unexpected(more.error());
    if (!*more) break;
    if (record.bytes.size() < record.wire_bytes) cut.push_back(records);
    largest = std::max(largest, static_cast<std::uint32_t>(record.bytes.size()));
    ++records;
  }
  // Buffers as large as the largest record, so that none is spread over several; larger ones are refused.
  constexpr std::uint32_t kMaxRoom = 65535 - RTE_PKTMBUF_HEADROOM;
  const std::uint32_t room = std::clamp<std::uint32_t>((largest + 63) & ~63U, 2048, kMaxRoom);
  Device device;
  // No per-thread caches: the number of free buffers must be exact.
  GRADTAP_TRY(make_pool(device, config.pool_frames, 0, room));
  GRADTAP_TRY(start_device(device, "net_pcap", fmt::format("rx_pcap={}", config.file), 1, 512, 0, config.file,
                           "check that the file is a classic pcap file that this user can read"));
  return std::make_unique<PcapPort>(std::move(device),
                                    fmt::format("pcap {} ({} records, {} cut)", config.file, records, cut.size()),
                                    records, std::move(cut));
}

Result<Ring> open_ring_port(Eal&, const RingConfig& config) {
  const auto impossible = [](const char* what, std::string expected, std::uint32_t actual) {
    return fail(ErrorCode::kConfigImpossibleValue, what, "ring", std::move(expected), std::to_string(actual),
                "correct the port's settings");
  };
  if (config.frame_bytes < 64 || config.frame_bytes > 32768)
    return impossible("frame_bytes is impossible", "64 to 32768", config.frame_bytes);
  if (config.pool_frames < 64 || config.pool_frames > (1U << 24))
    return impossible("pool_frames is impossible", "64 to 16777216", config.pool_frames);
  Device device;
  GRADTAP_TRY(make_pool(device, config.pool_frames, std::min(config.pool_frames / 4, 256U), config.frame_bytes));
  GRADTAP_TRY(start_device(device, "net_ring", "", 1, 512, 0, "ring", "check that DPDK's ring driver is installed"));
  auto feed = std::make_unique<LoopFeed>(device.port, device.pool, config.frame_bytes);
  auto port = std::make_unique<LivePort>(std::move(device), static_cast<std::uint16_t>(1),
                                         fmt::format("ring (frames of up to {} bytes)", config.frame_bytes));
  return Ring{std::move(port), std::move(feed)};
}

}  // namespace gradtap::dataplane
