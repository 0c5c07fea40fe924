#include "schema/envelope.h"

#include <cstring>

#include <fmt/format.h>
#include <xxhash.h>

namespace gradtap::schema {
namespace {

constexpr std::uint8_t kMagic[4] = {'G', 'T', 'R', 'C'};

template <class T>
void store_le(std::uint8_t* p, T value) {
  std::memcpy(p, &value, sizeof value);
}

}  // namespace

std::vector<std::uint8_t> seal(RecordType type, ByteSpan payload) {
  std::vector<std::uint8_t> out(kEnvelopeBytes + payload.size());
  std::memcpy(out.data(), kMagic, sizeof kMagic);
  store_le<std::uint16_t>(out.data() + 4, kRecordFormat);
  store_le<std::uint16_t>(out.data() + 6, static_cast<std::uint16_t>(type));
  store_le<std::uint64_t>(out.data() + 8, payload.size());
  store_le<std::uint64_t>(out.data() + 16, XXH3_64bits(payload.data(), payload.size()));
  if (!payload.empty()) std::memcpy(out.data() + kEnvelopeBytes, payload.data(), payload.size());
  return out;
}

Result<ByteSpan> unseal(RecordType type, ByteSpan bytes) {
  if (bytes.size() < kEnvelopeBytes)
    return fail(ErrorCode::kStoreCorrupt, "record is shorter than its envelope", {},
                fmt::format("{} bytes", kEnvelopeBytes), fmt::format("{} bytes", bytes.size()));
  if (std::memcmp(bytes.data(), kMagic, sizeof kMagic) != 0)
    return fail(ErrorCode::kStoreCorrupt, "record has another magic", {}, "GTRC", to_hex(bytes.data(), 4));
  const auto format = load_le<std::uint16_t>(bytes.data() + 4);
  if (format == 0 || format > kRecordFormat)
    return fail(ErrorCode::kStoreFormat, "record has a format that this build does not read", {},
                fmt::format("1..{}", kRecordFormat), fmt::format("{}", format), "use the newer gradtap that wrote it");
  const auto found = load_le<std::uint16_t>(bytes.data() + 6);
  if (found != static_cast<std::uint16_t>(type))
    return fail(ErrorCode::kStoreCorrupt, "record is of another type", {},
                fmt::format("{}", static_cast<std::uint16_t>(type)), fmt::format("{}", found));
  const ByteSpan payload = bytes.subspan(kEnvelopeBytes);
  const auto length = load_le<std::uint64_t>(bytes.data() + 8);
  if (length != payload.size())
    return fail(ErrorCode::kStoreCorrupt, "record length does not fit", {}, fmt::format("{}", length),
                fmt::format("{}", payload.size()));
  const auto expected = load_le<std::uint64_t>(bytes.data() + 16);
  const std::uint64_t actual = XXH3_64bits(payload.data(), payload.size());
  if (expected != actual)
    return fail(ErrorCode::kStoreCorrupt, "record checksum differs", {}, fmt::format("{:016x}", expected),
                fmt::format("{:016x}", actual));
  return payload;
}

}  // namespace gradtap::schema
