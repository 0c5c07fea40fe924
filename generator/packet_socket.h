// PacketSocket: frames out of a network interface, at a rate.
//
// Purpose: a live fabric on a veth pair: each frame is sent whole through AF_PACKET, paced by bytes per second so that
// a monitor port is not overrun. Ownership: owns the socket. Threads: one; send() blocks while the interface's queue is
// full. The clock is a parameter, the waiting is the kernel's. Failure behaviour: a frame that cannot be sent is
// counted and the first reason kept; nothing else stops.
#pragma once

#include <cstdint>
#include <memory>
#include <string>

#include "common/clock.h"
#include "common/error.h"
#include "generator/fabric_frame.h"

namespace gradtap::generator {

class PacketSocket final : public FrameSink {
 public:
  [[nodiscard]] static Result<std::unique_ptr<PacketSocket>> open(const std::string& interface,
                                                                  std::uint64_t bytes_per_second, const Clock& clock);
  ~PacketSocket() override;
  PacketSocket(const PacketSocket&) = delete;
  PacketSocket& operator=(const PacketSocket&) = delete;

  void frame(std::uint64_t time_ns, ByteSpan bytes, const FrameNote& note) override;
  [[nodiscard]] std::uint64_t frames() const { return frames_; }
  [[nodiscard]] std::uint64_t unsent() const { return unsent_; }
  // Why frames could not be sent.
  [[nodiscard]] Status status() const;

 private:
  PacketSocket(int socket, std::string interface, std::uint64_t bytes_per_second, const Clock& clock)
      : socket_(socket), interface_(std::move(interface)), bytes_per_second_(bytes_per_second), clock_(clock) {}
  void pace(std::size_t bytes);

  int socket_;
  std::string interface_;
  std::uint64_t bytes_per_second_;  // 0: as fast as it goes
  const Clock& clock_;
  std::uint64_t due_ns_ = 0;  // when the next frame may leave
  std::uint64_t frames_ = 0;
  std::uint64_t unsent_ = 0;
  int first_error_ = 0;
};

}  // namespace gradtap::generator
