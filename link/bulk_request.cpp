#include "link/bulk_request.h"

#include <algorithm>

#include <fmt/format.h>
#include <xxhash.h>

#include "link/link_frame.h"

namespace gradtap::link {
namespace {

std::string identity_of(const std::vector<std::uint8_t>& bytes, std::size_t chunk_bytes) {
  XXH128_canonical_t canonical;
  XXH128_canonicalFromHash(&canonical, XXH3_128bits(bytes.data(), bytes.size()));
  return fmt::format("{}/{}/{}", to_hex(canonical.digest, sizeof canonical.digest), bytes.size(), chunk_bytes);
}

}  // namespace

MemorySource::MemorySource(std::vector<std::uint8_t> bytes, std::string meta, std::size_t chunk_bytes)
    : bytes_(std::move(bytes)),
      meta_(std::move(meta)),
      chunk_bytes_(std::clamp<std::size_t>(chunk_bytes, 1, kPayloadBytesMax)),
      identity_(identity_of(bytes_, chunk_bytes_)) {}

std::uint64_t MemorySource::chunks() const {
  return (bytes_.size() + chunk_bytes_ - 1) / chunk_bytes_;
}

Result<std::vector<std::uint8_t>> MemorySource::chunk(std::uint64_t index) {
  if (index >= chunks())
    return fail(ErrorCode::kOutOfRange, "no such chunk", {}, fmt::format("below {}", chunks()),
                fmt::format("{}", index));
  const auto from = bytes_.begin() + static_cast<std::ptrdiff_t>(index * chunk_bytes_);
  const std::size_t count = std::min<std::size_t>(chunk_bytes_, bytes_.size() - index * chunk_bytes_);
  return std::vector<std::uint8_t>(from, from + static_cast<std::ptrdiff_t>(count));
}

}  // namespace gradtap::link
