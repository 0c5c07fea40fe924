#include "apps/commands/mirror_findings.h"

#include <algorithm>
#include <cerrno>
#include <chrono>
#include <cstring>
#include <string>
#include <utility>
#include <vector>

#include <arpa/inet.h>
#include <fmt/format.h>
#include <fmt/ranges.h>
#include <linux/ethtool.h>
#include <linux/if_ether.h>
#include <linux/if_packet.h>
#include <linux/sockios.h>
#include <net/if.h>
#include <poll.h>
#include <sys/ioctl.h>
#include <sys/socket.h>
#include <unistd.h>

#include "common/descriptor.h"
#include "dataplane/dpdk/dpdk_port.h"

namespace gradtap::commands {

namespace {

using dataplane::FrameDrop;
using dataplane::MirrorSample;

constexpr std::size_t kFrameBytesMax = 65536 + 256;
constexpr std::uint64_t kFramesMax = 2'000'000;

std::string reason() {
  return std::strerror(errno);  // NOLINT(concurrency-mt-unsafe)
}

// Whether the interface merges frames (an offload of the receiving side).
bool merges(int fd, const std::string& interface, std::uint32_t what) {
  ethtool_value value{what, 0};
  ifreq request{};
  std::memcpy(request.ifr_name, interface.c_str(), std::min(interface.size(), sizeof request.ifr_name - 1));
  request.ifr_data = reinterpret_cast<char*>(&value);  // NOLINT(cppcoreguidelines-pro-type-reinterpret-cast)
  if (::ioctl(fd, SIOCETHTOOL, &request) != 0) return false;
  return what == ETHTOOL_GFLAGS ? (value.data & ETH_FLAG_LRO) != 0 : value.data != 0;
}

// Empty: it listened for that long.
std::string listen(const std::string& interface, unsigned seconds, MirrorSample& sample) {
  const Descriptor socket(::socket(AF_PACKET, SOCK_RAW | SOCK_CLOEXEC, htons(ETH_P_ALL)));
  if (socket.get() < 0) return reason();
  sockaddr_ll place{};
  place.sll_family = AF_PACKET;
  place.sll_protocol = htons(ETH_P_ALL);
  place.sll_ifindex = static_cast<int>(::if_nametoindex(interface.c_str()));
  if (::bind(socket.get(), reinterpret_cast<const sockaddr*>(&place), sizeof place) != 0)  // NOLINT
    return reason();
  // Frames of a mirror are addressed to others.
  packet_mreq all{};
  all.mr_ifindex = place.sll_ifindex;
  all.mr_type = PACKET_MR_PROMISC;
  (void)::setsockopt(socket.get(), SOL_PACKET, PACKET_ADD_MEMBERSHIP, &all, sizeof all);
  const int buffer = 32 << 20;
  (void)::setsockopt(socket.get(), SOL_SOCKET, SO_RCVBUFFORCE, &buffer, sizeof buffer);
  std::vector<std::uint8_t> bytes(kFrameBytesMax);
  const auto until = std::chrono::steady_clock::now() + std::chrono::seconds(seconds);
  while (sample.frames < kFramesMax) {
    const auto left = std::chrono::duration_cast<std::chrono::milliseconds>(until - std::chrono::steady_clock::now());
    if (left.count() <= 0) break;
    pollfd ready{socket.get(), POLLIN, 0};
    if (::poll(&ready, 1, static_cast<int>(left.count())) <= 0) continue;
    sockaddr_ll from{};
    socklen_t size = sizeof from;
    const ssize_t got = ::recvfrom(socket.get(), bytes.data(), bytes.size(), MSG_TRUNC | MSG_DONTWAIT,
                                   reinterpret_cast<sockaddr*>(&from), &size);  // NOLINT
    if (got <= 0) continue;
    if (from.sll_pkttype == PACKET_OUTGOING) continue;
    const auto whole = static_cast<std::size_t>(got);
    sample.frame(ByteSpan(bytes.data(), std::min(whole, bytes.size())), static_cast<std::uint32_t>(whole));
  }
  return {};
}

// Where the job's bytes came from, against which ranks' ports the job file says are mirrored.
Finding job_finding(const JobSection& job, const MirrorSample& sample) {
  std::vector<std::string> seen;
  std::vector<std::string> silent;
  for (std::size_t rank = 0; rank < job.endpoints.size(); ++rank)
    (sample.sent[rank] > 0 ? seen : silent).push_back(job.endpoints[rank]);
  if (sample.job_frames == 0)
    return {
        Verdict::kWarning, "job",
        fmt::format("no frame between the {} hosts of \"{}\"", job.endpoints.size(), job.name),
        "nothing is wrong while it does not train; otherwise compare job.endpoints with the addresses that the ranks "
        "use (NCCL_SOCKET_IFNAME, GLOO_SOCKET_IFNAME), and the mirror session"};
  if (!silent.empty())
    return {
        Verdict::kWarning, "job",
        fmt::format("\"{}\": payload from {}; none from {}", job.name, fmt::join(seen, ", "), fmt::join(silent, ", ")),
        "of a ring every rank sends: mirror the ports of the silent ones, or say in job.mirrored which are mirrored"};
  return {Verdict::kOk, "job", fmt::format("\"{}\": payload from all {} hosts", job.name, seen.size()), ""};
}

void quality_findings(const NodeConfig& config, const MirrorSample& sample, Findings& found) {
  const auto wrong = [&](FrameDrop drop, const char* check, const char* what, const char* remedy) {
    if (const std::uint64_t count = sample.dropped(drop); count > 0)
      found.push_back({Verdict::kWrong, check, fmt::format("{} of {} frames: {}", count, sample.frames, what), remedy});
  };
  wrong(FrameDrop::kTruncated, "frames", "cut by the mirror",
        "mirror whole frames: no truncation, no header-only mode");
  wrong(FrameDrop::kSampled, "frames", "samples of sFlow", "this is no mirror: configure a port mirror (SPAN, ERSPAN)");
  wrong(FrameDrop::kSupersized, "frames", "merged into larger ones than were on the wire",
        "ethtool -K INTERFACE gro off lro off here, and tso off gso off where frames are mirrored by software");
  wrong(FrameDrop::kBadIpChecksum, "checksums", "wrong IP checksum", "a device on the way rewrites frames: find it");
  wrong(FrameDrop::kBadIcrc, "checksums", "wrong ICRC", "a device on the way rewrites frames: find it");
  if (config.tap.l4_checksum == L4Checksum::kRequired)
    wrong(FrameDrop::kBadTcpChecksum, "checksums", "wrong TCP checksum between hosts of the job",
          "a software switch mirrors frames before the card fills them in: ethtool -K INTERFACE tx off on the senders, "
          "or "
          "tap.l4_checksum = \"offload\"");
  const std::uint32_t usable = static_cast<std::uint32_t>(config.tap.frame_bytes) - dataplane::kAfPacketOverhead;
  if (sample.longest_bytes > usable)
    found.push_back({Verdict::kWrong, "frames",
                     fmt::format("one of {} bytes; a slot of tap.frame_bytes holds {}", sample.longest_bytes, usable),
                     "raise tap.frame_bytes to the next power of two"});
}

}  // namespace

Findings mirror_findings(const NodeConfig& config, unsigned seconds) {
  const std::string& interface = config.tap.interface;
  if (config.tap.kind != TapKind::kAfPacket) return {{Verdict::kSkipped, "mirror", "tap.kind is not af_packet", ""}};
  if (interface.empty() || interface.size() >= IFNAMSIZ || ::if_nametoindex(interface.c_str()) == 0)
    return {{Verdict::kWrong, "interface", fmt::format("there is no interface \"{}\"", interface),
             "correct tap.interface (ip link), or start the node in the namespace that has it"}};
  Findings found;
  const Descriptor control(::socket(AF_INET, SOCK_DGRAM | SOCK_CLOEXEC, 0));
  ifreq request{};
  std::memcpy(request.ifr_name, interface.c_str(), interface.size());
  const bool asked = ::ioctl(control.get(), SIOCGIFFLAGS, &request) == 0;
  const bool enabled = asked && (request.ifr_flags & IFF_UP) != 0;
  const bool up = enabled && (request.ifr_flags & IFF_RUNNING) != 0;
  found.push_back({up ? Verdict::kOk : Verdict::kWrong, "interface",
                   fmt::format("{} is {}", interface,
                               up        ? "up"
                               : enabled ? "up, and has no carrier"
                                         : "down"),
                   up        ? ""
                   : enabled ? "look at the cable and the switch's port"
                             : fmt::format("ip link set {} up", interface)});
  for (const auto& [flag, name] :
       {std::pair{std::uint32_t{ETHTOOL_GGRO}, "gro"}, {std::uint32_t{ETHTOOL_GFLAGS}, "lro"}})
    if (merges(control.get(), interface, flag))
      found.push_back({Verdict::kWarning, "interface", fmt::format("{} is on: it may merge frames", name),
                       fmt::format("ethtool -K {} {} off", interface, name)});

  std::vector<dataplane::IpAddress> endpoints;
  const JobSection* const job = config.jobs.empty() ? nullptr : &config.jobs.front();
  if (job != nullptr)
    for (const std::string& text : job->endpoints)
      if (const auto address = dataplane::parse_ip(text)) endpoints.push_back(*address);
  const bool roce = job != nullptr && job->transport == WireTransport::kNccl;
  MirrorSample sample(endpoints, roce ? dataplane::SampledTraffic::kRoce : dataplane::SampledTraffic::kTcp);
  if (const std::string error = listen(interface, seconds, sample); !error.empty()) {
    found.push_back({Verdict::kWrong, "mirror", fmt::format("cannot listen on {}: {}", interface, error),
                     "run as root, or with CAP_NET_RAW"});
    return found;
  }
  if (sample.frames == 0) {
    found.push_back({Verdict::kWarning, "mirror", fmt::format("no frame in {} s", seconds),
                     "nothing is wrong while nobody sends; otherwise look at the mirror session of the switch"});
    return found;
  }
  found.push_back({Verdict::kOk, "mirror",
                   fmt::format("{} frames in {} s, {} in tunnels, the longest {} bytes", sample.frames, seconds,
                               sample.tunnelled, sample.longest_bytes),
                   ""});
  quality_findings(config, sample, found);
  if (job != nullptr) found.push_back(job_finding(*job, sample));
  return found;
}

}  // namespace gradtap::commands
