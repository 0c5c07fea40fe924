#include "storage/value_format.h"

#include <cstring>

#include <fmt/format.h>
#include <xxhash.h>

#include "common/ids.h"

namespace gradtap::storage {
namespace {

constexpr std::uint8_t kChunkMagic[4] = {'G', 'T', 'C', 'H'};
constexpr std::uint8_t kDigestMagic[4] = {'G', 'T', 'D', 'G'};

Status check_magic_and_format(ByteSpan value, std::size_t minimum, const std::uint8_t* magic) {
  if (value.size() < minimum)
    return fail(ErrorCode::kStoreCorrupt, "value is shorter than its header", {}, fmt::format("{} bytes", minimum),
                fmt::format("{} bytes", value.size()));
  if (std::memcmp(value.data(), magic, 4) != 0)
    return fail(ErrorCode::kStoreCorrupt, "value has another magic", {}, to_hex(magic, 4), to_hex(value.data(), 4));
  const auto format = load_le<std::uint16_t>(value.data() + 4);
  if (format == 0 || format > kValueFormat)
    return fail(ErrorCode::kStoreFormat, "value has a format that this build does not read", {},
                fmt::format("1..{}", kValueFormat), fmt::format("{}", format), "use the newer gradtap that wrote it");
  return {};
}

}  // namespace

void write_chunk_header(const ChunkHeader& header, std::uint8_t* out) {
  std::memcpy(out, kChunkMagic, 4);
  store_le<std::uint16_t>(out + 4, kValueFormat);
  out[6] = header.codec;
  out[7] = header.encryption;
  store_le<std::uint32_t>(out + 8, header.plain_bytes);
  store_le<std::uint32_t>(out + 12, header.stored_bytes);
  store_le<std::uint64_t>(out + 16, header.offset);
  store_le<std::uint64_t>(out + 24, header.total);
  std::memcpy(out + 32, header.salt.data(), header.salt.size());
}

Result<ChunkHeader> parse_chunk_header(ByteSpan value) {
  GRADTAP_TRY(check_magic_and_format(value, kChunkHeaderBytes, kChunkMagic));
  ChunkHeader header;
  header.codec = value[6];
  header.encryption = value[7];
  header.plain_bytes = load_le<std::uint32_t>(value.data() + 8);
  header.stored_bytes = load_le<std::uint32_t>(value.data() + 12);
  header.offset = load_le<std::uint64_t>(value.data() + 16);
  header.total = load_le<std::uint64_t>(value.data() + 24);
  std::memcpy(header.salt.data(), value.data() + 32, header.salt.size());
  if (header.codec != 0 || header.encryption != 0)
    return fail(ErrorCode::kStoreFormat, "value has a codec or an encryption that this build does not read", {}, "0, 0",
                fmt::format("{}, {}", header.codec, header.encryption), "use the newer gradtap that wrote it");
  if (header.stored_bytes != value.size() - kChunkHeaderBytes || header.plain_bytes != header.stored_bytes ||
      header.plain_bytes > kChunkPayloadMax)
    return fail(ErrorCode::kStoreCorrupt, "chunk length does not fit", {},
                fmt::format("{} bytes", value.size() - kChunkHeaderBytes),
                fmt::format("plain {}, stored {}", header.plain_bytes, header.stored_bytes));
  if (header.offset > header.total || header.plain_bytes > header.total - header.offset)
    return fail(ErrorCode::kStoreCorrupt, "chunk lies outside its record", {}, fmt::format("{} bytes", header.total),
                fmt::format("offset {} + {}", header.offset, header.plain_bytes));
  return header;
}

std::string encode(const DigestEntry& entry) {
  std::string out(kDigestHeaderBytes + entry.digests.size() * sizeof(std::uint64_t), '\0');
  auto* p = reinterpret_cast<std::uint8_t*>(out.data());
  std::memcpy(p, kDigestMagic, 4);
  store_le<std::uint16_t>(p + 4, kValueFormat);
  store_le<std::uint16_t>(p + 6, entry.chunks);
  store_le<std::uint32_t>(p + 8, entry.stored_bytes);
  std::memcpy(p + 12, entry.xxh3_128.data(), entry.xxh3_128.size());
  store_le<std::uint64_t>(p + 28, entry.digests.size());
  if (!entry.digests.empty())
    std::memcpy(p + kDigestHeaderBytes, entry.digests.data(), entry.digests.size() * sizeof(std::uint64_t));
  return out;
}

Result<DigestEntry> parse_digest_entry(ByteSpan value) {
  GRADTAP_TRY(check_magic_and_format(value, kDigestHeaderBytes, kDigestMagic));
  DigestEntry entry;
  entry.chunks = load_le<std::uint16_t>(value.data() + 6);
  entry.stored_bytes = load_le<std::uint32_t>(value.data() + 8);
  std::memcpy(entry.xxh3_128.data(), value.data() + 12, entry.xxh3_128.size());
  const auto count = load_le<std::uint64_t>(value.data() + 28);
  const std::size_t rest = value.size() - kDigestHeaderBytes;
  if (rest % sizeof(std::uint64_t) != 0 || count != rest / sizeof(std::uint64_t) || entry.chunks == 0)
    return fail(ErrorCode::kStoreCorrupt, "digest entry length does not fit", {}, fmt::format("{} digests", count),
                fmt::format("{} bytes", rest));
  entry.digests.resize(count);
  if (count > 0) std::memcpy(entry.digests.data(), value.data() + kDigestHeaderBytes, rest);
  return entry;
}

std::array<std::uint8_t, 16> xxh3_128(ByteSpan bytes) {
  const XXH128_hash_t hash = XXH3_128bits(bytes.data(), bytes.size());
  XXH128_canonical_t canonical;
  XXH128_canonicalFromHash(&canonical, hash);
  std::array<std::uint8_t, 16> out;
  std::memcpy(out.data(), canonical.digest, out.size());
  return out;
}

}  // namespace gradtap::storage
