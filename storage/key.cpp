#include "storage/key.h"

#include <algorithm>

#include <fmt/format.h>

namespace gradtap::storage {
namespace {

template <class T>
void append_be(std::string& out, T value) {
  std::uint8_t bytes[sizeof(T)];
  store_be<T>(bytes, value);
  out.append(reinterpret_cast<const char*>(bytes), sizeof bytes);
}

void append(std::string& out, const JobId& job) {
  out.append(reinterpret_cast<const char*>(job.data()), job.size());
}

}  // namespace

std::string lineage_prefix(const JobId& job, LineageId lineage) {
  std::string out;
  out.reserve(kChunkKeyBytes);
  append(out, job);
  append_be(out, lineage);
  return out;
}

std::string shard_key(const JobId& job, LineageId lineage, ShardId shard) {
  std::string out = lineage_prefix(job, lineage);
  append_be(out, shard);
  return out;
}

std::string encode(const ChunkKey& key) {
  std::string out = shard_key(key.job, key.lineage, key.shard);
  append_be(out, key.step);
  append_be(out, key.kind);
  append_be(out, key.chunk);
  return out;
}

std::optional<ChunkKey> parse_chunk_key(ByteSpan bytes) {
  if (bytes.size() != kChunkKeyBytes) return std::nullopt;
  ByteReader reader(bytes);
  ChunkKey key;
  const ByteSpan job = reader.take(key.job.size());
  std::copy(job.begin(), job.end(), key.job.begin());
  key.lineage = reader.be<std::uint32_t>();
  key.shard = reader.be<std::uint32_t>();
  key.step = reader.be<std::uint64_t>();
  key.kind = reader.be<std::uint8_t>();
  key.chunk = reader.be<std::uint16_t>();
  return key;
}

std::string describe(const ChunkKey& key) {
  return fmt::format("job {}.. lineage {} shard {} step {} kind {} chunk {}", to_hex(key.job.data(), 4), key.lineage,
                     key.shard, key.step, key.kind, key.chunk);
}

std::optional<SideKey> parse_side_key(std::string_view key) {
  constexpr std::size_t kFixed = 33;
  if (key.size() < kFixed) return std::nullopt;
  const auto kind = static_cast<std::uint8_t>(key[0]);
  if ((kind < 1 || kind > 5) && kind != 255) return std::nullopt;
  ByteReader reader(ByteSpan(reinterpret_cast<const std::uint8_t*>(key.data()) + 1, kFixed - 1));
  SideKey parsed;
  parsed.kind = static_cast<SideKind>(kind);
  const ByteSpan job = reader.take(parsed.job.size());
  std::copy(job.begin(), job.end(), parsed.job.begin());
  parsed.lineage = reader.be<std::uint32_t>();
  parsed.step = reader.be<std::uint64_t>();
  parsed.rank = reader.be<std::uint32_t>();
  parsed.suffix = std::string(key.substr(kFixed));
  return parsed;
}

std::string side_prefix(SideKind kind, const JobId& job) {
  std::string out(1, static_cast<char>(kind));
  append(out, job);
  return out;
}

std::string side_prefix(SideKind kind, const JobId& job, LineageId lineage) {
  std::string out = side_prefix(kind, job);
  append_be(out, lineage);
  return out;
}

std::string side_key(SideKind kind, const JobId& job, LineageId lineage, StepNumber step, std::uint32_t rank) {
  std::string out = side_prefix(kind, job, lineage);
  append_be(out, step);
  append_be(out, rank);
  return out;
}

}  // namespace gradtap::storage
