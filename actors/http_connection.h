// HttpConnection: one accepted socket as the HTTP library's stream, with bounds that the library lacks.
//
// Purpose: a head has at most head_bytes, a request one deadline as a whole (a body earns more time by the MiB
// that arrive), a write its own. Ownership: owns the socket. Threads: the one that serves it; the table may shut it
// down. Failure behaviour: read and write answer -1, and the connection ends after that request. Internal to the
// server.
#pragma once

#include <array>
#include <atomic>
#include <chrono>
#include <cstdint>
#include <string>

#include <httplib.h>

#include "actors/access_guard.h"
#include "actors/connection_table.h"
#include "common/memory_ledger.h"

namespace gradtap::actors {

struct HttpConnectionLimits {
  std::chrono::milliseconds request{5000};
  std::chrono::milliseconds idle{5000};  // between requests
  std::size_t head_bytes = 64u << 10;
};

// Of all connections of a server.
struct HttpConnectionCounters {
  std::atomic<std::uint64_t> late{0};        // requests that did not come to their end in time
  std::atomic<std::uint64_t> long_heads{0};  // heads of more than head_bytes
};

class HttpConnection final : public httplib::Stream {
 public:
  HttpConnection(int socket, const HttpConnectionLimits& limits, ConnectionTable& table,
                 HttpConnectionCounters& counters);
  ~HttpConnection() override;
  HttpConnection(const HttpConnection&) = delete;
  HttpConnection& operator=(const HttpConnection&) = delete;

  // The first byte of another request is there. False: the peer went, said nothing in time, or `stopped`.
  [[nodiscard]] bool wait_for_request(const std::atomic<socket_t>& listening);
  void begin_request();
  void head_ends();  // what follows is the body
  void end_request();
  [[nodiscard]] bool head_ended() const { return head_ended_; }
  // No further request: what the peer still sends is not one.
  void close_after() { closing_ = true; }
  [[nodiscard]] bool closing() const { return closing_ || failed_; }
  // Takes what the peer still sends for a moment, so that it reads the answer before it learns that nobody listens.
  void linger();

  void trust(bool trusted) { table_.trust(entry_, trusted); }
  void busy() { table_.busy(entry_, true, std::chrono::steady_clock::now()); }

  Admission admission;  // of the request at hand
  MemoryLease memory;   // of its body

  // httplib::Stream
  bool is_readable() const override;
  bool is_writable() const override;
  ssize_t read(char* bytes, size_t count) override;
  ssize_t write(const char* bytes, size_t count) override;
  void get_remote_ip_and_port(std::string& ip, int& port) const override;
  void get_local_ip_and_port(std::string& ip, int& port) const override;
  socket_t socket() const override { return socket_; }

  // The one that this thread serves.
  static HttpConnection& current();

 private:
  using Clock = std::chrono::steady_clock;
  [[nodiscard]] ssize_t receive(char* bytes, size_t count);

  const int socket_;
  const HttpConnectionLimits limits_;
  ConnectionTable& table_;
  HttpConnectionCounters& counters_;
  std::string address_;
  int port_ = 0;
  ConnectionTable::Handle entry_;
  Clock::time_point deadline_;
  std::uint64_t request_bytes_ = 0;
  std::array<char, 16384> buffer_;
  std::size_t begin_ = 0;
  std::size_t end_ = 0;
  bool head_ended_ = false;
  bool closing_ = false;
  bool failed_ = false;
};

}  // namespace gradtap::actors
