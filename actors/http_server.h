// HttpServer: the listening socket of the gateway, over cpp-httplib.
//
// Purpose: keep HTTP out of the actors. It parses nothing but HTTP; paths and bodies go to the handlers as they came.
// Threads: start and stop by one owner; handlers run on the server's own threads, up to connections_max at once; where
// there are more, the one that has waited longest gives way (connection_table.h). Invariants: whoever is not admitted
// is answered before a byte of the body is read; a body above body_bytes_max is refused with 413, a packed one with 415
// and one without a length with 411; a head has head_bytes_max at most; a request has a deadline as a whole, and each
// write one; a body for which no memory is left is refused with 503 before it is read. Failure behaviour: a handler
// never throws; what it answers is sent.
#pragma once

#include <atomic>
#include <cstdint>
#include <functional>
#include <map>
#include <memory>
#include <string>

#include "actors/access_guard.h"
#include "actors/http_answer.h"
#include "common/error.h"
#include "common/memory_ledger.h"

namespace gradtap::actors {

struct HttpServerOptions {
  std::string host = "127.0.0.1";
  std::uint16_t port = 0;  // 0: any free one
  unsigned connections_max = 64;
  std::size_t body_bytes_max = 16u << 20;
  std::size_t head_bytes_max = 64u << 10;
  unsigned request_timeout_ms = 5000;
  std::shared_ptr<MemoryLedger> memory = std::make_shared<MemoryLedger>();  // bodies are taken from it
};

struct HttpRequest {
  std::string method;
  std::string path;
  std::map<std::string, std::string> query;
  std::string session;  // X-Gradtap-Session
  std::string body;
  std::string caller;  // who was admitted, for the access log
};

// Writes a part of a stream; false when the peer has gone.
using ByteSink = std::function<bool(const char* data, std::size_t count)>;

struct HttpHandlers {
  // Whether a request may go on, from its head alone; and whether its body is what was admitted. Empty: all may.
  std::function<Result<Admission>(const RequestHead&)> admit;
  std::function<Status(const Admission&, std::string_view body)> check_body;
  std::function<HttpAnswer(HttpRequest&&)> answer;
  // For GET .../state and .../side: prepares (an error becomes the answer), then streams; false aborts the connection,
  // so that a cut stream is never taken for a whole one.
  std::function<Result<std::function<bool(const ByteSink&)>>(const HttpRequest&)> stream;
};

class HttpServer {
 public:
  HttpServer(HttpServerOptions options, HttpHandlers handlers);
  ~HttpServer();
  HttpServer(const HttpServer&) = delete;
  HttpServer& operator=(const HttpServer&) = delete;

  [[nodiscard]] Status start();
  void stop();
  // What happens to an accepted connection, on the calling thread; closes it.
  void serve(int socket);
  [[nodiscard]] std::uint16_t port() const { return port_; }
  [[nodiscard]] std::uint64_t requests() const;
  [[nodiscard]] std::uint64_t refused_bodies() const;
  [[nodiscard]] std::uint64_t waits_for_thread() const;  // connections that found every thread busy
  [[nodiscard]] std::uint64_t dropped() const;           // connections that gave way to newer ones
  [[nodiscard]] std::uint64_t late() const;              // requests that did not come to their end in time
  [[nodiscard]] std::uint64_t long_heads() const;        // heads of more than head_bytes_max

 private:
  struct Impl;
  std::unique_ptr<Impl> impl_;
  std::uint16_t port_ = 0;
};

}  // namespace gradtap::actors
