// CRC-32 as of Ethernet and zlib (reflected 0xedb88320).
//
// Purpose: RoCE's check value over every frame, so it is fast: carry-less multiplication where the processor has it, of
// four pairs of words at once if it can, otherwise sixteen bytes a step from tables. All are one function of the bytes;
// a test compares them with each other and with known values. Pure; any thread.
#pragma once

#include <cstdint>
#include <optional>

#include "common/bytes.h"

namespace gradtap::dataplane {

inline constexpr std::uint32_t kCrc32Start = 0xffffffff;

// Continues with `state` (kCrc32Start at first); the check value is the complement of the last state.
[[nodiscard]] std::uint32_t crc32_update(std::uint32_t state, ByteSpan bytes);

// The same in one way, for tests. Nothing: this processor cannot.
enum class Crc32Way : std::uint8_t { kTables, kFolding, kWideFolding };
[[nodiscard]] std::optional<std::uint32_t> crc32_update_by(Crc32Way way, std::uint32_t state, ByteSpan bytes);

}  // namespace gradtap::dataplane
