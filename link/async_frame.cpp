#include "link/async_frame.h"

#include <array>

#include <fmt/format.h>

namespace gradtap::link {
namespace {

struct Reading {
  std::array<std::uint8_t, kFrameHeadBytes> head;
  Frame frame;
  std::function<void(Result<Frame>)> done;

  void gone(Error error) {
    if (error.code == ErrorCode::kPeerUnreachable) error.what = "a peer went away during its greeting";
    done(std::unexpected<Error>(std::move(error)));
  }
};

}  // namespace

void async_read_frame(AsyncChannel& channel, std::size_t header_bytes_max, std::function<void(Result<Frame>)> done) {
  auto reading = std::make_shared<Reading>();
  reading->done = std::move(done);
  channel.read(reading->head, [reading, &channel, header_bytes_max](Status status) {
    if (!status) return reading->gone(status.error());
    const auto head = parse_frame_head(reading->head);
    if (!head) return reading->done(std::unexpected<Error>(head.error()));
    if (head->header_bytes > header_bytes_max || head->payload_bytes != 0)
      return reading->done(fail(ErrorCode::kPeerMalformed, "a greeting is too large", {},
                                fmt::format("a header of at most {} bytes, no payload", header_bytes_max),
                                fmt::format("{} and {} bytes", head->header_bytes, head->payload_bytes)));
    reading->frame.type = head->type;
    reading->frame.header.resize(head->header_bytes);
    channel.read(reading->frame.header, [reading](Status whole) {
      if (!whole) return reading->gone(whole.error());
      if (auto checked = check_frame(reading->head, reading->frame.header, {}); !checked)
        return reading->done(std::unexpected<Error>(checked.error()));
      reading->done(std::move(reading->frame));
    });
  });
}

void async_write_frame(AsyncChannel& channel, FrameType type, ByteSpan header, AsyncChannel::Done done) {
  auto bytes = std::make_shared<std::vector<std::uint8_t>>(frame_front(type, header, {}));
  channel.write(*bytes, [bytes, done = std::move(done)](Status status) { done(std::move(status)); });
}

}  // namespace gradtap::link
