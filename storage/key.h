// Keys of the shard store, byte by byte (docs/formats.md): big-endian, so that text order is number order.
//
// Plain values and functions, any thread. Parsing is bounds-checked: a key of another length is not a key.
#pragma once

#include <array>
#include <compare>
#include <cstdint>
#include <optional>
#include <string>
#include <string_view>

#include "common/bytes.h"
#include "common/ids.h"

namespace gradtap::storage {

// What a chunk holds. Kinds below kKindFullFirst lie in the log family, the others in the full family; kKindState is
// an entry of the digest family only: the shard digest after the step.
inline constexpr std::uint8_t kKindState = 0;
inline constexpr std::uint8_t kKindGradient = 1;
inline constexpr std::uint8_t kKindFullFirst = 16;  // 16: param; 17..: the optimizer's kinds in order
inline constexpr std::uint8_t kKindParam = kKindFullFirst;
inline constexpr std::uint8_t kKindPresence = 128;  // presence bits and step counters, in the owner's own format

inline constexpr std::size_t kChunkKeyBytes = 35;
inline constexpr std::size_t kShardKeyBytes = 24;  // key of a mark; prefix of a chunk key

struct ChunkKey {
  JobId job{};
  LineageId lineage = 0;
  ShardId shard = 0;
  StepNumber step = 0;
  std::uint8_t kind = 0;
  std::uint16_t chunk = 0;
  friend auto operator<=>(const ChunkKey&, const ChunkKey&) = default;
};

[[nodiscard]] std::string encode(const ChunkKey& key);
[[nodiscard]] std::optional<ChunkKey> parse_chunk_key(ByteSpan bytes);
[[nodiscard]] std::string shard_key(const JobId& job, LineageId lineage, ShardId shard);
[[nodiscard]] std::string lineage_prefix(const JobId& job, LineageId lineage);  // first 20 bytes of both
// "job 5f3a.. lineage 1 shard 3 step 17 kind 1 chunk 0"
[[nodiscard]] std::string describe(const ChunkKey& key);

// Side values: kind u8 | job 16 | lineage u32 | step u64 | rank u32, then any suffix of the owner.
enum class SideKind : std::uint8_t {
  kLineage = 1,      // LineageRecord; step and rank 0
  kAttach = 2,       // attach message of a rank
  kLayout = 3,       // suffix: layout id
  kStepMessage = 4,  // StepRecord
  kBlob = 5,         // side state of a rank too large for its message; step 0, suffix: SHA-256 of the bytes
  kOther = 255,      // suffix: owner's name
};

[[nodiscard]] std::string side_key(SideKind kind, const JobId& job, LineageId lineage, StepNumber step = 0,
                                   std::uint32_t rank = 0);
// What a side key says of itself; nothing when the bytes are no side key.
struct SideKey {
  SideKind kind = SideKind::kOther;
  JobId job{};
  LineageId lineage = 0;
  StepNumber step = 0;
  std::uint32_t rank = 0;
  std::string suffix;
};
[[nodiscard]] std::optional<SideKey> parse_side_key(std::string_view key);
[[nodiscard]] std::string side_prefix(SideKind kind, const JobId& job);
[[nodiscard]] std::string side_prefix(SideKind kind, const JobId& job, LineageId lineage);

}  // namespace gradtap::storage
