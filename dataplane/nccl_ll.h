// NCCL's LL protocol: lines of 16 bytes, data, flag, data, flag, 32 bits each. The flag is the connection's step plus
// one, so every eight bytes of data carry the proof of their place. Stripping checks all flags and takes the data out,
// by the widest vector instructions that the processor has; the plain loop is the same function. Pure; any thread.
#pragma once

#include <cstddef>
#include <cstdint>
#include <optional>

#include "common/bytes.h"

namespace gradtap::dataplane {

inline constexpr std::size_t kLlLineBytes = 16;
inline constexpr std::size_t kLlLineDataBytes = 8;

// The flag of the first line if both of its flags agree and are not 0; `wire` holds whole lines.
[[nodiscard]] std::optional<std::uint32_t> ll_flag(ByteSpan wire);
// Writes 8 bytes of data per line to `data`. False: some flag differs (what was written is worth nothing).
[[nodiscard]] bool strip_ll(const std::uint8_t* wire, std::size_t lines, std::uint32_t flag, std::uint8_t* data);
[[nodiscard]] bool strip_ll_plainly(const std::uint8_t* wire, std::size_t lines, std::uint32_t flag,
                                    std::uint8_t* data);
// Whether all lines carry this flag.
[[nodiscard]] bool has_ll_flags(ByteSpan wire, std::uint32_t flag);

}  // namespace gradtap::dataplane
