// gloo's wire format (PROTOCOLS 2.3): the 48-byte message header and the 8-byte hello.
//
// Two readings: *framed* is for a position that is known to hold a header (only what framing needs is checked, so that
// messages of kinds that gradtap does not use do not break the flow); *strict* is for a position that is suspected to
// hold one (every field exact). Plain functions over 48 readable bytes; any thread.
#pragma once

#include <cstddef>
#include <cstdint>
#include <optional>

#include "common/bytes.h"
#include "dataplane/segment.h"

namespace gradtap::dataplane {

inline constexpr std::size_t kGlooHeaderBytes = 48;
inline constexpr std::size_t kGlooHelloBytes = 8;
inline constexpr std::uint64_t kMaxAnnouncedBytes = std::uint64_t{1} << 44;

enum class GlooOpcode : std::uint8_t { kData = 1, kSendReady = 2, kRecvReady = 3 };

struct GlooHeader {
  GlooOpcode opcode = GlooOpcode::kData;
  CollectiveType type = CollectiveType::kUnknown;
  std::uint32_t tag = 0;
  std::uint64_t length = 0;        // payload of a data message, or the announced size
  std::uint64_t stream_bytes = 0;  // header and payload
};

// `p` holds kGlooHeaderBytes bytes. The type is kUnknown for slots that belong to no collective (send/recv).
[[nodiscard]] inline std::optional<GlooHeader> parse_gloo_framed(const std::uint8_t* p,
                                                                 std::uint64_t max_message_bytes) {
  const auto nbytes = load_le<std::uint64_t>(p);
  const auto opcode = load_le<std::uint64_t>(p + 8);
  const auto slot = load_le<std::uint64_t>(p + 16);
  const auto length = load_le<std::uint64_t>(p + 32);
  if (opcode < 1 || opcode > 3 || load_le<std::uint64_t>(p + 24) != 0 || load_le<std::uint64_t>(p + 40) != 0) {
    return std::nullopt;
  }
  const bool data = opcode == 1;
  if (length > (data ? max_message_bytes : kMaxAnnouncedBytes)) return std::nullopt;
  if (nbytes != kGlooHeaderBytes + (data ? length : 0)) return std::nullopt;
  GlooHeader header;
  header.opcode = static_cast<GlooOpcode>(opcode);
  const auto type = static_cast<std::uint8_t>(slot >> 56);
  if (type >= 1 && type <= 8 && (slot & 0xffff00) == 0) {
    header.type = static_cast<CollectiveType>(type);
    header.tag = static_cast<std::uint32_t>(slot >> 24);
  }
  header.length = length;
  header.stream_bytes = nbytes;
  return header;
}

[[nodiscard]] inline std::optional<GlooHeader> parse_gloo_strict(const std::uint8_t* p,
                                                                 std::uint64_t max_message_bytes) {
  auto header = parse_gloo_framed(p, max_message_bytes);
  if (header && header->type == CollectiveType::kUnknown) header.reset();
  return header;
}

// A cheap test that rejects nearly all positions that hold no header.
[[nodiscard]] inline bool may_be_gloo_header(const std::uint8_t* p) {
  return load_le<std::uint64_t>(p + 8) - 1 < 3;
}

// The connecting side of torch 2 first sends its pair id; ranks are small numbers.
[[nodiscard]] inline bool is_gloo_hello(const std::uint8_t* p) {
  return load_le<std::uint64_t>(p) < (1ULL << 31);
}

}  // namespace gradtap::dataplane
