#include "link/async_channel.h"

#include <memory>

#include <asio/post.hpp>

namespace gradtap::link {

using asio::ip::tcp;

namespace {

std::unexpected<Error> gone(std::string why) {
  return fail(ErrorCode::kPeerUnreachable, "a peer went away", {}, {}, std::move(why));
}

}  // namespace

AsyncChannel::AsyncChannel(tcp::socket socket) : socket_(std::move(socket)) {}

void AsyncChannel::begin() {
  asio::error_code ignored;
  socket_.non_blocking(true, ignored);
}

template <class Attempt>
void AsyncChannel::drive(Attempt attempt, Done done, bool waited) {
  Result<Want> want = socket_.is_open() ? attempt() : gone("the connection is closed");
  if (want && *want != Want::kNothing)
    return socket_.async_wait(*want == Want::kRead ? tcp::socket::wait_read : tcp::socket::wait_write,
                              [this, attempt, done = std::move(done)](const asio::error_code& error) mutable {
                                if (error) return done(gone(error.message()));
                                drive(attempt, std::move(done), true);
                              });
  Status status;
  if (!want) status = std::unexpected<Error>(std::move(want.error()));
  if (waited) return done(std::move(status));
  asio::post(socket_.get_executor(),
             [done = std::move(done), status = std::move(status)]() mutable { done(std::move(status)); });
}

void AsyncChannel::secure(std::shared_ptr<const Identity> identity, Side side, Done done) {
  session_ = Session(std::move(identity), side);
  drive([this] { return session_.handshake(socket_.native_handle()); }, std::move(done), false);
}

void AsyncChannel::read_some(std::span<std::uint8_t> to, std::function<void(Result<std::size_t>)> done) {
  const auto got = std::make_shared<std::size_t>(0);
  drive(
      [this, to, got]() -> Result<Want> {
        const auto moved = session_.read(socket_.native_handle(), to);
        if (!moved) return std::unexpected<Error>(moved.error());
        *got = moved->bytes;
        return moved->want;
      },
      [got, done = std::move(done)](Status status) {
        if (!status) return done(std::unexpected<Error>(std::move(status.error())));
        done(*got);
      },
      false);
}

void AsyncChannel::read(std::span<std::uint8_t> to, Done done) {
  const auto left = std::make_shared<std::span<std::uint8_t>>(to);
  drive(
      [this, left]() -> Result<Want> {
        while (!left->empty()) {
          const auto moved = session_.read(socket_.native_handle(), *left);
          if (!moved) return std::unexpected<Error>(moved.error());
          if (moved->ended) return gone("end of file");
          if (moved->want != Want::kNothing) return moved->want;
          *left = left->subspan(moved->bytes);
        }
        return Want::kNothing;
      },
      std::move(done), false);
}

void AsyncChannel::write(ByteSpan bytes, Done done) {
  const auto left = std::make_shared<ByteSpan>(bytes);
  drive(
      [this, left]() -> Result<Want> {
        while (!left->empty()) {
          const auto moved = session_.write(socket_.native_handle(), *left, {});
          if (!moved) return std::unexpected<Error>(moved.error());
          if (moved->want != Want::kNothing) return moved->want;
          *left = left->subspan(moved->bytes);
        }
        return Want::kNothing;
      },
      std::move(done), false);
}

void AsyncChannel::finish(Done done) {
  drive([this] { return session_.finish(socket_.native_handle()); }, std::move(done), false);
}

void AsyncChannel::close() {
  asio::error_code ignored;
  socket_.close(ignored);
}

std::pair<int, Session> AsyncChannel::release() {
  asio::error_code error;
  const int socket = socket_.release(error);
  return {error ? -1 : socket, std::move(session_)};
}

}  // namespace gradtap::link
