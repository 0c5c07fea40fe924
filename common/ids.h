// Ids: the numbers that name things in every key, message and digest.
// Plain values; no ownership; any thread.
#pragma once

#include <array>
#include <cstdint>
#include <string>
#include <string_view>

namespace gradtap {

using Sha256 = std::array<std::uint8_t, 32>;
using JobId = std::array<std::uint8_t, 16>;  // first 16 bytes of SHA-256(job name)
using LineageId = std::uint32_t;             // one incarnation of the trainer, from 1
using StepNumber = std::uint64_t;            // the s-th accepted commit of a lineage; 0 is the baseline
using ShardId = std::uint32_t;
using LayoutId = Sha256;  // SHA-256 of the layout's canonical JSON (docs/side-channel.md)

[[nodiscard]] JobId job_id(std::string_view job_name);

// Lower-case hexadecimal of any byte array, and back (false when text has a wrong length or a wrong digit).
[[nodiscard]] std::string to_hex(const std::uint8_t* bytes, std::size_t count);
[[nodiscard]] bool from_hex(std::string_view text, std::uint8_t* bytes, std::size_t count);

template <std::size_t N>
[[nodiscard]] std::string to_hex(const std::array<std::uint8_t, N>& bytes) {
  return to_hex(bytes.data(), N);
}

}  // namespace gradtap
