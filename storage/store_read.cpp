#include <cstring>

#include <fmt/format.h>
#include <rocksdb/metadata.h>
#include <sys/statvfs.h>

#include "storage/store_impl.h"

namespace gradtap::storage {
namespace {

std::unexpected<Error> read_failed(const rocksdb::Status& status, std::string where) {
  if (status.IsCorruption())
    return fail(ErrorCode::kStoreCorrupt, "stored bytes are corrupt", std::move(where), {}, status.ToString(),
                "read the same record elsewhere or fall back to an older full version");
  return fail(ErrorCode::kStoreRead, "stored bytes cannot be read", std::move(where), {}, status.ToString(),
              "check the disk");
}

Error at(Error error, std::string where) {
  error.where = std::move(where);
  return error;
}

std::string printable(std::string_view key) {
  return "key " + to_hex(span(key).data(), key.size());
}

}  // namespace

Result<std::optional<Mark>> ShardStore::Impl::read_mark(const std::string& key) const {
  rocksdb::PinnableSlice value;
  const auto status = db->Get({}, mark, key, &value);
  if (status.IsNotFound()) return std::optional<Mark>{};
  if (!status.ok()) return read_failed(status, "mark " + printable(key));
  auto decoded = schema::decode_mark(span(value));
  if (!decoded) return std::unexpected<Error>(at(decoded.error(), "mark " + printable(key)));
  if (shard_key(decoded->job, decoded->lineage, decoded->shard) != key)
    return fail(ErrorCode::kStoreCorrupt, "mark is of another shard than its key", "mark " + printable(key));
  return std::optional<Mark>(std::move(*decoded));
}

Result<std::vector<Mark>> ShardStore::Impl::scan_marks(const std::string& prefix) const {
  std::vector<Mark> marks;
  const std::unique_ptr<rocksdb::Iterator> it(db->NewIterator({}, mark));
  for (it->Seek(prefix); it->Valid() && it->key().starts_with(prefix); it->Next()) {
    auto decoded = schema::decode_mark(span(it->value()));
    const std::string key = it->key().ToString();
    if (!decoded) return std::unexpected<Error>(at(decoded.error(), "mark " + printable(key)));
    if (shard_key(decoded->job, decoded->lineage, decoded->shard) != key)
      return fail(ErrorCode::kStoreCorrupt, "mark is of another shard than its key", "mark " + printable(key));
    marks.push_back(std::move(*decoded));
  }
  if (!it->status().ok()) return read_failed(it->status(), "marks");
  return marks;
}

Result<DigestEntry> ShardStore::Impl::read_digest(const ChunkKey& key) const {
  rocksdb::PinnableSlice value;
  const auto status = db->Get({}, dig, encode(key), &value);
  if (status.IsNotFound()) return fail(ErrorCode::kStoreMissingChunk, "nothing durable under this key", describe(key));
  if (!status.ok()) return read_failed(status, "digest of " + describe(key));
  auto entry = parse_digest_entry(span(value));
  if (!entry) return std::unexpected<Error>(at(entry.error(), "digest of " + describe(key)));
  return entry;
}

std::string ShardStore::Impl::file_of(const ChunkKey& key) const {
  std::vector<rocksdb::LiveFileMetaData> files;
  db->GetLiveFilesMetaData(&files);
  const std::string text = encode(key);
  const std::string& name = family(key.kind)->GetName();
  for (const auto& file : files)
    if (file.column_family_name == name && file.smallestkey <= text && text <= file.largestkey)
      return file.db_path + file.name;
  return "no table";
}

Status ShardStore::Impl::visit_record(
    ChunkKey key, const std::function<Status(const ChunkHeader& header, ByteSpan payload)>& visit) const {
  std::uint32_t chunks = 1;
  std::uint64_t next = 0;
  std::uint64_t total = 0;
  for (std::uint32_t chunk = 0; chunk < chunks; ++chunk) {
    key.chunk = static_cast<std::uint16_t>(chunk);
    const auto digest = read_digest(key);
    if (!digest) return std::unexpected<Error>(digest.error());
    if (chunk == 0) chunks = digest->chunks;
    rocksdb::ReadOptions read;
    read.verify_checksums = true;
    read.fill_cache = false;
    rocksdb::PinnableSlice value;
    auto status = db->Get(read, family(key.kind), encode(key), &value);
    if (status.IsNotFound())
      return fail(ErrorCode::kStoreMissingChunk, "chunk is not there", describe(key),
                  fmt::format("{} bytes", digest->stored_bytes), "nothing",
                  "read the same record elsewhere or fall back to an older full version");
    if (status.IsCorruption()) {
      // RocksDB's checksum failed: read once more without it, only to say what the bytes are.
      const std::string reason = status.ToString();
      read.verify_checksums = false;
      value.Reset();
      status = db->Get(read, family(key.kind), encode(key), &value);
      return fail(ErrorCode::kStoreCorrupt, "chunk is corrupt", fmt::format("{} in {}", describe(key), file_of(key)),
                  fmt::format("XXH3-128 {}", to_hex(digest->xxh3_128)),
                  status.ok() ? fmt::format("XXH3-128 {} ({})", to_hex(xxh3_128(span(value))), reason) : reason,
                  "read the same record elsewhere or fall back to an older full version");
    }
    if (!status.ok()) return read_failed(status, fmt::format("{} in {}", describe(key), file_of(key)));
    const auto actual = xxh3_128(span(value));
    if (value.size() != digest->stored_bytes || actual != digest->xxh3_128)
      return fail(ErrorCode::kStoreCorrupt, "chunk differs from its digest",
                  fmt::format("{} in {}", describe(key), file_of(key)),
                  fmt::format("XXH3-128 {}, {} bytes", to_hex(digest->xxh3_128), digest->stored_bytes),
                  fmt::format("XXH3-128 {}, {} bytes", to_hex(actual), value.size()),
                  "read the same record elsewhere or fall back to an older full version");
    const auto header = parse_chunk_header(span(value));
    if (!header) return std::unexpected<Error>(at(header.error(), describe(key)));
    if (chunk == 0) total = header->total;
    if (header->offset != next || header->total != total)
      return fail(ErrorCode::kStoreCorrupt, "chunks of a record do not fit together", describe(key),
                  fmt::format("offset {} of {}", next, total),
                  fmt::format("offset {} of {}", header->offset, header->total));
    next += header->plain_bytes;
    GRADTAP_TRY(visit(*header, span(value).subspan(kChunkHeaderBytes)));
  }
  if (next != total)
    return fail(ErrorCode::kStoreCorrupt, "record is shorter than its total", describe(key),
                fmt::format("{} bytes", total), fmt::format("{} bytes", next));
  return {};
}

Result<std::vector<std::uint8_t>> ShardStore::Impl::read_record(const ChunkKey& key) const {
  std::vector<std::uint8_t> out;
  GRADTAP_TRY(visit_record(key, [&out](const ChunkHeader& header, ByteSpan payload) -> Status {
    // The total is believed only as far as chunks of the largest size could carry it.
    if (header.offset == 0 && header.total <= kChunkPayloadMax * 0xFFFF) out.reserve(header.total);
    out.insert(out.end(), payload.begin(), payload.end());
    return {};
  }));
  return out;
}

Status ShardStore::read_into(const JobId& job, LineageId lineage, ShardId shard, StepNumber step, std::uint8_t kind,
                             std::span<std::uint8_t> out) const {
  const ChunkKey key{job, lineage, shard, step, kind, 0};
  return impl_->visit_record(key, [&](const ChunkHeader& header, ByteSpan payload) -> Status {
    if (header.total != out.size())
      return fail(ErrorCode::kStoreCorrupt, "record has another length", describe(key),
                  fmt::format("{} bytes", out.size()), fmt::format("{} bytes", header.total));
    if (!payload.empty()) std::memcpy(out.data() + header.offset, payload.data(), payload.size());
    return {};
  });
}

Result<std::vector<std::uint8_t>> ShardStore::read_log(const JobId& job, LineageId lineage, ShardId shard,
                                                       StepNumber step) const {
  return impl_->read_record({job, lineage, shard, step, kKindGradient, 0});
}

Result<std::uint64_t> ShardStore::log_bytes(const JobId& job, LineageId lineage, ShardId shard, StepNumber step) const {
  std::uint64_t bytes = 0;
  const std::string first = encode(ChunkKey{job, lineage, shard, step, kKindGradient, 0});
  const std::string prefix = first.substr(0, kShardKeyBytes + sizeof step + sizeof kKindGradient);
  const std::unique_ptr<rocksdb::Iterator> it(impl_->db->NewIterator({}, impl_->dig));
  for (it->Seek(first); it->Valid() && it->key().starts_with(prefix); it->Next()) {
    const auto entry = parse_digest_entry(span(it->value()));
    if (!entry || entry->stored_bytes < kChunkHeaderBytes)
      return fail(ErrorCode::kStoreCorrupt, "digest entry is malformed", printable(prefix));
    bytes += entry->stored_bytes - kChunkHeaderBytes;
  }
  if (!it->status().ok()) return read_failed(it->status(), printable(prefix));
  return bytes;
}

Result<std::vector<std::uint8_t>> ShardStore::read_full(const JobId& job, LineageId lineage, ShardId shard,
                                                        StepNumber step, std::uint8_t kind) const {
  if (kind < kKindFullFirst)
    return fail(ErrorCode::kOutOfRange, "kind is not of a full version", {}, "16..255", fmt::format("{}", kind));
  return impl_->read_record({job, lineage, shard, step, kind, 0});
}

Result<std::vector<FullPartInfo>> ShardStore::full_parts(const JobId& job, LineageId lineage, ShardId shard,
                                                         StepNumber step) const {
  std::vector<FullPartInfo> parts;
  ChunkKey first{job, lineage, shard, step, kKindFullFirst, 0};
  const std::string prefix = encode(first).substr(0, kShardKeyBytes + sizeof step);
  const std::unique_ptr<rocksdb::Iterator> it(impl_->db->NewIterator({}, impl_->dig));
  for (it->Seek(encode(first)); it->Valid() && it->key().starts_with(prefix); it->Next()) {
    const auto key = parse_chunk_key(span(it->key()));
    auto entry = parse_digest_entry(span(it->value()));
    if (!key || !entry) return fail(ErrorCode::kStoreCorrupt, "digest entry is malformed", printable(prefix));
    if (key->chunk == 0) parts.push_back({key->kind, 0, std::move(entry->digests)});
    if (parts.empty() || entry->stored_bytes < kChunkHeaderBytes)
      return fail(ErrorCode::kStoreCorrupt, "digest entry is malformed", describe(*key));
    parts.back().bytes += entry->stored_bytes - kChunkHeaderBytes;
  }
  if (!it->status().ok()) return read_failed(it->status(), printable(prefix));
  return parts;
}

Result<std::vector<StepNumber>> ShardStore::full_steps(const JobId& job, LineageId lineage, ShardId shard) const {
  std::vector<StepNumber> steps;
  const std::string prefix = shard_key(job, lineage, shard);
  const std::unique_ptr<rocksdb::Iterator> it(impl_->db->NewIterator({}, impl_->dig));
  for (it->Seek(prefix); it->Valid() && it->key().starts_with(prefix); it->Next()) {
    const auto key = parse_chunk_key(span(it->key()));
    if (!key) return fail(ErrorCode::kStoreCorrupt, "digest key is malformed", printable(it->key().ToStringView()));
    if (key->kind >= kKindFullFirst && (steps.empty() || steps.back() != key->step)) steps.push_back(key->step);
  }
  if (!it->status().ok()) return read_failed(it->status(), printable(prefix));
  return steps;
}

Result<Sha256> ShardStore::state_digest(const JobId& job, LineageId lineage, ShardId shard, StepNumber step) const {
  const ChunkKey key{job, lineage, shard, step, kKindState, 0};
  rocksdb::PinnableSlice value;
  const auto status = impl_->db->Get({}, impl_->dig, encode(key), &value);
  if (status.IsNotFound()) return fail(ErrorCode::kStoreMissingChunk, "no state digest of this step", describe(key));
  if (!status.ok()) return read_failed(status, describe(key));
  const auto payload = schema::unseal(schema::RecordType::kRaw, span(value));
  if (!payload) return std::unexpected<Error>(at(payload.error(), describe(key)));
  Sha256 digest;
  if (payload->size() != digest.size())
    return fail(ErrorCode::kStoreCorrupt, "state digest has another length", describe(key));
  std::memcpy(digest.data(), payload->data(), digest.size());
  return digest;
}

Result<std::vector<std::uint8_t>> ShardStore::get_side(std::string_view key) const {
  rocksdb::PinnableSlice value;
  const auto status = impl_->db->Get({}, impl_->side, rocksdb::Slice(key.data(), key.size()), &value);
  if (status.IsNotFound()) return fail(ErrorCode::kStoreMissingChunk, "no side value under this key", printable(key));
  if (!status.ok()) return read_failed(status, "side " + printable(key));
  const auto payload = schema::unseal(schema::RecordType::kRaw, span(value));
  if (!payload) return std::unexpected<Error>(at(payload.error(), "side " + printable(key)));
  return std::vector<std::uint8_t>(payload->begin(), payload->end());
}

Status ShardStore::scan_side(std::string_view prefix,
                             const std::function<bool(std::string_view key, ByteSpan bytes)>& visit) const {
  const rocksdb::Slice start(prefix.data(), prefix.size());
  const std::unique_ptr<rocksdb::Iterator> it(impl_->db->NewIterator({}, impl_->side));
  for (it->Seek(start); it->Valid() && it->key().starts_with(start); it->Next()) {
    const auto payload = schema::unseal(schema::RecordType::kRaw, span(it->value()));
    if (!payload) return std::unexpected<Error>(at(payload.error(), "side " + printable(it->key().ToStringView())));
    if (!visit(it->key().ToStringView(), *payload)) return {};
  }
  if (!it->status().ok()) return read_failed(it->status(), "side " + printable(prefix));
  return {};
}

Result<std::vector<Mark>> ShardStore::marks(const JobId& job) const {
  return impl_->scan_marks(std::string(reinterpret_cast<const char*>(job.data()), job.size()));
}

Result<std::vector<Mark>> ShardStore::marks(const JobId& job, LineageId lineage) const {
  return impl_->scan_marks(lineage_prefix(job, lineage));
}

Result<std::uint64_t> ShardStore::free_bytes() const {
  struct statvfs file_system{};
  if (::statvfs(impl_->stage_dir.c_str(), &file_system) != 0)
    return fail(ErrorCode::kStoreRead, "free space cannot be read", impl_->stage_dir, {}, std::strerror(errno));
  return static_cast<std::uint64_t>(file_system.f_bavail) * file_system.f_frsize;
}

}  // namespace gradtap::storage
