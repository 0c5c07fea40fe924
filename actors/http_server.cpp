#include "actors/http_server.h"

#include <chrono>
#include <condition_variable>
#include <deque>
#include <mutex>
#include <optional>
#include <thread>
#include <vector>

#include <httplib.h>
#include <sys/socket.h>

#include "actors/connection_table.h"
#include "actors/http_connection.h"
#include "actors/page_files.h"

namespace gradtap::actors {

namespace {

// An idle connection holds a thread; clients connect again without a loss.
constexpr std::chrono::milliseconds kKeepAlive{5000};
constexpr int kStartPolls = 10'000;
// The page runs its own scripts, speaks to this node, and is shown in no frame.
constexpr const char* kPagePolicy =
    "default-src 'none'; script-src 'self'; style-src 'self'; img-src 'self'; connect-src 'self'; base-uri 'none'; "
    "form-action 'none'; frame-ancestors 'none'";
constexpr int kBacklog = 128;
// As it came, as it goes to the actors, and what they read out of it.
constexpr std::uint64_t kBodyCopies = 3;
// A connection has at least this long before it may have to give way.
constexpr std::chrono::milliseconds kGrace{100};
constexpr std::chrono::milliseconds kAskAgain{20};

// httplib's own pool queues accepted connections without a bound; this one makes the accept loop wait instead, until
// another connection has ended or given way.
class BoundedPool final : public httplib::TaskQueue {
 public:
  BoundedPool(unsigned threads, std::atomic<std::uint64_t>& waits, ConnectionTable& table)
      : waits_(waits), table_(table) {
    for (unsigned i = 0; i < threads; ++i) threads_.emplace_back([this] { work(); });
  }

  void enqueue(std::function<void()> task) override {
    std::unique_lock lock(mutex_);
    if (idle_ <= tasks_.size()) {
      waits_.fetch_add(1, std::memory_order_relaxed);
      const auto room = [this] { return stopping_ || idle_ > tasks_.size(); };
      while (!room()) {
        lock.unlock();
        table_.drop_one(std::chrono::steady_clock::now(), kGrace);
        lock.lock();
        room_.wait_for(lock, kAskAgain, room);
      }
    }
    tasks_.push_back(std::move(task));
    work_.notify_one();
  }

  void shutdown() override {
    {
      const std::lock_guard lock(mutex_);
      stopping_ = true;
    }
    work_.notify_all();
    room_.notify_all();
    for (std::thread& thread : threads_) thread.join();
  }

 private:
  void work() {
    for (;;) {
      std::unique_lock lock(mutex_);
      ++idle_;
      room_.notify_one();
      work_.wait(lock, [this] { return stopping_ || !tasks_.empty(); });
      --idle_;
      if (tasks_.empty()) return;
      auto task = std::move(tasks_.front());
      tasks_.pop_front();
      lock.unlock();
      task();
    }
  }

