#include "link/link_frame.h"

#include <cstring>
#include <memory>

#include <fmt/format.h>
#include <xxhash.h>

#include "common/ids.h"

namespace gradtap::link {
namespace {

constexpr std::uint8_t kMagic[4] = {'G', 'T', 'L', 'K'};
constexpr std::size_t kPayloadDigestAt = 16;
constexpr std::size_t kChecksumAt = 32;

template <class T>
void store_le(std::uint8_t* p, T value) {
  std::memcpy(p, &value, sizeof value);
}

void payload_digest(ByteSpan payload, std::uint8_t* to) {
  XXH128_canonical_t canonical;
  XXH128_canonicalFromHash(&canonical, XXH3_128bits(payload.data(), payload.size()));
  std::memcpy(to, canonical.digest, sizeof canonical.digest);
}

// Over the first 32 bytes of the head, then the header.
std::uint64_t checksum(const std::uint8_t* head, ByteSpan header) {
  const std::unique_ptr<XXH3_state_t, XXH_errorcode (*)(XXH3_state_t*)> state(XXH3_createState(), &XXH3_freeState);
  XXH3_64bits_reset(state.get());
  XXH3_64bits_update(state.get(), head, kChecksumAt);
  XXH3_64bits_update(state.get(), header.data(), header.size());
  return XXH3_64bits_digest(state.get());
}

}  // namespace

std::string_view frame_type_name(FrameType type) {
  switch (type) {
    case FrameType::kHello:
      return "hello";
    case FrameType::kWelcome:
      return "welcome";
    case FrameType::kRequest:
      return "request";
    case FrameType::kBody:
      return "body";
    case FrameType::kAnswer:
      return "answer";
    case FrameType::kChunk:
      return "chunk";
    case FrameType::kCredit:
      return "credit";
    case FrameType::kEnd:
      return "end";
  }
  return "unknown";
}

std::vector<std::uint8_t> frame_front(FrameType type, ByteSpan header, ByteSpan payload) {
  std::vector<std::uint8_t> front(kFrameHeadBytes + header.size());
  std::uint8_t* const head = front.data();
  std::memcpy(head, kMagic, sizeof kMagic);
  store_le<std::uint16_t>(head + 4, kFrameFormat);
  store_le<std::uint16_t>(head + 6, static_cast<std::uint16_t>(type));
  store_le<std::uint32_t>(head + 8, static_cast<std::uint32_t>(header.size()));
  store_le<std::uint32_t>(head + 12, static_cast<std::uint32_t>(payload.size()));
  payload_digest(payload, head + kPayloadDigestAt);
  store_le<std::uint64_t>(head + kChecksumAt, checksum(head, header));
  if (!header.empty()) std::memcpy(head + kFrameHeadBytes, header.data(), header.size());
  return front;
}

Result<FrameHead> parse_frame_head(ByteSpan head) {
  const auto malformed = [](std::string what, std::string expected, std::string actual) {
    return fail(ErrorCode::kPeerMalformed, std::move(what), {}, std::move(expected), std::move(actual),
                "connect gradtap nodes only to the link port");
  };
  if (head.size() != kFrameHeadBytes)
    return malformed("a frame is cut", fmt::format("{} bytes", kFrameHeadBytes), fmt::format("{} bytes", head.size()));
  // A record of TLS begins with 21 (alert) or 22 (handshake) and 3.
  if ((head[0] == 21 || head[0] == 22) && head[1] == 3)
    return fail(ErrorCode::kPeerMalformed, "a peer speaks TLS, and this node does not", {}, "security = \"none\"",
                "security = \"tls\"", "give all nodes the same security");
  if (std::memcmp(head.data(), kMagic, sizeof kMagic) != 0)
    return malformed("a frame has another magic", "GTLK", to_hex(head.data(), 4));
  const auto format = load_le<std::uint16_t>(head.data() + 4);
  if (format == 0 || format > kFrameFormat)
    return fail(ErrorCode::kUnsupported, "a peer speaks a format that this build does not read", {},
                fmt::format("1..{}", kFrameFormat), fmt::format("{}", format), "run the same version on all nodes");
  FrameHead out;
  const auto type = load_le<std::uint16_t>(head.data() + 6);
  if (type < static_cast<std::uint16_t>(FrameType::kHello) || type > static_cast<std::uint16_t>(FrameType::kEnd))
    return malformed("a frame has an unknown type", "1..8", fmt::format("{}", type));
  out.type = static_cast<FrameType>(type);
  out.header_bytes = load_le<std::uint32_t>(head.data() + 8);
  out.payload_bytes = load_le<std::uint32_t>(head.data() + 12);
  if (out.header_bytes > kHeaderBytesMax)
    return malformed("a frame has too large a header", fmt::format("at most {} bytes", kHeaderBytesMax),
                     fmt::format("{} bytes", out.header_bytes));
  if (out.payload_bytes > kPayloadBytesMax)
    return malformed("a frame has too large a payload", fmt::format("at most {} bytes", kPayloadBytesMax),
                     fmt::format("{} bytes", out.payload_bytes));
  return out;
}

Status check_frame(ByteSpan head, ByteSpan header, ByteSpan payload) {
  const auto wrong = [](std::string_view what) {
    return fail(ErrorCode::kPeerMalformed, fmt::format("the checksum of a frame's {} differs", what), {}, {}, {},
                "look for a network path that changes bytes");
  };
  if (head.size() != kFrameHeadBytes) return wrong("head");
  if (checksum(head.data(), header) != load_le<std::uint64_t>(head.data() + kChecksumAt)) return wrong("header");
  std::array<std::uint8_t, 16> digest;
  payload_digest(payload, digest.data());
  if (std::memcmp(digest.data(), head.data() + kPayloadDigestAt, digest.size()) != 0) return wrong("payload");
  return {};
}

}  // namespace gradtap::link
