#include "link/socket_stream.h"

#include <array>
#include <atomic>

#include <asio/buffer.hpp>
#include <asio/connect.hpp>
#include <asio/io_context.hpp>
#include <asio/ip/tcp.hpp>
#include <asio/post.hpp>
#include <asio/read.hpp>
#include <asio/write.hpp>
#include <fmt/format.h>

#include "link/socket_options.h"

namespace gradtap::link {

using asio::ip::tcp;

struct SocketStream::Impl {
  explicit Impl(std::string name) : peer(std::move(name)), socket(context) {}

  const std::string peer;
  asio::io_context context{1};
  tcp::socket socket;
  std::atomic<bool> aborted{false};

  void close() {
    asio::error_code ignored;
    socket.close(ignored);
  }

  std::unexpected<Error> gone(std::string_view doing, const asio::error_code& error) {
    close();
    return fail(ErrorCode::kPeerUnreachable, fmt::format("cannot {}", doing), peer, {},
                aborted.load() ? "the link is being stopped" : error.message(),
                "check that the node runs and can be reached");
  }

  // Runs one asynchronous operation to its end, or to the deadline. Its completion writes to `result`.
  Status run(std::string_view doing, const bool& finished, const asio::error_code& result, Deadline deadline) {
    context.restart();
    while (!finished && !aborted.load() && context.run_one_until(deadline) > 0) {
    }
    if (finished && !result) return {};
    if (finished || aborted.load()) {
      const asio::error_code why = finished ? result : asio::error::operation_aborted;
      drain(finished);
      return gone(doing, why);
    }
    drain(finished);
    return fail(ErrorCode::kTimeout, fmt::format("no answer in time, while trying to {}", doing), peer, {}, {},
                "see whether the node hangs or its network is slow");
  }

  // The operation still refers to the caller's stack: closes the socket and lets it complete.
  void drain(const bool& finished) {
    close();
    context.restart();
    while (!finished && context.run_one() > 0) {
    }
  }
};

SocketStream::SocketStream(std::string peer) : impl_(std::make_unique<Impl>(std::move(peer))) {}
SocketStream::~SocketStream() {
  impl_->close();
}

Status SocketStream::connect(const std::string& local_address, const std::string& address, std::uint16_t port,
                             Deadline deadline) {
  Impl& impl = *impl_;
  asio::error_code error;
  const auto local = asio::ip::make_address(local_address, error);
  const auto remote = error ? asio::ip::address() : asio::ip::make_address(address, error);
  if (!error) impl.socket.open(remote.is_v4() ? tcp::v4() : tcp::v6(), error);
  // The peer knows this node by its address.
  if (!error) impl.socket.bind({local, 0}, error);
  if (error) return impl.gone(fmt::format("prepare a connection from {} to {}", local_address, address), error);
  bool finished = false;
  asio::error_code result;
  impl.socket.async_connect({remote, port}, [&](const asio::error_code& code) {
    result = code;
    finished = true;
  });
  GRADTAP_TRY(impl.run("connect", finished, result, deadline));
  tune_socket(impl.socket.native_handle());
  return {};
}

Status SocketStream::adopt(int socket) {
  sockaddr_storage address{};
  socklen_t length = sizeof address;
  asio::error_code error;
  if (::getsockname(socket, reinterpret_cast<sockaddr*>(&address), &length) != 0)
    error = asio::error_code(errno, asio::error::get_system_category());
  if (!error) impl_->socket.assign(address.ss_family == AF_INET6 ? tcp::v6() : tcp::v4(), socket, error);
  if (error) return impl_->gone("take over a connection", error);
  return {};
}

Status SocketStream::read(std::span<std::uint8_t> to, Deadline deadline) {
  if (to.empty()) return {};
  bool finished = false;
  asio::error_code result;
  asio::async_read(impl_->socket, asio::buffer(to.data(), to.size()), [&](const asio::error_code& code, std::size_t) {
    result = code;
    finished = true;
  });
  return impl_->run("read", finished, result, deadline);
}

Status SocketStream::write_frame(FrameType type, ByteSpan header, ByteSpan payload, Deadline deadline) {
  if (header.size() > kHeaderBytesMax || payload.size() > kPayloadBytesMax)
    return fail(ErrorCode::kLimitReached, fmt::format("a {} frame is too large", frame_type_name(type)), impl_->peer,
                fmt::format("header {} bytes, payload {} bytes", kHeaderBytesMax, kPayloadBytesMax),
                fmt::format("{} and {} bytes", header.size(), payload.size()), "use smaller texts and chunks");
  const std::vector<std::uint8_t> front = frame_front(type, header, payload);
  const std::array<asio::const_buffer, 2> buffers = {asio::buffer(front), asio::buffer(payload.data(), payload.size())};
  bool finished = false;
  asio::error_code result;
  asio::async_write(impl_->socket, buffers, [&](const asio::error_code& code, std::size_t) {
    result = code;
    finished = true;
  });
  return impl_->run("write", finished, result, deadline);
}

Result<Frame> SocketStream::read_frame(Deadline deadline) {
  std::array<std::uint8_t, kFrameHeadBytes> head;
  if (auto read_head = read(head, deadline); !read_head) return std::unexpected<Error>(read_head.error());
  const auto parsed = parse_frame_head(head);
  if (!parsed) {
    close();
    return std::unexpected<Error>(parsed.error());
  }
  Frame frame{parsed->type, std::vector<std::uint8_t>(parsed->header_bytes),
              std::vector<std::uint8_t>(parsed->payload_bytes)};
  GRADTAP_TRY(read(frame.header, deadline));
  GRADTAP_TRY(read(frame.payload, deadline));
  if (auto checked = check_frame(head, frame.header, frame.payload); !checked) {
    close();
    checked.error().where = impl_->peer;
    return std::unexpected<Error>(checked.error());
  }
  return frame;
}

bool SocketStream::stale() {
  if (!open()) return true;
  char byte = 0;
  const ssize_t got = ::recv(impl_->socket.native_handle(), &byte, 1, MSG_PEEK | MSG_DONTWAIT);
  return got >= 0 || (errno != EAGAIN && errno != EWOULDBLOCK);
}

bool SocketStream::open() const {
  return impl_->socket.is_open() && !impl_->aborted.load();
}

void SocketStream::close() {
  impl_->close();
}

void SocketStream::abort() {
  impl_->aborted.store(true);
  // Wakes the thread that waits in run(); nobody else touches the socket.
  asio::post(impl_->context, [] {});
}

}  // namespace gradtap::link
