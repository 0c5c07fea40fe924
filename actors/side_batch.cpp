#include "actors/side_batch.h"

#include <string>

namespace gradtap::actors {

namespace {

void append_u32(std::vector<std::uint8_t>& out, std::size_t value) {
  for (unsigned shift = 0; shift < 32; shift += 8) out.push_back(static_cast<std::uint8_t>(value >> shift));
}

std::uint32_t read_u32(ByteSpan bytes) {
  return static_cast<std::uint32_t>(bytes[0]) | static_cast<std::uint32_t>(bytes[1]) << 8 |
         static_cast<std::uint32_t>(bytes[2]) << 16 | static_cast<std::uint32_t>(bytes[3]) << 24;
}

std::unexpected<Error> malformed(const std::string& where, const std::string& expected, const std::string& actual) {
  return fail(ErrorCode::kRequestMalformed, "a batch of side entries is not one", where, expected, actual,
              "see that all nodes run the same version");
}

}  // namespace

std::vector<std::uint8_t> encode_side_batch(const std::vector<storage::SideEntry>& entries) {
  std::vector<std::uint8_t> out;
  std::size_t total = 4;
  for (const storage::SideEntry& entry : entries) total += 8 + entry.key.size() + entry.bytes.size();
  out.reserve(total);
  append_u32(out, entries.size());
  for (const storage::SideEntry& entry : entries) {
    append_u32(out, entry.key.size());
    append_u32(out, entry.bytes.size());
    out.insert(out.end(), entry.key.begin(), entry.key.end());
    out.insert(out.end(), entry.bytes.begin(), entry.bytes.end());
  }
  return out;
}

Result<std::vector<storage::SideEntry>> decode_side_batch(ByteSpan bytes) {
  if (bytes.size() < 4) return malformed("count", "4 bytes", std::to_string(bytes.size()));
  const std::uint32_t count = read_u32(bytes);
  bytes = bytes.subspan(4);
  std::vector<storage::SideEntry> entries;
  for (std::uint32_t i = 0; i < count; ++i) {
    const std::string where = "entry " + std::to_string(i);
    if (bytes.size() < 8) return malformed(where, "8 bytes of lengths", std::to_string(bytes.size()));
    const std::uint32_t key = read_u32(bytes);
    const std::uint32_t value = read_u32(bytes.subspan(4));
    bytes = bytes.subspan(8);
    if (key == 0 || key > kSideKeyBytesMax) return malformed(where, "a key of 1..256 bytes", std::to_string(key));
    if (bytes.size() < std::size_t{key} + value)
      return malformed(where, std::to_string(std::size_t{key} + value) + " bytes", std::to_string(bytes.size()));
    storage::SideEntry entry;
    entry.key.assign(bytes.begin(), bytes.begin() + key);
    entry.bytes.assign(bytes.begin() + key, bytes.begin() + key + value);
    entries.push_back(std::move(entry));
    bytes = bytes.subspan(std::size_t{key} + value);
  }
  if (!bytes.empty()) return malformed("end", "no more bytes", std::to_string(bytes.size()));
  return entries;
}

}  // namespace gradtap::actors
