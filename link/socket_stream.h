// SocketStream: a TCP connection, plain or under TLS, that blocks, but never longer than a deadline, and that another
// thread can abort.
//
// Ownership: owns the socket. Threads: one at a time; abort() from any thread while the stream lives. Invariants: after
// an error the stream is closed and every later call fails. Failure behaviour: PEER_UNREACHABLE when the other side
// refuses or goes away, TIMEOUT at the deadline, and what link/session.h names.
#pragma once

#include <chrono>
#include <cstdint>
#include <memory>
#include <span>
#include <string>

#include "common/bytes.h"
#include "common/error.h"
#include "link/link_frame.h"
#include "link/session.h"

namespace gradtap::link {

using Deadline = std::chrono::steady_clock::time_point;

[[nodiscard]] inline Deadline after_ms(std::uint64_t ms) {
  return std::chrono::steady_clock::now() + std::chrono::milliseconds(ms);
}

// What a frame held, once it is checked.
struct Frame {
  FrameType type{};
  std::vector<std::uint8_t> header;
  std::vector<std::uint8_t> payload;
};

class SocketStream {
 public:
  explicit SocketStream(std::string peer);  // for messages
  ~SocketStream();
  SocketStream(const SocketStream&) = delete;
  SocketStream& operator=(const SocketStream&) = delete;

  // From `local_address` (any port) to address:port. Both are IP addresses.
  [[nodiscard]] Status connect(const std::string& local_address, const std::string& address, std::uint16_t port,
                               Deadline deadline);
  // Takes over an open socket that never blocks, and how bytes pass through it.
  [[nodiscard]] Status adopt(int socket, Session session);
  // From here on under TLS: shows this node's certificate, and takes none but the peer's, by its name.
  [[nodiscard]] Status secure(std::shared_ptr<const Identity> identity, Deadline deadline);

  [[nodiscard]] Status write_frame(FrameType type, ByteSpan header, ByteSpan payload, Deadline deadline);
  [[nodiscard]] Result<Frame> read_frame(Deadline deadline);

  // Whether an idle connection can no longer be used: closed, or the peer said something unasked.
  [[nodiscard]] bool stale();
  [[nodiscard]] bool open() const;
  [[nodiscard]] const Identity* identity() const;  // null: plain
  [[nodiscard]] std::chrono::steady_clock::time_point since() const;
  void close();
  void abort();

 private:
  [[nodiscard]] Status read(std::span<std::uint8_t> to, Deadline deadline);
  struct Impl;
  std::unique_ptr<Impl> impl_;
};

}  // namespace gradtap::link
