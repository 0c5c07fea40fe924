#include "link/async_frame.h"

#include <array>

#include <asio/buffer.hpp>
#include <asio/read.hpp>
#include <asio/write.hpp>
#include <fmt/format.h>

namespace gradtap::link {
namespace {

struct Reading {
  std::array<std::uint8_t, kFrameHeadBytes> head;
  Frame frame;
  std::function<void(Result<Frame>)> done;

  void gone(const asio::error_code& error) {
    done(fail(ErrorCode::kPeerUnreachable, "a peer went away during its greeting", {}, {}, error.message()));
  }
};

}  // namespace

void async_read_frame(asio::ip::tcp::socket& socket, std::size_t header_bytes_max,
                      std::function<void(Result<Frame>)> done) {
  auto reading = std::make_shared<Reading>();
  reading->done = std::move(done);
  asio::async_read(
      socket, asio::buffer(reading->head),
      [reading, &socket, header_bytes_max](const asio::error_code& error, std::size_t) {
        if (error) return reading->gone(error);
        const auto head = parse_frame_head(reading->head);
        if (!head) return reading->done(std::unexpected<Error>(head.error()));
        if (head->header_bytes > header_bytes_max || head->payload_bytes != 0)
          return reading->done(fail(ErrorCode::kPeerMalformed, "a greeting is too large", {},
                                    fmt::format("a header of at most {} bytes, no payload", header_bytes_max),
                                    fmt::format("{} and {} bytes", head->header_bytes, head->payload_bytes)));
        reading->frame.type = head->type;
        reading->frame.header.resize(head->header_bytes);
        asio::async_read(socket, asio::buffer(reading->frame.header),
                         [reading](const asio::error_code& why, std::size_t) {
                           if (why) return reading->gone(why);
                           if (auto checked = check_frame(reading->head, reading->frame.header, {}); !checked)
                             return reading->done(std::unexpected<Error>(checked.error()));
                           reading->done(std::move(reading->frame));
                         });
      });
}

void async_write_frame(asio::ip::tcp::socket& socket, FrameType type, ByteSpan header,
                       std::function<void(const asio::error_code&)> done) {
  auto bytes = std::make_shared<std::vector<std::uint8_t>>(frame_front(type, header, {}));
  asio::async_write(socket, asio::buffer(*bytes),
                    [bytes, done = std::move(done)](const asio::error_code& error, std::size_t) { done(error); });
}

}  // namespace gradtap::link
