#include "storage/rocks.h"

#include <memory>

#include <rocksdb/filter_policy.h>
#include <rocksdb/table.h>
#include <rocksdb/table_properties.h>

namespace gradtap::storage {
namespace {

class KeysCollector final : public rocksdb::TablePropertiesCollector {
 public:
  rocksdb::Status AddUserKey(const rocksdb::Slice& key, const rocksdb::Slice&, rocksdb::EntryType type,
                             rocksdb::SequenceNumber, std::uint64_t) override {
    if (type == rocksdb::kEntryPut) keys_.append(key.data(), key.size());
    return rocksdb::Status::OK();
  }
  rocksdb::Status Finish(rocksdb::UserCollectedProperties* properties) override {
    (*properties)[kKeysProperty] = std::move(keys_);
    return rocksdb::Status::OK();
  }
  rocksdb::UserCollectedProperties GetReadableProperties() const override { return {}; }
  const char* Name() const override { return "gradtap.KeysCollector"; }

 private:
  std::string keys_;
};

class KeysCollectorFactory final : public rocksdb::TablePropertiesCollectorFactory {
 public:
  rocksdb::TablePropertiesCollector* CreateTablePropertiesCollector(Context) override { return new KeysCollector; }
  const char* Name() const override { return "gradtap.KeysCollectorFactory"; }
};

std::shared_ptr<rocksdb::TableFactory> table_factory(bool block_cache) {
  rocksdb::BlockBasedTableOptions table;
  table.checksum = rocksdb::kXXH3;
  table.format_version = 5;
  table.block_size = 4 << 10;  // a chunk is a block of its own: damage stays in one chunk
  table.no_block_cache = !block_cache;
  return std::shared_ptr<rocksdb::TableFactory>(rocksdb::NewBlockBasedTableFactory(table));
}

bool mentions(const std::string& text, std::string_view word) {
  return text.find(word) != std::string::npos;
}

}  // namespace

rocksdb::DBOptions db_options(rocksdb::Env* env, std::uint32_t open_files) {
  rocksdb::DBOptions options;
  options.create_if_missing = true;
  options.create_missing_column_families = true;
  options.paranoid_checks = true;
  options.max_background_jobs = 2;
  options.max_open_files = static_cast<int>(open_files);
  options.bytes_per_sync = 1 << 20;
  options.wal_bytes_per_sync = 1 << 20;
  options.max_total_wal_size = std::uint64_t{64} << 20;
  options.track_and_verify_wals_in_manifest = true;
  // A damaged log must fail loudly: the default mode would answer with an older state.
  options.wal_recovery_mode = rocksdb::WALRecoveryMode::kTolerateCorruptedTailRecords;
  options.keep_log_file_num = 4;
  options.max_log_file_size = 4 << 20;
  if (env != nullptr) options.env = env;
  return options;
}

rocksdb::ColumnFamilyOptions tensor_family_options() {
  rocksdb::ColumnFamilyOptions options;
  options.table_factory = table_factory(false);
  options.compression = rocksdb::kNoCompression;
  options.disable_auto_compactions = true;  // one table per (shard, step): nothing to merge
  options.table_properties_collector_factories.push_back(std::make_shared<KeysCollectorFactory>());
  options.write_buffer_size = 1 << 20;  // holds range tombstones only
  return options;
}

rocksdb::ColumnFamilyOptions small_family_options() {
  rocksdb::ColumnFamilyOptions options;
  options.table_factory = table_factory(true);
  options.compression = rocksdb::kNoCompression;
  options.write_buffer_size = 8 << 20;
  return options;
}

Error map_write(const rocksdb::Status& status, std::string doing, std::string where) {
  if (status.IsNoSpace() || mentions(status.ToString(), "No space left"))
    return Error{ErrorCode::kStoreFull, std::move(doing) + " failed: no space left",          std::move(where), {},
                 status.ToString(),     "free space on this file system or shorten retention"};
  return Error{ErrorCode::kStoreWrite, std::move(doing) + " failed",
               std::move(where),       {},
               status.ToString(),      "check the disk; what was durable stays durable"};
}

Error map_open(const rocksdb::Status& status, std::string path) {
  std::string text = status.ToString();
  // RocksDB tries the old suffix last and names that one.
  for (std::size_t i = text.find(".ldb"); i != std::string::npos; i = text.find(".ldb")) text.replace(i, 4, ".sst");
  if (mentions(text, "lock"))
    return Error{ErrorCode::kStoreLocked,
                 "store is used by another process",
                 std::move(path),
                 {},
                 text,
                 "stop the other gradtapd or give this one its own data_dir"};
  if (mentions(text, ".sst") && (mentions(text, "No such file") || mentions(text, "Can't access")))
    return Error{ErrorCode::kStoreMissingChunk,
                 "a table that the store names is missing",
                 std::move(path),
                 "every table present",
                 text,
                 "put the file back from a copy; without it the node must be rebuilt from an empty data_dir"};
  if (status.IsCorruption())
    return Error{ErrorCode::kStoreCorrupt,
                 "store cannot be opened",
                 std::move(path),
                 {},
                 text,
                 "restore data_dir from a copy or start the node on an empty one"};
  if (status.IsNoSpace())
    return Error{ErrorCode::kStoreFull,           "store cannot be opened: no space left", std::move(path), {}, text,
                 "free space on this file system"};
  return Error{ErrorCode::kStoreOpen,
               "store cannot be opened",
               std::move(path),
               {},
               text,
               "check that data_dir exists, is a directory and can be written"};
}

}  // namespace gradtap::storage
