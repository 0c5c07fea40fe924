// LinkFrame: what every byte between two nodes lies in. A head of 40 bytes, a Cap'n Proto header, a payload.
//
// Purpose: lengths are judged before a byte is allocated, and every byte is checked. Plain functions, any thread.
// Invariants: parse_frame_head accepts only lengths within the limits; check_frame accepts only what frame_front made.
// Failure behaviour: hostile input yields PEER_MALFORMED or, for a newer format, UNSUPPORTED. Layout: docs/formats.md.
#pragma once

#include <array>
#include <cstddef>
#include <cstdint>
#include <string_view>
#include <vector>

#include "common/bytes.h"
#include "common/error.h"
#include "schema/link_codec.h"

namespace gradtap::link {

enum class FrameType : std::uint16_t {
  kHello = 1,
  kWelcome = 2,
  kRequest = 3,
  kBody = 4,
  kAnswer = 5,
  kChunk = 6,
  kCredit = 7,
  kEnd = 8,
};

inline constexpr std::uint16_t kFrameFormat = 1;
inline constexpr std::size_t kFrameHeadBytes = 40;
inline constexpr std::size_t kHeaderBytesMax = schema::kLinkHeaderBytesMax;
inline constexpr std::size_t kPayloadBytesMax = std::size_t{4} << 20;
// Before a hello is accepted, a peer gets no more than this.
inline constexpr std::size_t kHelloBytesMax = 1024;

struct FrameHead {
  FrameType type{};
  std::uint32_t header_bytes = 0;
  std::uint32_t payload_bytes = 0;
};

[[nodiscard]] std::string_view frame_type_name(FrameType type);

// Head and header, to be sent before `payload`. The sizes are the caller's promise to keep within the limits.
[[nodiscard]] std::vector<std::uint8_t> frame_front(FrameType type, ByteSpan header, ByteSpan payload);

[[nodiscard]] Result<FrameHead> parse_frame_head(ByteSpan head);
// Judges header and payload, once they are read, by the checksums in the 40 bytes of their head.
[[nodiscard]] Status check_frame(ByteSpan head, ByteSpan header, ByteSpan payload);

}  // namespace gradtap::link
