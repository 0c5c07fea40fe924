// A store changed behind its back, through RocksDB itself, so that RocksDB's own checksums see nothing.
#include <filesystem>
#include <memory>
#include <string>
#include <vector>

#include <rocksdb/convenience.h>
#include <rocksdb/db.h>

#include "storage/rocks.h"
#include "tests/unit/storage/store_fixture.h"

using namespace gradtap;
using namespace gradtap::storage;
using namespace gradtap::storage::test;

namespace {

const JobId kTamperJob = job_id("tamper test");

// A store with full version 0 and logs 1 and 2 of one shard, 10000 bytes each.
void make_store(const std::string& path) {
  auto store = open_or_fail(options_at(path));
  for (StepNumber step = 0; step <= 2; ++step) {
    OwnedCommit next(kTamperJob, 1, step);
    require_ok(store->commit(next.shard(0, step > 0, step == 0, 10000).commit));
  }
}

struct Raw {
  std::unique_ptr<rocksdb::DB> db;
  std::vector<rocksdb::ColumnFamilyHandle*> families;  // default, log, full, dig, side, mark
  explicit Raw(const std::string& path) {
    std::vector<rocksdb::ColumnFamilyDescriptor> names;
    for (const char* name : {"default", "log", "full", "dig", "side", "mark"})
      names.emplace_back(name, name[0] == 'l' || name[0] == 'f' ? tensor_family_options() : small_family_options());
    rocksdb::DB* raw = nullptr;
    REQUIRE(rocksdb::DB::Open(db_options(nullptr, 64), path + "/rocks", names, &families, &raw).ok());
    db.reset(raw);
  }
  ~Raw() {
    for (auto* family : families) db->DestroyColumnFamilyHandle(family);
    db->Close().PermitUncheckedError();
  }
  [[nodiscard]] rocksdb::ColumnFamilyHandle* log() const { return families[1]; }
  [[nodiscard]] rocksdb::ColumnFamilyHandle* full() const { return families[2]; }
  [[nodiscard]] rocksdb::ColumnFamilyHandle* dig() const { return families[3]; }
  [[nodiscard]] rocksdb::ColumnFamilyHandle* mark() const { return families[5]; }
};

std::string chunk_key(StepNumber step, std::uint8_t kind, std::uint16_t chunk) {
  return encode(ChunkKey{kTamperJob, 1, 0, step, kind, chunk});
}

Error open_error(const std::string& path) {
  auto store = ShardStore::open(options_at(path));
  REQUIRE_FALSE(store);
  return store.error();
}

}  // namespace

TEST_CASE("bytes that RocksDB accepts but the digest does not") {
  TempDir dir;
  make_store(dir.path);
  {
    Raw raw(dir.path);
    std::string value;
    REQUIRE(raw.db->Get({}, raw.log(), chunk_key(2, kKindGradient, 1), &value).ok());
    value.back() = static_cast<char>(value.back() ^ 1);
    REQUIRE(raw.db->Put({}, raw.log(), chunk_key(2, kKindGradient, 1), value).ok());
  }
  auto store = open_or_fail(options_at(dir.path));
  const auto log = store->read_log(kTamperJob, 1, 0, 2);
  REQUIRE_FALSE(log);
  CHECK(log.error().code == ErrorCode::kStoreCorrupt);
  CHECK(log.error().where.find("step 2 kind 1 chunk 1") != std::string::npos);
  CHECK(log.error().expected != log.error().actual);
  CHECK(store->read_log(kTamperJob, 1, 0, 1).value() == bytes_of(0, 1, kKindGradient, 10000));
}

TEST_CASE("a chunk that is not there any more: opening fails and names it") {
  const auto gone = [](StepNumber step, bool log) {
    TempDir dir;
    make_store(dir.path);
    {
      Raw raw(dir.path);
      const std::string begin = chunk_key(step, 0, 0);
      const std::string end = chunk_key(step + 1, 0, 0);
      const rocksdb::Slice first(begin), last(end);
      REQUIRE(rocksdb::DeleteFilesInRange(raw.db.get(), log ? raw.log() : raw.full(), &first, &last, false).ok());
    }
    return open_error(dir.path);
  };
  const Error log = gone(2, true);
  CHECK(log.code == ErrorCode::kStoreMissingChunk);
  CHECK(log.where.find("step 2 kind 1 chunk 0") != std::string::npos);
  const Error full = gone(0, false);
  CHECK(full.code == ErrorCode::kStoreMissingChunk);
  CHECK(full.where.find("step 0 kind 16 chunk 0") != std::string::npos);
}

TEST_CASE("a mark whose log or full version has no digest entries: opening fails") {
  for (const bool log : {true, false}) {
    TempDir dir;
    make_store(dir.path);
    {
      Raw raw(dir.path);
      const StepNumber step = log ? 1 : 0;
      const auto kind = log ? kKindGradient : kKindParam;
      rocksdb::WriteOptions write;
      REQUIRE(raw.db->DeleteRange(write, raw.dig(), chunk_key(step, kind, 0), chunk_key(step, kind + 3, 0)).ok());
    }
    const Error error = open_error(dir.path);
    CHECK(error.code == ErrorCode::kStoreMissingChunk);
    CHECK(error.where.find(log ? "step 1 kind 1" : "step 0 kind 16") != std::string::npos);
  }
}

TEST_CASE("a mark that is damaged, newer, or of another shard: opening fails by name") {
  const auto with = [](auto change) {
    TempDir dir;
    make_store(dir.path);
    {
      Raw raw(dir.path);
      const std::string key = shard_key(kTamperJob, 1, 0);
      std::string value;
      REQUIRE(raw.db->Get({}, raw.mark(), key, &value).ok());
      std::string new_key = key;
      change(new_key, value);
      REQUIRE(raw.db->Put({}, raw.mark(), new_key, value).ok());
    }
    return open_error(dir.path).code;
  };
  CHECK(with([](std::string&, std::string& value) { value.back() = static_cast<char>(value.back() ^ 1); }) ==
        ErrorCode::kStoreCorrupt);
  CHECK(with([](std::string&, std::string& value) { value[4] = 2; }) == ErrorCode::kStoreFormat);
  CHECK(with([](std::string& key, std::string&) { key.back() = 9; }) == ErrorCode::kStoreCorrupt);
}
