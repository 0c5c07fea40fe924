// How this store uses RocksDB, in one place: options, error mapping, and the keys property.
//
// Purpose: no other file names a RocksDB option. The collector writes the keys of every table into its properties, so
// that open() knows which chunks exist without reading tensor bytes. Plain functions, any thread.
#pragma once

#include <string>
#include <string_view>
#include <vector>

#include <rocksdb/db.h>
#include <rocksdb/options.h>
#include <rocksdb/status.h>

#include "common/error.h"

namespace gradtap::storage {

inline constexpr const char* kKeysProperty = "gradtap.keys";  // 35 bytes a key, ascending

[[nodiscard]] rocksdb::DBOptions db_options(rocksdb::Env* env, std::uint32_t open_files);
[[nodiscard]] rocksdb::ColumnFamilyOptions tensor_family_options();
[[nodiscard]] rocksdb::ColumnFamilyOptions small_family_options();

// `doing` is what failed ("ingest of a step"), `where` the path or key.
[[nodiscard]] Error map_write(const rocksdb::Status& status, std::string doing, std::string where);
[[nodiscard]] Error map_open(const rocksdb::Status& status, std::string path);

}  // namespace gradtap::storage
