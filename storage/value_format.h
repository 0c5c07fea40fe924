// The two fixed-layout values of the shard store (docs/formats.md): the header before every chunk of tensor bytes, and
// the digest entry that lies apart from it under the same key.
//
// Plain values, any thread. Parsing treats bytes as hostile: every length is checked against what is there.
#pragma once

#include <array>
#include <cstdint>
#include <string>
#include <vector>

#include "common/bytes.h"
#include "common/error.h"

namespace gradtap::storage {

inline constexpr std::uint16_t kValueFormat = 1;
inline constexpr std::size_t kChunkHeaderBytes = 64;
inline constexpr std::size_t kDigestHeaderBytes = 36;
inline constexpr std::uint64_t kChunkPayloadMax = std::uint64_t{16} << 20;  // readers refuse more

struct ChunkHeader {
  std::uint8_t codec = 0;       // 0: plain
  std::uint8_t encryption = 0;  // 0: none
  std::uint32_t plain_bytes = 0;
  std::uint32_t stored_bytes = 0;  // payload as stored: what follows the header
  std::uint64_t offset = 0;        // of the first plain byte in the record
  std::uint64_t total = 0;         // plain bytes of the whole record
  std::array<std::uint8_t, 32> salt{};
};

void write_chunk_header(const ChunkHeader& header, std::uint8_t* out);  // kChunkHeaderBytes
// Checks magic, format, codec, encryption and lengths against `value`, header included.
[[nodiscard]] Result<ChunkHeader> parse_chunk_header(ByteSpan value);

struct DigestEntry {
  std::uint16_t chunks = 0;  // of the record
  std::uint32_t stored_bytes = 0;
  std::array<std::uint8_t, 16> xxh3_128{};  // of the whole stored value, canonical (big-endian) form
  std::vector<std::uint64_t> digests;       // two-sum digests of the record, chunk 0 only; may be empty
};

[[nodiscard]] std::string encode(const DigestEntry& entry);
[[nodiscard]] Result<DigestEntry> parse_digest_entry(ByteSpan value);

[[nodiscard]] std::array<std::uint8_t, 16> xxh3_128(ByteSpan bytes);

}  // namespace gradtap::storage
