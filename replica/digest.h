// Two-sum block digests, shard digests and the state root (docs/side-channel.md, "Digests").
//
// Purpose: prove that a shard equals the trainer's state, and that bytes read back are the bytes written. Pure; any
// thread; the key table (1 MiB) is built once. Against accidents, not against an adversary.
#pragma once

#include <array>
#include <cstdint>
#include <span>
#include <vector>

#include "common/ids.h"
#include "replica/kernels.h"

namespace gradtap::replica {

inline constexpr std::uint64_t kBlockElements = 1ULL << 16;

using BlockDigest = std::array<std::uint64_t, 2>;

// Digest of up to one block of 32-bit words.
[[nodiscard]] BlockDigest block_digest(const Kernels& kernels, const float* words, std::uint64_t count);
// The same for 1 to 4 arrays of one length at once: the keys are read once.
void block_digests(const Kernels& kernels, std::span<const float* const> arrays, std::uint64_t count,
                   std::span<BlockDigest> digests);

// SHA-256 over the digests of all shards in shard order.
[[nodiscard]] Sha256 state_root(std::span<const Sha256> shard_digests);

}  // namespace gradtap::replica
