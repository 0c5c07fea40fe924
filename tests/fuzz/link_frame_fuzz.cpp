// What a peer sends is hostile: frame heads, whole frames, and every header.
#include <algorithm>
#include <cstddef>
#include <cstdint>
#include <cstdlib>

#include "link/link_frame.h"
#include "schema/link_codec.h"

using namespace gradtap;

namespace {

void require(bool holds) {
  if (!holds) std::abort();
}

void frame(ByteSpan bytes) {
  if (bytes.size() < link::kFrameHeadBytes) return;
  const ByteSpan head = bytes.first(link::kFrameHeadBytes);
  const auto parsed = link::parse_frame_head(head);
  if (!parsed) {
    require(!parsed.error().what.empty());
    return;
  }
  require(parsed->header_bytes <= link::kHeaderBytesMax && parsed->payload_bytes <= link::kPayloadBytesMax);
  const ByteSpan rest = bytes.subspan(link::kFrameHeadBytes);
  const std::size_t header_bytes = parsed->header_bytes < rest.size() ? parsed->header_bytes : rest.size();
  if (!link::check_frame(head, rest.first(header_bytes), rest.subspan(header_bytes))) return;
  // What was accepted is exactly what the writer makes of it, but for the lengths that only the reader knows here.
  if (rest.size() != std::size_t{parsed->header_bytes} + parsed->payload_bytes) return;
  const auto front = link::frame_front(parsed->type, rest.first(header_bytes), rest.subspan(header_bytes));
  require(std::equal(front.begin(), front.end(), bytes.begin()));
}

// What was accepted must survive a round trip.
void headers(ByteSpan bytes) {
  if (const auto hello = schema::decode_link_hello(bytes))
    require(schema::decode_link_hello(schema::encode(*hello)).value() == *hello);
  if (const auto request = schema::decode_link_request(bytes))
    require(schema::decode_link_request(schema::encode(*request)).value() == *request);
  if (const auto answer = schema::decode_link_answer(bytes)) {
    const auto again = schema::decode_link_answer(schema::encode(*answer)).value();
    require(again.meta == answer->meta && again.chunks == answer->chunks &&
            again.fault.has_value() == answer->fault.has_value());
  }
  if (const auto welcome = schema::decode_link_welcome(bytes)) (void)schema::encode(*welcome);
  if (const auto end = schema::decode_link_end(bytes)) (void)schema::encode(*end);
  if (const auto chunk = schema::decode_link_chunk(bytes))
    require(schema::decode_link_chunk(schema::encode(*chunk)).value().index == chunk->index);
  if (const auto credit = schema::decode_link_credit(bytes)) require(credit->chunks != 0);
}

}  // namespace

extern "C" int LLVMFuzzerTestOneInput(const std::uint8_t* data, std::size_t size) {
  if (size == 0) return 0;
  const ByteSpan bytes(data + 1, size - 1);
  if (data[0] % 2 == 0)
    frame(bytes);
  else
    headers(bytes);
  return 0;
}