  std::atomic<std::uint64_t>& waits_;
  ConnectionTable& table_;
  std::vector<std::thread> threads_;
  std::mutex mutex_;
  std::condition_variable work_;
  std::condition_variable room_;
  std::deque<std::function<void()>> tasks_;
  std::size_t idle_ = 0;
  bool stopping_ = false;
};

HttpRequest to_request(const httplib::Request& from) {
  HttpRequest request;
  request.method = from.method;
  request.path = from.path;
  for (const auto& [key, value] : from.params) request.query.emplace(key, value);
  request.session = from.get_header_value("X-Gradtap-Session");
  request.body = from.body;
  request.caller = HttpConnection::current().admission.caller;
  return request;
}

bool takes_body(const std::string& method) {
  return method == "POST" || method == "PUT" || method == "DELETE";
}

bool is_without_length(const httplib::Request& request) {
  return request.has_header("Transfer-Encoding") ||
         ((request.method == "POST" || request.method == "PUT") && !request.has_header("Content-Length"));
}

std::uint64_t announced_bytes(const httplib::Request& request) {
  return request.get_header_value<std::uint64_t>("Content-Length");
}

void give(httplib::Response& to, const HttpAnswer& answer) {
  to.status = answer.status;
  if (answer.status == 401) to.set_header("WWW-Authenticate", "GT1, Bearer");
  to.set_content(answer.body, answer.type.c_str());
}

}  // namespace

// httplib's server on connections of our own.
class BoundedServer final : public httplib::Server {
 public:
  BoundedServer(const HttpServerOptions& options, ConnectionTable& table, HttpConnectionCounters& counters)
      : table_(table), counters_(counters) {
    limits_.request = std::chrono::milliseconds(options.request_timeout_ms);
    limits_.idle = kKeepAlive;
    limits_.head_bytes = options.head_bytes_max;
  }
  // httplib asks for a backlog of 5.
  void widen_backlog() { (void)::listen(svr_sock_.load(), kBacklog); }
  void serve(socket_t socket) {
    HttpConnection connection(socket, limits_, table_, counters_);
    bool unread = false;
    while (connection.wait_for_request(svr_sock_)) {
      bool closed = false;
      connection.begin_request();
      const bool answered =
          process_request(connection, false, closed, [&](httplib::Request&) { connection.head_ends(); });
      connection.end_request();
      // After a head that is none, nothing that follows can be trusted to be one.
      unread = connection.closing() || !connection.head_ended();
      if (!answered || closed || unread) break;
    }
    if (unread) connection.linger();
  }

 private:
  bool process_and_close_socket(socket_t socket) override {
    serve(socket);
    return true;
  }

  ConnectionTable& table_;
  HttpConnectionCounters& counters_;
  HttpConnectionLimits limits_;
};

struct HttpServer::Impl {
  HttpServerOptions options;
  HttpHandlers handlers;
  ConnectionTable connections;
  std::atomic<std::uint64_t> requests{0};
  std::atomic<std::uint64_t> refused_bodies{0};
  std::atomic<std::uint64_t> waits{0};
  HttpConnectionCounters counters;
  BoundedServer server;
  std::thread thread;

  explicit Impl(HttpServerOptions with, HttpHandlers by)
      : options(std::move(with)), handlers(std::move(by)), server(options, connections, counters) {}

  // The answer to a head that cannot go on.
  [[nodiscard]] std::optional<HttpAnswer> refuse_head(const httplib::Request& from) {
    const auto malformed = [](std::string what, std::string expected, int status) {
      return http_error({ErrorCode::kRequestMalformed,
                         std::move(what),
                         {},
                         std::move(expected),
                         {},
                         "docs/side-channel.md says what is taken"},
                        status);
    };
    // Of a body without a length, chunked or up to the end of the connection, httplib would gather all that comes; a
    // packed one has another length.
    if (is_without_length(from)) return malformed("a body without a length is not taken", "Content-Length", 411);
    if (from.has_header("Content-Encoding")) return malformed("a packed body is not taken", "plain bytes", 415);
    if (from.get_header_value_count("Content-Length") > 1 || from.get_header_value_count("Authorization") > 1)
      return malformed("a header is there twice", "one of a kind", 400);
    if (from.method != "GET" && !takes_body(from.method))
      return malformed("the method is not taken", "GET, POST, PUT or DELETE", 405);
    HttpConnection& connection = HttpConnection::current();
    if (handlers.admit) {
      const std::string session = from.get_header_value("X-Gradtap-Session");
      const std::string first_seq = from.get_header_value("X-Gradtap-Seq");
      const std::string digest = from.get_header_value("X-Gradtap-Content-SHA256");
      const std::string authorization = from.get_header_value("Authorization");
      std::string address;
      int port = 0;
      connection.get_remote_ip_and_port(address, port);
      const bool proxied = from.has_header("X-Forwarded-For") || from.has_header("Forwarded") || from.has_header("Via");
      auto admitted = handlers.admit(
          {from.method, from.path, from.target, session, first_seq, digest, authorization, address, proxied});
      connection.trust(admitted.has_value());
      if (!admitted) return http_error(admitted.error());
      connection.admission = std::move(*admitted);
    } else {
      connection.trust(true);
    }
    if (announced_bytes(from) <= options.body_bytes_max) {
      auto lease =
          options.memory->lease(MemoryAccount::kRequests, kBodyCopies * announced_bytes(from), "the body of a request");
      if (!lease) return http_error(lease.error());
      connection.memory = std::move(*lease);
      return std::nullopt;
    }
    refused_bodies.fetch_add(1, std::memory_order_relaxed);
    return http_error({ErrorCode::kRequestTooLarge,
                       "the body is larger than side_channel.body_bytes_max",
                       {},
                       std::to_string(options.body_bytes_max),
                       {},
                       "send smaller chunks"});
  }

