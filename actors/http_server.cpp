#include "actors/http_server.h"

#include <chrono>
#include <condition_variable>
#include <deque>
#include <mutex>
#include <thread>
#include <vector>

#include <httplib.h>
#include <sys/socket.h>

#include "actors/page_files.h"

namespace gradtap::actors {

namespace {

// An idle connection holds a thread, and stop() waits for it this long; clients connect again without a loss.
constexpr time_t kKeepAliveSeconds = 5;
constexpr int kStartPolls = 10'000;
// The page runs its own scripts, speaks to this node, and is shown in no frame.
constexpr const char* kPagePolicy =
    "default-src 'none'; script-src 'self'; style-src 'self'; img-src 'self'; connect-src 'self'; base-uri 'none'; "
    "form-action 'none'; frame-ancestors 'none'";

// httplib's own pool queues accepted connections without a bound; this one makes the accept loop wait instead.
class BoundedPool final : public httplib::TaskQueue {
 public:
  BoundedPool(unsigned threads, std::atomic<std::uint64_t>& waits) : waits_(waits) {
    for (unsigned i = 0; i < threads; ++i) threads_.emplace_back([this] { work(); });
  }

  void enqueue(std::function<void()> task) override {
    std::unique_lock lock(mutex_);
    if (idle_ <= tasks_.size()) {
      waits_.fetch_add(1, std::memory_order_relaxed);
      room_.wait(lock, [this] { return stopping_ || idle_ > tasks_.size(); });
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
  return request;
}

}  // namespace

struct HttpServer::Impl {
  HttpServerOptions options;
  HttpHandlers handlers;
  httplib::Server server;
  std::thread thread;
  std::atomic<std::uint64_t> requests{0};
  std::atomic<std::uint64_t> refused_bodies{0};
  std::atomic<std::uint64_t> waits{0};

  void answer(const httplib::Request& from, httplib::Response& to) {
    requests.fetch_add(1, std::memory_order_relaxed);
    const HttpAnswer answer = handlers.answer(to_request(from));
    to.status = answer.status;
    to.set_content(answer.body, "application/json");
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
    auto prepared = handlers.stream(to_request(from));
    if (!prepared) {
      const HttpAnswer answer = http_error(prepared.error());
      to.status = answer.status;
      to.set_content(answer.body, "application/json");
      return;
    }
    to.set_chunked_content_provider(
        "application/octet-stream", [run = std::move(*prepared)](std::size_t, httplib::DataSink& sink) {
          const bool whole = run([&sink](const char* data, std::size_t count) { return sink.write(data, count); });
          if (whole) sink.done();
          return whole;
        });
  }
};

HttpServer::HttpServer(HttpServerOptions options, HttpHandlers handlers) : impl_(std::make_unique<Impl>()) {
  impl_->options = std::move(options);
  impl_->handlers = std::move(handlers);
}

HttpServer::~HttpServer() {
  stop();
}

Status HttpServer::start() {
  Impl& impl = *impl_;
  const time_t seconds = impl.options.request_timeout_ms / 1000;
  const time_t microseconds = static_cast<time_t>(impl.options.request_timeout_ms % 1000) * 1000;
  impl.server.set_read_timeout(seconds, microseconds);
  impl.server.set_write_timeout(seconds, microseconds);
  impl.server.set_keep_alive_timeout(kKeepAliveSeconds);
  impl.server.set_keep_alive_max_count(1'000'000);
  impl.server.set_payload_max_length(impl.options.body_bytes_max);
  impl.server.set_tcp_nodelay(true);
  // httplib's default shares the port with whoever else listens on it.
  impl.server.set_socket_options([](socket_t socket) {
    const int yes = 1;
    (void)::setsockopt(socket, SOL_SOCKET, SO_REUSEADDR, &yes, sizeof yes);
  });
  // A chunked body has no length to refuse it by, and httplib would gather all of it.
  impl.server.set_pre_routing_handler([](const httplib::Request& from, httplib::Response& to) {
    if (!from.has_header("Transfer-Encoding")) return httplib::Server::HandlerResponse::Unhandled;
    const HttpAnswer answer = http_error(
        {ErrorCode::kRequestMalformed, "a body without a length is not taken", {}, "Content-Length", {}, {}}, 411);
    to.status = answer.status;
    to.set_header("Connection", "close");
    to.set_content(answer.body, "application/json");
    return httplib::Server::HandlerResponse::Handled;
  });
  impl.server.new_task_queue = [&impl] { return new BoundedPool(impl.options.connections_max, impl.waits); };
  impl.server.set_exception_handler([](const httplib::Request&, httplib::Response& to, std::exception_ptr) {
    const HttpAnswer answer =
        http_error({ErrorCode::kRequestMalformed, "the request could not be handled", {}, {}, {}, {}}, 500);
    to.status = answer.status;
    to.set_content(answer.body, "application/json");
  });
  impl.server.set_error_handler([&impl](const httplib::Request&, httplib::Response& to) {
    if (to.status == 413) {
      impl.refused_bodies.fetch_add(1, std::memory_order_relaxed);
      to.set_content(http_error({ErrorCode::kRequestTooLarge,
                                 "the body is larger than side_channel.body_bytes_max",
                                 {},
                                 std::to_string(impl.options.body_bytes_max),
                                 {},
                                 "send smaller chunks"})
                         .body,
                     "application/json");
    }
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

std::uint64_t HttpServer::requests() const {
  return impl_->requests.load(std::memory_order_relaxed);
}
std::uint64_t HttpServer::refused_bodies() const {
  return impl_->refused_bodies.load(std::memory_order_relaxed);
}
std::uint64_t HttpServer::waits_for_thread() const {
  return impl_->waits.load(std::memory_order_relaxed);
}

}  // namespace gradtap::actors
