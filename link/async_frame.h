// Small frames (hello, welcome) without blocking, on the link's own thread. Internal to the link.
//
// The caller keeps the channel alive until `done` has run (by what `done` holds). Failure: an Error handed to `done`.
#pragma once

#include <functional>
#include <memory>

#include "link/async_channel.h"
#include "link/socket_stream.h"

namespace gradtap::link {

// A frame with at most header_bytes_max of header and no payload.
void async_read_frame(AsyncChannel& channel, std::size_t header_bytes_max, std::function<void(Result<Frame>)> done);
void async_write_frame(AsyncChannel& channel, FrameType type, ByteSpan header, AsyncChannel::Done done);

}  // namespace gradtap::link