  // Before the body is read; true: it is not.
  [[nodiscard]] bool route(const httplib::Request& from, httplib::Response& to) {
    HttpConnection& connection = HttpConnection::current();
    const bool body_follows = is_without_length(from) || announced_bytes(from) > 0;
    const auto refused = refuse_head(from);
    // What is not read as a body would be taken for the next request.
    if (body_follows && (refused || !takes_body(from.method))) {
      connection.close_after();
      to.set_header("Connection", "close");
    }
    if (!refused) return false;
    requests.fetch_add(1, std::memory_order_relaxed);
    give(to, *refused);
    return true;
  }

  void answer(const httplib::Request& from, httplib::Response& to) {
    requests.fetch_add(1, std::memory_order_relaxed);
    HttpConnection& connection = HttpConnection::current();
    connection.busy();
    if (handlers.check_body)
      if (const Status same = handlers.check_body(connection.admission, from.body); !same)
        return give(to, http_error(same.error()));
    give(to, handlers.answer(to_request(from)));
  }

  // A file of the live page: the same bytes for everybody, no figure of the node is in them.
  void page(const PageFile& file, httplib::Response& to) {
    requests.fetch_add(1, std::memory_order_relaxed);
    to.set_header("Content-Security-Policy", kPagePolicy);
    to.set_header("X-Content-Type-Options", "nosniff");
    to.set_header("Referrer-Policy", "no-referrer");
    to.set_header("Cache-Control", "no-store");
    to.set_content(file.bytes.data(), file.bytes.size(), std::string(file.type).c_str());
  }

