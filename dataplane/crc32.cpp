#include "dataplane/crc32.h"

#include <array>

#if defined(__x86_64__)
#include <immintrin.h>
#endif

namespace gradtap::dataplane {
namespace {

constexpr std::uint32_t kPolynomial = 0xedb88320;
constexpr std::size_t kSlices = 16;
using Tables = std::array<std::array<std::uint32_t, 256>, kSlices>;

// tables[s][b]: the state that byte b leaves after s further zero bytes.
constexpr Tables make_tables() {
  Tables tables{};
  for (std::uint32_t byte = 0; byte < 256; ++byte) {
    std::uint32_t value = byte;
    for (int bit = 0; bit < 8; ++bit) value = value >> 1 ^ ((value & 1) != 0 ? kPolynomial : 0);
    tables[0][byte] = value;
  }
  for (std::size_t slice = 1; slice < kSlices; ++slice)
    for (std::size_t byte = 0; byte < 256; ++byte) {
      const std::uint32_t before = tables[slice - 1][byte];
      tables[slice][byte] = before >> 8 ^ tables[0][before & 0xff];
    }
  return tables;
}

constexpr Tables kTables = make_tables();

#if defined(__x86_64__)

constexpr std::size_t kFoldBytes = 64;

// Folding by 512 and 128 bits and Barrett reduction. The constants are powers of x modulo the polynomial, in the
// reflected notation: x^(n*128+32) and x^(n*128-32) for n = 4 and n = 1, x^64; the polynomial and its quotient.
__attribute__((target("pclmul,sse4.1"))) std::uint32_t crc32_fold(std::uint32_t state, const std::uint8_t* p,
                                                                  std::size_t bytes) {
  const auto load = [](const std::uint8_t* at) { return _mm_loadu_si128(reinterpret_cast<const __m128i*>(at)); };
  const __m128i by512 = _mm_set_epi64x(0x01c6e41596, 0x0154442bd4);
  const __m128i by128 = _mm_set_epi64x(0x00ccaa009e, 0x01751997d0);
  __m128i a = _mm_xor_si128(load(p), _mm_cvtsi32_si128(static_cast<int>(state)));
  __m128i b = load(p + 16);
  __m128i c = load(p + 32);
  __m128i d = load(p + 48);
#define GRADTAP_FOLD(x, k, next) \
  _mm_xor_si128(_mm_xor_si128(_mm_clmulepi64_si128(x, k, 0x00), _mm_clmulepi64_si128(x, k, 0x11)), next)
  for (p += 64, bytes -= 64; bytes >= 64; p += 64, bytes -= 64) {
    a = GRADTAP_FOLD(a, by512, load(p));
    b = GRADTAP_FOLD(b, by512, load(p + 16));
    c = GRADTAP_FOLD(c, by512, load(p + 32));
    d = GRADTAP_FOLD(d, by512, load(p + 48));
  }
  a = GRADTAP_FOLD(a, by128, b);
  a = GRADTAP_FOLD(a, by128, c);
  a = GRADTAP_FOLD(a, by128, d);
  for (; bytes >= 16; p += 16, bytes -= 16) a = GRADTAP_FOLD(a, by128, load(p));
#undef GRADTAP_FOLD
  const __m128i low32 = _mm_setr_epi32(-1, 0, -1, 0);
  a = _mm_xor_si128(_mm_srli_si128(a, 8), _mm_clmulepi64_si128(a, by128, 0x10));
  const __m128i by64 = _mm_set_epi64x(0, 0x0163cd6124);
  a = _mm_xor_si128(_mm_srli_si128(a, 4), _mm_clmulepi64_si128(_mm_and_si128(a, low32), by64, 0x00));
  const __m128i reduce = _mm_set_epi64x(0x01f7011641, 0x01db710641);
  __m128i t = _mm_clmulepi64_si128(_mm_and_si128(a, low32), reduce, 0x10);
  t = _mm_clmulepi64_si128(_mm_and_si128(t, low32), reduce, 0x00);
  return static_cast<std::uint32_t>(_mm_extract_epi32(_mm_xor_si128(a, t), 1));
}

bool can_fold() {
  static const bool can = __builtin_cpu_supports("pclmul") != 0 && __builtin_cpu_supports("sse4.1") != 0;
  return can;
}

#endif

}  // namespace

std::uint32_t crc32_update_by_tables(std::uint32_t state, ByteSpan bytes) {
  const std::uint8_t* p = bytes.data();
  std::size_t left = bytes.size();
  for (; left >= kSlices; left -= kSlices, p += kSlices) {
    const std::uint32_t first = load_le<std::uint32_t>(p) ^ state;
    state = kTables[15][first & 0xff] ^ kTables[14][first >> 8 & 0xff] ^ kTables[13][first >> 16 & 0xff] ^
            kTables[12][first >> 24];
    for (std::size_t i = 4; i < kSlices; ++i) state ^= kTables[kSlices - 1 - i][p[i]];
  }
  for (; left > 0; --left, ++p) state = state >> 8 ^ kTables[0][(state ^ *p) & 0xff];
  return state;
}

std::uint32_t crc32_update(std::uint32_t state, ByteSpan bytes) {
#if defined(__x86_64__)
  if (bytes.size() >= kFoldBytes && can_fold()) {
    const std::size_t folded = bytes.size() & ~std::size_t{15};
    state = crc32_fold(state, bytes.data(), folded);
    bytes = bytes.subspan(folded);
  }
#endif
  return crc32_update_by_tables(state, bytes);
}

}  // namespace gradtap::dataplane
