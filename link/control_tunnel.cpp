#include "link/control_tunnel.h"

#include <asio/buffer.hpp>
#include <asio/write.hpp>

#include "link/socket_options.h"

namespace gradtap::link {

ControlTunnel::ControlTunnel(asio::ip::tcp::socket left, asio::ip::tcp::socket right, std::size_t buffer_bytes,
                             Counter& bytes, std::shared_ptr<void> held)
    : left_(std::move(left)),
      right_(std::move(right)),
      there_{&left_, &right_, std::vector<char>(buffer_bytes)},
      back_{&right_, &left_, std::vector<char>(buffer_bytes)},
      bytes_(bytes),
      held_(std::move(held)) {}

void ControlTunnel::start() {
  tune_socket(left_.native_handle());
  tune_socket(right_.native_handle());
  read(there_);
  read(back_);
}

void ControlTunnel::close() {
  asio::error_code ignored;
  left_.close(ignored);
  right_.close(ignored);
  held_.reset();
}

void ControlTunnel::read(Direction& direction) {
  direction.from->async_read_some(
      asio::buffer(direction.buffer),
      [self = shared_from_this(), &direction](const asio::error_code& error, std::size_t count) {
        if (error) return self->close();
        asio::async_write(*direction.to, asio::buffer(direction.buffer.data(), count),
                          [self, &direction](const asio::error_code& why, std::size_t written) {
                            if (why) return self->close();
                            self->bytes_.add(written);
                            self->read(direction);
                          });
      });
}

}  // namespace gradtap::link
