// ControlTunnel: two sockets spliced into one connection, for the middleman's traffic.
//
// Ownership: owns both sockets, and itself until they are closed. Threads: the link's own. Invariants: at most one
// buffer a direction is held; a byte is read only when the one before has been written. Failure behaviour: when one
// side closes or breaks, both are closed at once, so that each middleman sees a dead peer and not a silent one.
// Internal to the link.
#pragma once

#include <cstddef>
#include <functional>
#include <memory>
#include <vector>

#include <asio/ip/tcp.hpp>

#include "common/metrics.h"

namespace gradtap::link {

class ControlTunnel : public std::enable_shared_from_this<ControlTunnel> {
 public:
  // `held` is dropped when the tunnel ends: whatever counts it.
  ControlTunnel(asio::ip::tcp::socket left, asio::ip::tcp::socket right, std::size_t buffer_bytes, Counter& bytes,
                std::shared_ptr<void> held);

  void start();
  void close();

 private:
  struct Direction {
    asio::ip::tcp::socket* from = nullptr;
    asio::ip::tcp::socket* to = nullptr;
    std::vector<char> buffer;
  };
  void read(Direction& direction);

  asio::ip::tcp::socket left_;
  asio::ip::tcp::socket right_;
  Direction there_;
  Direction back_;
  Counter& bytes_;
  std::shared_ptr<void> held_;
};

}  // namespace gradtap::link
