/* Two-sum block digests in native code, for the trainer (docs/side-channel.md, "Digests").
 *
 * Purpose: a restored rank digests its whole state; torch needs ten times as long. Memory of the caller only; any
 * thread; no failure: the caller compares it with torch once before using it (gradtap/native.py). Written for itself
 * and not over the node's kernels: what the trainer checks stays independent of what the node computed.
 */
#include <stdint.h>

#if defined(__x86_64__) && defined(__GNUC__) && !defined(__clang__)
#define CLONES __attribute__((target_clones("arch=x86-64-v4", "avx2", "default")))
#else
#define CLONES
#endif

/* For each block of `block` words (the last may be shorter): sums[2 b] and sums[2 b + 1] become the sums of word times
 * key, modulo 2^64, over the keys of both tables. */
CLONES void gradtap_block_digests(const uint32_t* words, uint64_t count, const uint64_t* keys0, const uint64_t* keys1,
                                  uint64_t block, uint64_t* sums) {
  for (uint64_t begin = 0; begin < count; begin += block) {
    const uint64_t length = count - begin < block ? count - begin : block;
    const uint32_t* const at = words + begin;
    uint64_t first = 0;
    uint64_t second = 0;
    for (uint64_t n = 0; n < length; ++n) {
      first += at[n] * keys0[n];
      second += at[n] * keys1[n];
    }
    *sums++ = first;
    *sums++ = second;
  }
}
