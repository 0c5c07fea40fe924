// AsyncChannel: a TCP connection, plain or under TLS, that never blocks, on the link's own thread. Internal to the
// link.
//
// Ownership: owns the socket; the caller keeps the channel alive until `done` has run (by what `done` holds). Threads:
// the link's own. Invariants: at most one reading and one writing call at a time; `done` never runs inside the call
// that was given it. Failure behaviour: an Error handed to `done`; close() ends what waits.
#pragma once

#include <cstddef>
#include <cstdint>
#include <functional>
#include <span>
#include <utility>

#include <asio/ip/tcp.hpp>

#include "common/bytes.h"
#include "common/error.h"
#include "link/session.h"

namespace gradtap::link {

class AsyncChannel {
 public:
  explicit AsyncChannel(asio::ip::tcp::socket socket);  // plain until secure()
  AsyncChannel(const AsyncChannel&) = delete;
  AsyncChannel& operator=(const AsyncChannel&) = delete;

  using Done = std::function<void(Status)>;

  // The socket is connected: no call on it blocks from here on.
  void begin();
  void secure(std::shared_ptr<const Identity> identity, Side side, Done done);
  // Up to to.size() bytes; 0: the peer has ended, in good order.
  void read_some(std::span<std::uint8_t> to, std::function<void(Result<std::size_t>)> done);
  void read(std::span<std::uint8_t> to, Done done);  // all of it
  void write(ByteSpan bytes, Done done);             // all of it
  // Says that no more is sent.
  void finish(Done done);
  void close();

  [[nodiscard]] asio::ip::tcp::socket& socket() { return socket_; }
  [[nodiscard]] const Session& session() const { return session_; }
  // Hands out socket and session; the channel is closed afterwards. -1: the socket cannot be handed out.
  [[nodiscard]] std::pair<int, Session> release();

 private:
  // Tries until the attempt wants nothing more, and waits in between.
  template <class Attempt>
  void drive(Attempt attempt, Done done, bool waited);

  asio::ip::tcp::socket socket_;
  Session session_;
};

}  // namespace gradtap::link
