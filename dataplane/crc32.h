// CRC-32 as of Ethernet and zlib (reflected 0xedb88320).
//
// Purpose: RoCE's check value over every frame, so it is fast: carry-less multiplication where the processor has it,
// otherwise sixteen bytes a step from tables. Both are one function of the bytes; a test compares them with each other
// and with known values. Pure; any thread.
#pragma once

#include <cstdint>

#include "common/bytes.h"

namespace gradtap::dataplane {

inline constexpr std::uint32_t kCrc32Start = 0xffffffff;

// Continues with `state` (kCrc32Start at first); the check value is the complement of the last state.
[[nodiscard]] std::uint32_t crc32_update(std::uint32_t state, ByteSpan bytes);
// The same by tables only.
[[nodiscard]] std::uint32_t crc32_update_by_tables(std::uint32_t state, ByteSpan bytes);

}  // namespace gradtap::dataplane
