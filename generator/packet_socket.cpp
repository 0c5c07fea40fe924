#include "generator/packet_socket.h"

#include <algorithm>
#include <cerrno>
#include <cstring>
#include <ctime>

#include <linux/if_packet.h>
#include <net/if.h>
#include <sys/socket.h>
#include <unistd.h>

#include "common/clock.h"

namespace gradtap::generator {
namespace {

constexpr std::uint64_t kWaitAboveNs = 200'000;  // shorter waits cost more than they give
constexpr std::uint64_t kBurstNs = 2'000'000;    // what may be caught up after a pause
constexpr int kSendBufferBytes = 4 << 20;
constexpr int kFullQueueTries = 10'000;

void wait_ns(std::uint64_t ns) {
  timespec time{static_cast<time_t>(ns / kNsPerSecond), static_cast<long>(ns % kNsPerSecond)};
  while (nanosleep(&time, &time) != 0 && errno == EINTR) {
  }
}

}  // namespace

Result<std::unique_ptr<PacketSocket>> PacketSocket::open(const std::string& interface, std::uint64_t bytes_per_second,
                                                         const Clock& clock) {
  const auto refuse = [&](const char* what) {
    return fail(ErrorCode::kPortOpen, what, interface, {}, std::strerror(errno),
                "it must exist, and sending raw frames needs CAP_NET_RAW");
  };
  const unsigned index = if_nametoindex(interface.c_str());
  if (index == 0) return refuse("the interface to send on is not there");
  const int socket = ::socket(AF_PACKET, SOCK_RAW | SOCK_CLOEXEC, 0);
  if (socket < 0) return refuse("no socket for raw frames");
  std::unique_ptr<PacketSocket> made(new PacketSocket(socket, interface, bytes_per_second, clock));
  sockaddr_ll address{};
  address.sll_family = AF_PACKET;
  // Protocol 0: nothing is received.
  address.sll_ifindex = static_cast<int>(index);
  if (bind(socket, reinterpret_cast<const sockaddr*>(&address), sizeof address) != 0)
    return refuse("the interface cannot be sent on");
  (void)setsockopt(socket, SOL_SOCKET, SO_SNDBUF, &kSendBufferBytes, sizeof kSendBufferBytes);
  return made;
}

PacketSocket::~PacketSocket() {
  ::close(socket_);
}

void PacketSocket::pace(std::size_t bytes) {
  if (bytes_per_second_ == 0) return;
  const std::uint64_t now = clock_.monotonic_ns();
  due_ns_ = std::max(due_ns_, now > kBurstNs ? now - kBurstNs : 0);
  if (due_ns_ > now + kWaitAboveNs) wait_ns(due_ns_ - now);
  due_ns_ += static_cast<std::uint64_t>(bytes) * kNsPerSecond / bytes_per_second_;
}

void PacketSocket::frame(std::uint64_t, ByteSpan bytes, const FrameNote&) {
  pace(bytes.size());
  for (int tries = 0;; ++tries) {
    const ssize_t sent = ::send(socket_, bytes.data(), bytes.size(), 0);
    if (sent == static_cast<ssize_t>(bytes.size())) {
      frames_ += 1;
      return;
    }
    const bool again = sent < 0 && (errno == EINTR || errno == ENOBUFS || errno == EAGAIN);
    if (again && tries < kFullQueueTries) {
      wait_ns(100'000);
      continue;
    }
    unsent_ += 1;
    if (first_error_ == 0) first_error_ = sent < 0 ? errno : EMSGSIZE;
    return;
  }
}

Status PacketSocket::status() const {
  if (unsent_ == 0) return {};
  return fail(ErrorCode::kPortOpen, "frames could not be sent", interface_, {},
              std::to_string(unsent_) + " frames, the first: " + std::strerror(first_error_),
              "the interface must be up, with an MTU above the path MTU and its headers");
}

}  // namespace gradtap::generator
