// Inside of ShardStore, shared by its translation units (open, commit, read, retain). Not for others.
#pragma once

#include <memory>
#include <optional>
#include <string>
#include <vector>

#include <rocksdb/db.h>
#include <rocksdb/write_batch.h>

#include "storage/rocks.h"
#include "storage/shard_store.h"

namespace gradtap::storage {

struct ShardStore::Impl {
  explicit Impl(StoreOptions store_options) : options(std::move(store_options)) {}
  ~Impl();

  StoreOptions options;
  std::string stage_dir;
  std::unique_ptr<rocksdb::DB> db;
  rocksdb::ColumnFamilyHandle* log = nullptr;
  rocksdb::ColumnFamilyHandle* full = nullptr;
  rocksdb::ColumnFamilyHandle* dig = nullptr;
  rocksdb::ColumnFamilyHandle* side = nullptr;
  rocksdb::ColumnFamilyHandle* mark = nullptr;
  std::vector<rocksdb::ColumnFamilyHandle*> handles;
  OpenReport report;
  std::vector<std::uint8_t> scratch;  // one chunk, header included
  std::uint64_t stage_number = 0;
  bool write_failed = false;  // RocksDB may be read-only until resumed

  [[nodiscard]] rocksdb::ColumnFamilyHandle* family(std::uint8_t kind) const {
    return kind < kKindFullFirst ? log : full;
  }
  void reached(std::string_view name) {
    if (options.kill_points != nullptr) options.kill_points->reached(name);
  }

  // store_open.cpp
  [[nodiscard]] Status open();
  [[nodiscard]] Status delete_stage_files();
  [[nodiscard]] Status check_marks_and_delete_unmarked();

  // store_commit.cpp
  [[nodiscard]] Status commit(const StepCommit& step);
  [[nodiscard]] Status write_batch(rocksdb::WriteBatch& batch, bool synced, std::string doing);
  [[nodiscard]] Status resume_after_failure();

  // store_read.cpp
  [[nodiscard]] Result<std::optional<Mark>> read_mark(const std::string& key) const;
  [[nodiscard]] Result<std::vector<Mark>> scan_marks(const std::string& prefix) const;
  [[nodiscard]] Result<DigestEntry> read_digest(const ChunkKey& key) const;
  [[nodiscard]] Status visit_record(
      ChunkKey key, const std::function<Status(const ChunkHeader& header, ByteSpan payload)>& visit) const;
  [[nodiscard]] Result<std::vector<std::uint8_t>> read_record(const ChunkKey& key) const;
  [[nodiscard]] std::string file_of(const ChunkKey& key) const;

  // store_retain.cpp
  [[nodiscard]] Result<RetainReport> retain(const JobId& job, LineageId lineage, StepNumber floor,
                                            std::uint64_t keep_fulls);
  [[nodiscard]] Status remove_side(const std::vector<std::string>& keys);
  [[nodiscard]] Status drop_lineage(const JobId& job, LineageId lineage);
  [[nodiscard]] Status drop_shard(const JobId& job, LineageId lineage, ShardId shard);
  // Frees [begin, end): whole tables at once, what remains by a range tombstone.
  [[nodiscard]] Status delete_chunks(rocksdb::ColumnFamilyHandle* family, const std::string& begin,
                                     const std::string& end);
};

[[nodiscard]] inline rocksdb::Slice slice(ByteSpan bytes) {
  return {reinterpret_cast<const char*>(bytes.data()), bytes.size()};
}
[[nodiscard]] inline ByteSpan span(const rocksdb::Slice& value) {
  return {reinterpret_cast<const std::uint8_t*>(value.data()), value.size()};
}
[[nodiscard]] inline ByteSpan span(std::string_view value) {
  return {reinterpret_cast<const std::uint8_t*>(value.data()), value.size()};
}

// The smallest key that is greater than every key with this prefix; empty when there is none.
[[nodiscard]] std::string after_prefix(std::string prefix);

}  // namespace gradtap::storage
