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

std::uint32_t crc32_by_tables(std::uint32_t state, ByteSpan bytes) {
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

#if defined(__x86_64__)

constexpr std::size_t kLaneBytes = 16;
constexpr std::size_t kFoldBytes = 2 * kLaneBytes;  // below, tables are as fast
constexpr std::size_t kWideFoldBytes = 4 * 64;

// Folding by 512 and 128 bits and Barrett reduction. The constants are powers of x modulo the polynomial, in the
// reflected notation: x^(n*128+32) and x^(n*128-32) for n = 4 and n = 1, x^64; the polynomial and its quotient.
#define GRADTAP_FOLD_TARGET __attribute__((target("pclmul,sse4.1")))
#define GRADTAP_WIDE_FOLD_TARGET __attribute__((target("avx512f,vpclmulqdq,pclmul,sse4.1")))

GRADTAP_FOLD_TARGET inline __m128i load_lane(const std::uint8_t* at) {
  return _mm_loadu_si128(reinterpret_cast<const __m128i*>(at));
}

GRADTAP_FOLD_TARGET inline __m128i by_512() {
  return _mm_set_epi64x(0x01c6e41596, 0x0154442bd4);
}

GRADTAP_FOLD_TARGET inline __m128i by_128() {
  return _mm_set_epi64x(0x00ccaa009e, 0x01751997d0);
}

// `lane` moved on by as many bits as `by` says, and what stands there.
GRADTAP_FOLD_TARGET inline __m128i fold(__m128i lane, __m128i by, __m128i next) {
  return _mm_xor_si128(_mm_xor_si128(_mm_clmulepi64_si128(lane, by, 0x00), _mm_clmulepi64_si128(lane, by, 0x11)), next);
}

// One lane, and the rest in whole lanes.
GRADTAP_FOLD_TARGET std::uint32_t finish_folding(__m128i a, const std::uint8_t* p, std::size_t bytes) {
  for (; bytes >= kLaneBytes; p += kLaneBytes, bytes -= kLaneBytes) a = fold(a, by_128(), load_lane(p));
  const __m128i low32 = _mm_setr_epi32(-1, 0, -1, 0);
  a = _mm_xor_si128(_mm_srli_si128(a, 8), _mm_clmulepi64_si128(a, by_128(), 0x10));
  const __m128i by64 = _mm_set_epi64x(0, 0x0163cd6124);
  a = _mm_xor_si128(_mm_srli_si128(a, 4), _mm_clmulepi64_si128(_mm_and_si128(a, low32), by64, 0x00));
  const __m128i reduce = _mm_set_epi64x(0x01f7011641, 0x01db710641);
  __m128i t = _mm_clmulepi64_si128(_mm_and_si128(a, low32), reduce, 0x10);
  t = _mm_clmulepi64_si128(_mm_and_si128(t, low32), reduce, 0x00);
  return static_cast<std::uint32_t>(_mm_extract_epi32(_mm_xor_si128(a, t), 1));
}

GRADTAP_FOLD_TARGET std::uint32_t join_lanes(__m128i a, __m128i b, __m128i c, __m128i d, const std::uint8_t* p,
                                             std::size_t bytes) {
  a = fold(a, by_128(), b);
  a = fold(a, by_128(), c);
  a = fold(a, by_128(), d);
  return finish_folding(a, p, bytes);
}

// Whole lanes, one at least.
GRADTAP_FOLD_TARGET std::uint32_t crc32_fold(std::uint32_t state, const std::uint8_t* p, std::size_t bytes) {
  __m128i a = _mm_xor_si128(load_lane(p), _mm_cvtsi32_si128(static_cast<int>(state)));
  if (bytes < 4 * kLaneBytes) return finish_folding(a, p + kLaneBytes, bytes - kLaneBytes);
  __m128i b = load_lane(p + 16);
  __m128i c = load_lane(p + 32);
  __m128i d = load_lane(p + 48);
  for (p += 64, bytes -= 64; bytes >= 64; p += 64, bytes -= 64) {
    a = fold(a, by_512(), load_lane(p));
    b = fold(b, by_512(), load_lane(p + 16));
    c = fold(c, by_512(), load_lane(p + 32));
    d = fold(d, by_512(), load_lane(p + 48));
  }
  return join_lanes(a, b, c, d, p, bytes);
}

// The same four lanes in one register; at least 64 bytes.
GRADTAP_WIDE_FOLD_TARGET std::uint32_t crc32_fold_wide(std::uint32_t state, const std::uint8_t* p, std::size_t bytes) {
  const __m512i by = _mm512_set4_epi64(0x01c6e41596, 0x0154442bd4, 0x01c6e41596, 0x0154442bd4);
  __m512i lanes =
      _mm512_xor_si512(_mm512_loadu_si512(p), _mm512_zextsi128_si512(_mm_cvtsi32_si128(static_cast<int>(state))));
  for (p += 64, bytes -= 64; bytes >= 64; p += 64, bytes -= 64) {
    const __m512i moved =
        _mm512_xor_si512(_mm512_clmulepi64_epi128(lanes, by, 0x00), _mm512_clmulepi64_epi128(lanes, by, 0x11));
    lanes = _mm512_xor_si512(moved, _mm512_loadu_si512(p));
  }
  std::array<std::uint8_t, 64> parts;
  _mm512_storeu_si512(parts.data(), lanes);
  return join_lanes(load_lane(&parts[0]), load_lane(&parts[16]), load_lane(&parts[32]), load_lane(&parts[48]), p,
                    bytes);
}

#undef GRADTAP_FOLD_TARGET
#undef GRADTAP_WIDE_FOLD_TARGET

bool can_fold() {
  static const bool can = __builtin_cpu_supports("pclmul") != 0 && __builtin_cpu_supports("sse4.1") != 0;
  return can;
}

bool can_fold_wide() {
  static const bool can =
      can_fold() && __builtin_cpu_supports("avx512f") != 0 && __builtin_cpu_supports("vpclmulqdq") != 0;
  return can;
}

#endif

}  // namespace

std::optional<std::uint32_t> crc32_update_by(Crc32Way way, std::uint32_t state, ByteSpan bytes) {
#if defined(__x86_64__)
  const bool wide = way == Crc32Way::kWideFolding;
  if (way != Crc32Way::kTables) {
    if (!(wide ? can_fold_wide() : can_fold())) return std::nullopt;
    const std::size_t folded = bytes.size() / kLaneBytes * kLaneBytes;
    if (folded >= (wide ? 4 : 1) * kLaneBytes) {
      state = wide ? crc32_fold_wide(state, bytes.data(), folded) : crc32_fold(state, bytes.data(), folded);
      bytes = bytes.subspan(folded);
    }
  }
#else
  if (way != Crc32Way::kTables) return std::nullopt;
#endif
  return crc32_by_tables(state, bytes);
}

std::uint32_t crc32_update(std::uint32_t state, ByteSpan bytes) {
#if defined(__x86_64__)
  if (bytes.size() >= kWideFoldBytes && can_fold_wide()) return *crc32_update_by(Crc32Way::kWideFolding, state, bytes);
  if (bytes.size() >= kFoldBytes && can_fold()) return *crc32_update_by(Crc32Way::kFolding, state, bytes);
#endif
  return crc32_by_tables(state, bytes);
}

}  // namespace gradtap::dataplane
