// SideBatch: side entries as bytes, the way they travel between nodes (docs/formats.md, Node link).
//
// Purpose: encode on one node, decode on another. Layout, little-endian: u32 count, then for each entry u32 key bytes,
// u32 value bytes, key, value. Pure; any thread. Failure behaviour: bytes that are not exactly that are
// REQUEST_MALFORMED; nothing is half taken.
#pragma once

#include <cstdint>
#include <vector>

#include "common/bytes.h"
#include "common/error.h"
#include "storage/shard_store.h"

namespace gradtap::actors {

inline constexpr std::size_t kSideKeyBytesMax = 256;

[[nodiscard]] std::vector<std::uint8_t> encode_side_batch(const std::vector<storage::SideEntry>& entries);
[[nodiscard]] Result<std::vector<storage::SideEntry>> decode_side_batch(ByteSpan bytes);

}  // namespace gradtap::actors
