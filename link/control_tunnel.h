// ControlTunnel: two connections spliced into one, for the middleman's traffic: the middleman's own on loopback, and
// one with the peer's node, which can be replaced by another one in between.
//
// Ownership: owns both connections, and itself until they are closed. Threads: the link's own. Invariants: at most one
// buffer a direction is held; a byte is read only when the one before has been written; when the connection with the
// peer is replaced, each side writes to the new one at once and reads the old one to its end first, so no byte is lost,
// doubled or overtaken. Failure behaviour: when one side closes or breaks, both are closed at once, so that each
// middleman sees a dead peer and not a silent one. Internal to the link.
#pragma once

#include <chrono>
#include <cstddef>
#include <cstdint>
#include <memory>
#include <vector>

#include "common/metrics.h"
#include "link/async_channel.h"

namespace gradtap::link {

class ControlTunnel : public std::enable_shared_from_this<ControlTunnel> {
 public:
  // `held` is dropped when the tunnel ends: whatever counts it.
  ControlTunnel(std::shared_ptr<AsyncChannel> local, std::shared_ptr<AsyncChannel> remote, std::size_t buffer_bytes,
                Counter& bytes, std::shared_ptr<void> held);

  void start();
  void close();

  // Before another connection is set up: from here on the end of the present one is no end of the tunnel. False: the
  // last replacement has not come to its end, or the tunnel is closed.
  [[nodiscard]] bool begin_renewal();
  // The other connection stands, on both sides.
  void renew(std::shared_ptr<AsyncChannel> next);
  // It came to nothing.
  void abandon_renewal();

  [[nodiscard]] const Identity* identity() const { return out_->session().identity(); }
  [[nodiscard]] std::chrono::steady_clock::time_point since() const { return since_; }

 private:
  void read_local();
  void write_remote(std::size_t count);
  void read_remote();
  void switch_out();
  void switch_in();

  const std::shared_ptr<AsyncChannel> local_;
  std::shared_ptr<AsyncChannel> out_;   // where the middleman's bytes go
  std::shared_ptr<AsyncChannel> in_;    // where the peer's come from: out_, or the one before it
  std::shared_ptr<AsyncChannel> next_;  // set up, and not written to yet
  std::vector<std::uint8_t> there_;
  std::vector<std::uint8_t> back_;
  Counter& bytes_;
  std::shared_ptr<void> held_;
  std::chrono::steady_clock::time_point since_ = std::chrono::steady_clock::now();
  bool closed_ = false;
  bool writing_ = false;
  bool renewing_ = false;
  bool in_ended_ = false;  // while it is being replaced
};

}  // namespace gradtap::link
