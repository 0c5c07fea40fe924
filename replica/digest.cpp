#include "replica/digest.h"

#include "common/random.h"
#include "common/sha256.h"

namespace gradtap::replica {
namespace {

const std::uint64_t* key_table() {
  static const std::vector<std::uint64_t> keys = [] {
    std::vector<std::uint64_t> table(2 * kBlockElements);
    for (std::uint64_t n = 0; n < table.size(); ++n) table[n] = splitmix64_mix((n + 1) * kSplitmix64Increment) | 1;
    return table;
  }();
  return keys.data();
}

}  // namespace

void block_digests(const Kernels& kernels, std::span<const float* const> arrays, std::uint64_t count,
                   std::span<BlockDigest> digests) {
  const std::uint32_t* streams[4] = {};
  std::uint64_t sums[8] = {};
  for (std::size_t s = 0; s < arrays.size(); ++s) streams[s] = reinterpret_cast<const std::uint32_t*>(arrays[s]);
  kernels.two_sum(streams, arrays.size(), key_table(), count, sums);
  for (std::size_t s = 0; s < arrays.size(); ++s) digests[s] = {sums[2 * s], sums[2 * s + 1]};
}

BlockDigest block_digest(const Kernels& kernels, const float* words, std::uint64_t count) {
  BlockDigest digest{};
  block_digests(kernels, std::span(&words, 1), count, std::span(&digest, 1));
  return digest;
}

Sha256 state_root(std::span<const Sha256> shard_digests) {
  Sha256Stream stream;
  for (const Sha256& digest : shard_digests) stream.add(digest.data(), digest.size());
  return stream.finish();
}

}  // namespace gradtap::replica