  void stream(const httplib::Request& from, httplib::Response& to) {
    requests.fetch_add(1, std::memory_order_relaxed);
    HttpConnection::current().busy();
    auto prepared = handlers.stream(to_request(from));
    if (!prepared) return give(to, http_error(prepared.error()));
    to.set_chunked_content_provider(
        "application/octet-stream", [run = std::move(*prepared)](std::size_t, httplib::DataSink& sink) {
          const bool whole = run([&sink](const char* data, std::size_t count) { return sink.write(data, count); });
          if (whole) sink.done();
          return whole;
        });
  }
};

HttpServer::HttpServer(HttpServerOptions options, HttpHandlers handlers)
    : impl_(std::make_unique<Impl>(std::move(options), std::move(handlers))) {}

HttpServer::~HttpServer() {
  stop();
}

Status HttpServer::start() {
  Impl& impl = *impl_;
  impl.server.set_payload_max_length(impl.options.body_bytes_max);
  impl.server.set_tcp_nodelay(true);
  // httplib's default shares the port with whoever else listens on it.
  impl.server.set_socket_options([](socket_t socket) {
    const int yes = 1;
    (void)::setsockopt(socket, SOL_SOCKET, SO_REUSEADDR, &yes, sizeof yes);
  });
  impl.server.set_pre_routing_handler([&impl](const httplib::Request& from, httplib::Response& to) {
    return impl.route(from, to) ? httplib::Server::HandlerResponse::Handled
                                : httplib::Server::HandlerResponse::Unhandled;
  });
  impl.server.new_task_queue = [&impl] {
    return new BoundedPool(impl.options.connections_max, impl.waits, impl.connections);
  };
  impl.server.set_exception_handler([](const httplib::Request&, httplib::Response& to, std::exception_ptr) {
    const HttpAnswer answer =
        http_error({ErrorCode::kRequestMalformed, "the request could not be handled", {}, {}, {}, {}}, 500);
    to.status = answer.status;
    to.set_content(answer.body, "application/json");
  });
  // What httplib says by itself has no body: text that is no head, a form of more than 8 KiB.
  impl.server.set_error_handler([](const httplib::Request&, httplib::Response& to) {
    if (!to.body.empty()) return;
    const int status = to.status;
    give(to, http_error({ErrorCode::kRequestMalformed, "this is not a request", {}, "HTTP/1.1", {}, {}}, status));
  });
  const auto handler = [&impl](const httplib::Request& from, httplib::Response& to) { impl.answer(from, to); };
  for (const char* const path : {R"(/v1/jobs/[^/]+/state)", R"(/v1/jobs/[^/]+/points/[^/]+/[^/]+/(state|side))"})
    impl.server.Get(path, [&impl](const httplib::Request& from, httplib::Response& to) { impl.stream(from, to); });
  for (const PageFile& file : page_files())
    impl.server.Get(std::string(file.path),
                    [&impl, &file](const httplib::Request&, httplib::Response& to) { impl.page(file, to); });
  impl.server.Get(R"(/.*)", handler);
  impl.server.Post(R"(/.*)", handler);
  impl.server.Put(R"(/.*)", handler);
  impl.server.Delete(R"(/.*)", handler);
  if (impl.options.port == 0) {
    const int port = impl.server.bind_to_any_port(impl.options.host);
    if (port <= 0)
      return fail(ErrorCode::kPortOpen, "cannot listen", impl.options.host, "a free port", {}, "check node.listen");
    port_ = static_cast<std::uint16_t>(port);
  } else {
    if (!impl.server.bind_to_port(impl.options.host, impl.options.port))
      return fail(ErrorCode::kPortOpen, "cannot listen", impl.options.host + ":" + std::to_string(impl.options.port),
                  "a free address of this host", "in use or not local", "stop the other program or change node.listen");
    port_ = impl.options.port;
  }
  impl.server.widen_backlog();
  impl.thread = std::thread([&impl] { impl.server.listen_after_bind(); });
  // Before it runs, httplib's stop() does nothing, and ours would wait for ever.
  for (int i = 0; i < kStartPolls && !impl.server.is_running(); ++i)
    std::this_thread::sleep_for(std::chrono::milliseconds(1));
  return {};
}

void HttpServer::stop() {
  if (!impl_->thread.joinable()) return;
  impl_->server.stop();
  impl_->thread.join();
}

void HttpServer::serve(int socket) {
  impl_->server.serve(socket);
}

std::uint64_t HttpServer::requests() const {
  return impl_->requests.load(std::memory_order_relaxed);
}
std::uint64_t HttpServer::refused_bodies() const {
  return impl_->refused_bodies.load(std::memory_order_relaxed);
}
std::uint64_t HttpServer::waits_for_thread() const {
  return impl_->waits.load(std::memory_order_relaxed);
}
std::uint64_t HttpServer::dropped() const {
  return impl_->connections.dropped();
}
std::uint64_t HttpServer::late() const {
  return impl_->counters.late.load(std::memory_order_relaxed);
}
std::uint64_t HttpServer::long_heads() const {
  return impl_->counters.long_heads.load(std::memory_order_relaxed);
}

}  // namespace gradtap::actors
