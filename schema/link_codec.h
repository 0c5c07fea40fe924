// Headers of the frames between nodes as plain structs, to and from Cap'n Proto bytes.
//
// Purpose: nobody above this floor sees a Cap'n Proto type. Ownership: values. Threads: any. Failure: decoding treats
// its input as hostile, bounds size, traversal and nesting, and answers PEER_MALFORMED; it never throws.
#pragma once

#include <cstdint>
#include <optional>
#include <string>
#include <vector>

#include "common/bytes.h"
#include "common/error.h"
#include "common/ids.h"

namespace gradtap::schema {

enum class LinkKind : std::uint16_t { kControl = 1, kBulk = 2 };

struct LinkHello {
  std::string name;
  std::string peer;
  Sha256 cluster{};
  LinkKind kind = LinkKind::kBulk;
  std::uint64_t tunnel = 0;
  bool renews = false;
  friend bool operator==(const LinkHello&, const LinkHello&) = default;
};

struct LinkWelcome {
  std::string name;
  std::optional<Error> fault;
};

struct LinkRequest {
  std::uint16_t kind = 0;
  JobId job{};
  LineageId lineage = 0;
  ShardId shard = 0;
  StepNumber step = 0;
  std::uint64_t argument = 0;
  std::string text;
  std::uint64_t first_chunk = 0;
  std::uint64_t body_bytes = 0;
  std::uint32_t credits = 0;
  friend bool operator==(const LinkRequest&, const LinkRequest&) = default;
};

struct LinkAnswer {
  std::optional<Error> fault;
  std::string meta;
  std::string identity;
  std::uint64_t chunks = 0;
};

struct LinkChunk {
  std::uint64_t index = 0;
};

struct LinkCredit {
  std::uint32_t chunks = 0;
};

struct LinkEnd {
  std::optional<Error> fault;
};

inline constexpr std::size_t kLinkHeaderBytesMax = std::size_t{64} << 10;

// Texts of a fault are cut, so that it always fits a header; any other header may turn out longer than
// kLinkHeaderBytesMax, which the caller must check.
[[nodiscard]] std::vector<std::uint8_t> encode(const LinkHello& hello);
[[nodiscard]] std::vector<std::uint8_t> encode(const LinkWelcome& welcome);
[[nodiscard]] std::vector<std::uint8_t> encode(const LinkRequest& request);
[[nodiscard]] std::vector<std::uint8_t> encode(const LinkAnswer& answer);
[[nodiscard]] std::vector<std::uint8_t> encode(const LinkChunk& chunk);
[[nodiscard]] std::vector<std::uint8_t> encode(const LinkCredit& credit);
[[nodiscard]] std::vector<std::uint8_t> encode(const LinkEnd& end);

[[nodiscard]] Result<LinkHello> decode_link_hello(ByteSpan bytes);
[[nodiscard]] Result<LinkWelcome> decode_link_welcome(ByteSpan bytes);
[[nodiscard]] Result<LinkRequest> decode_link_request(ByteSpan bytes);
[[nodiscard]] Result<LinkAnswer> decode_link_answer(ByteSpan bytes);
[[nodiscard]] Result<LinkChunk> decode_link_chunk(ByteSpan bytes);
[[nodiscard]] Result<LinkCredit> decode_link_credit(ByteSpan bytes);
[[nodiscard]] Result<LinkEnd> decode_link_end(ByteSpan bytes);

}  // namespace gradtap::schema
