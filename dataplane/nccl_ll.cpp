#include "dataplane/nccl_ll.h"

#include <cstring>

#if defined(__x86_64__)
#include <immintrin.h>
#endif

namespace gradtap::dataplane {
namespace {

#if defined(__x86_64__)

// Two lines a step: the even words of both are the data, the odd ones the flags.
bool strip_by_16(const std::uint8_t* wire, std::size_t lines, std::uint32_t flag, std::uint8_t* data) {
  const __m128i flags = _mm_set1_epi32(static_cast<int>(flag));
  __m128i same = _mm_set1_epi32(-1);
  std::size_t line = 0;
  for (; line + 2 <= lines; line += 2, wire += 32, data += 16) {
    const __m128 first = _mm_loadu_ps(reinterpret_cast<const float*>(wire));
    const __m128 second = _mm_loadu_ps(reinterpret_cast<const float*>(wire + 16));
    _mm_storeu_si128(reinterpret_cast<__m128i*>(data),
                     _mm_castps_si128(_mm_shuffle_ps(first, second, _MM_SHUFFLE(2, 0, 2, 0))));
    same = _mm_and_si128(
        same, _mm_cmpeq_epi32(_mm_castps_si128(_mm_shuffle_ps(first, second, _MM_SHUFFLE(3, 1, 3, 1))), flags));
  }
  return _mm_movemask_epi8(same) == 0xffff && strip_ll_plainly(wire, lines - line, flag, data);
}

__attribute__((target("avx2"))) bool strip_by_32(const std::uint8_t* wire, std::size_t lines, std::uint32_t flag,
                                                 std::uint8_t* data) {
  const __m256i flags = _mm256_set1_epi32(static_cast<int>(flag));
  __m256i same = _mm256_set1_epi32(-1);
  std::size_t line = 0;
  for (; line + 4 <= lines; line += 4, wire += 64, data += 32) {
    const __m256 first = _mm256_loadu_ps(reinterpret_cast<const float*>(wire));
    const __m256 second = _mm256_loadu_ps(reinterpret_cast<const float*>(wire + 32));
    // The shuffle works within halves: its 64-bit parts come out as 0, 2, 1, 3.
    const __m256i words = _mm256_castps_si256(_mm256_shuffle_ps(first, second, _MM_SHUFFLE(2, 0, 2, 0)));
    _mm256_storeu_si256(reinterpret_cast<__m256i*>(data), _mm256_permute4x64_epi64(words, _MM_SHUFFLE(3, 1, 2, 0)));
    const __m256i seen = _mm256_castps_si256(_mm256_shuffle_ps(first, second, _MM_SHUFFLE(3, 1, 3, 1)));
    same = _mm256_and_si256(same, _mm256_cmpeq_epi32(seen, flags));
  }
  return _mm256_movemask_epi8(same) == -1 && strip_ll_plainly(wire, lines - line, flag, data);
}

bool has_avx2() {
  static const bool has = __builtin_cpu_supports("avx2") != 0;
  return has;
}

#endif

}  // namespace

std::optional<std::uint32_t> ll_flag(ByteSpan wire) {
  if (wire.size() < kLlLineBytes || wire.size() % kLlLineBytes != 0) return std::nullopt;
  const auto flag = load_le<std::uint32_t>(&wire[4]);
  if (flag == 0 || flag != load_le<std::uint32_t>(&wire[12])) return std::nullopt;
  return flag;
}

bool strip_ll_plainly(const std::uint8_t* wire, std::size_t lines, std::uint32_t flag, std::uint8_t* data) {
  std::uint32_t differing = 0;
  for (std::size_t line = 0; line < lines; ++line, wire += kLlLineBytes, data += kLlLineDataBytes) {
    std::memcpy(data, wire, 4);
    std::memcpy(data + 4, wire + 8, 4);
    differing |= (load_le<std::uint32_t>(wire + 4) ^ flag) | (load_le<std::uint32_t>(wire + 12) ^ flag);
  }
  return differing == 0;
}

bool strip_ll(const std::uint8_t* wire, std::size_t lines, std::uint32_t flag, std::uint8_t* data) {
#if defined(__x86_64__)
  return has_avx2() ? strip_by_32(wire, lines, flag, data) : strip_by_16(wire, lines, flag, data);
#else
  return strip_ll_plainly(wire, lines, flag, data);
#endif
}

bool has_ll_flags(ByteSpan wire, std::uint32_t flag) {
  if (wire.size() % kLlLineBytes != 0) return false;
  std::uint32_t differing = 0;
  for (std::size_t at = 0; at < wire.size(); at += kLlLineBytes)
    differing |= (load_le<std::uint32_t>(&wire[at + 4]) ^ flag) | (load_le<std::uint32_t>(&wire[at + 12]) ^ flag);
  return differing == 0;
}

}  // namespace gradtap::dataplane
