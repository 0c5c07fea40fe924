#include <algorithm>
#include <filesystem>
#include <map>
#include <set>
#include <system_error>

#include <fmt/format.h>
#include <rocksdb/table_properties.h>

#include "storage/store_impl.h"

namespace gradtap::storage {
namespace {

// All chunk keys that the live tables of a family hold.
Result<std::vector<std::string>> keys_in_tables(rocksdb::DB& db, rocksdb::ColumnFamilyHandle* family,
                                                const std::string& path) {
  rocksdb::TablePropertiesCollection tables;
  if (const auto status = db.GetPropertiesOfAllTables(family, &tables); !status.ok())
    return std::unexpected<Error>(map_open(status, path));
  std::vector<std::string> keys;
  for (const auto& [file, properties] : tables) {
    const auto found = properties->user_collected_properties.find(kKeysProperty);
    if (found == properties->user_collected_properties.end() || found->second.size() % kChunkKeyBytes != 0)
      return fail(ErrorCode::kStoreCorrupt, "table has no list of its keys", file);
    for (std::size_t i = 0; i < found->second.size(); i += kChunkKeyBytes)
      keys.push_back(found->second.substr(i, kChunkKeyBytes));
  }
  std::sort(keys.begin(), keys.end());
  keys.erase(std::unique(keys.begin(), keys.end()), keys.end());
  return keys;
}

bool has(const std::vector<std::string>& sorted, const std::string& key) {
  return std::binary_search(sorted.begin(), sorted.end(), key);
}

std::unexpected<Error> missing(const ChunkKey& key, std::string_view what) {
  return fail(ErrorCode::kStoreMissingChunk, "a mark names a chunk that is not there", describe(key), std::string(what),
              "nothing", "put the table back from a copy; an older state is never used in its place");
}

// What the digest family says about one shard: steps with a complete log, steps with a complete full version.
struct ShardEntries {
  std::set<StepNumber> logs;
  std::set<StepNumber> fulls;
};

}  // namespace

ShardStore::Impl::~Impl() {
  if (db == nullptr) return;
  for (auto* handle : handles) db->DestroyColumnFamilyHandle(handle);
  db->Close().PermitUncheckedError();
}

Status ShardStore::Impl::open() {
  if (options.chunk_bytes < 4096 || options.chunk_bytes > kChunkPayloadMax)
    return fail(ErrorCode::kConfigImpossibleValue, "store chunk size is impossible", "store.chunk_bytes",
                fmt::format("4096..{}", kChunkPayloadMax), fmt::format("{}", options.chunk_bytes));
  std::error_code error;
  const std::string db_dir = options.path + "/rocks";
  stage_dir = options.path + "/stage";
  std::filesystem::create_directories(db_dir, error);
  if (!error) std::filesystem::create_directories(stage_dir, error);
  if (error)
    return fail(ErrorCode::kStoreOpen, "store directory cannot be made", options.path, {}, error.message(),
                "check data_dir and its permissions");
  const auto tensor = tensor_family_options();
  const auto small = small_family_options();
  const std::vector<rocksdb::ColumnFamilyDescriptor> families = {{rocksdb::kDefaultColumnFamilyName, small},
                                                                 {"log", tensor},
                                                                 {"full", tensor},
                                                                 {"dig", small},
                                                                 {"side", small},
                                                                 {"mark", small}};
  rocksdb::DB* raw = nullptr;
  const auto status = rocksdb::DB::Open(db_options(options.env, options.open_files), db_dir, families, &handles, &raw);
  if (!status.ok()) return std::unexpected<Error>(map_open(status, db_dir));
  db.reset(raw);
  log = handles[1];
  full = handles[2];
  dig = handles[3];
  side = handles[4];
  mark = handles[5];
  GRADTAP_TRY(delete_stage_files());
  return check_marks_and_delete_unmarked();
}

// A stage file is what a commit left that never reached the database.
Status ShardStore::Impl::delete_stage_files() {
  std::error_code error;
  for (const auto& entry : std::filesystem::directory_iterator(stage_dir, error)) {
    if (entry.path().extension() != ".sst") continue;
    if (std::filesystem::remove(entry.path(), error)) ++report.stage_files_deleted;
    if (error) break;
  }
  if (error)
    return fail(ErrorCode::kStoreOpen, "stage files cannot be deleted", stage_dir, {}, error.message(),
                "check the permissions of data_dir");
  return {};
}

Status ShardStore::Impl::check_marks_and_delete_unmarked() {
  auto log_keys = keys_in_tables(*db, log, options.path);
  if (!log_keys) return std::unexpected<Error>(log_keys.error());
  auto full_keys = keys_in_tables(*db, full, options.path);
  if (!full_keys) return std::unexpected<Error>(full_keys.error());

  // Every chunk with a digest entry must be there: entries and marks appear in one batch.
  std::map<std::string, ShardEntries> shards;
  std::vector<std::string> marked[2];
  const std::unique_ptr<rocksdb::Iterator> it(db->NewIterator({}, dig));
  std::uint32_t next_chunk = 0;
  ChunkKey previous;
  for (it->SeekToFirst(); it->Valid(); it->Next()) {
    const auto key = parse_chunk_key(span(it->key()));
    if (!key)
      return fail(ErrorCode::kStoreCorrupt, "digest key is malformed",
                  to_hex(span(it->key()).data(), it->key().size()));
    if (key->kind == kKindState) continue;
    const auto entry = parse_digest_entry(span(it->value()));
    if (!entry) {
      Error error = entry.error();
      error.where = describe(*key);
      return std::unexpected<Error>(std::move(error));
    }
    const bool same_record = key->job == previous.job && key->lineage == previous.lineage &&
                             key->shard == previous.shard && key->step == previous.step && key->kind == previous.kind;
    if (!same_record) next_chunk = 0;
    if (key->chunk != next_chunk) {
      ChunkKey absent = *key;
      absent.chunk = static_cast<std::uint16_t>(next_chunk);
      return missing(absent, "a digest entry");
    }
    ++next_chunk;
    previous = *key;
    const bool is_log = key->kind < kKindFullFirst;
    const std::string text = it->key().ToString();
    if (!has(is_log ? *log_keys : *full_keys, text)) return missing(*key, fmt::format("{} bytes", entry->stored_bytes));
    marked[is_log ? 0 : 1].push_back(text);
    ++report.chunks_checked;
    if (next_chunk == entry->chunks) {
      ShardEntries& shard = shards[text.substr(0, kShardKeyBytes)];
      (is_log ? shard.logs : shard.fulls).insert(key->step);
    }
  }
  if (!it->status().ok()) return std::unexpected<Error>(map_open(it->status(), options.path));

  const auto found = scan_marks({});
  if (!found) return std::unexpected<Error>(found.error());
  report.marks = found->size();
  for (const Mark& each : *found) {
    const ShardEntries& shard = shards[shard_key(each.job, each.lineage, each.shard)];
    if (!shard.fulls.contains(each.full))
      return missing({each.job, each.lineage, each.shard, each.full, kKindParam, 0}, "the newest full version");
    // Replay needs F+1..L; older logs are a second chance, and their absence is found by who reads them.
    for (StepNumber step = std::max(each.full + 1, each.log_from); step <= each.log_to; ++step)
      if (!shard.logs.contains(step))
        return missing({each.job, each.lineage, each.shard, step, kKindGradient, 0}, "a log record");
  }

  for (const bool is_log : {true, false}) {
    const auto& present = is_log ? *log_keys : *full_keys;
    const auto& wanted = marked[is_log ? 0 : 1];
    std::vector<std::string> unmarked;
    std::set_difference(present.begin(), present.end(), wanted.begin(), wanted.end(), std::back_inserter(unmarked));
    constexpr std::size_t kStepPrefix = kShardKeyBytes + sizeof(StepNumber);
    for (std::size_t i = 0; i < unmarked.size();) {
      const std::string prefix = unmarked[i].substr(0, kStepPrefix);
      std::size_t end = i;
      while (end < unmarked.size() && unmarked[end].starts_with(prefix)) ++end;
      const auto neighbour = std::lower_bound(wanted.begin(), wanted.end(), prefix);
      if (neighbour == wanted.end() || !neighbour->starts_with(prefix)) {
        GRADTAP_TRY(delete_chunks(is_log ? log : full, prefix, after_prefix(prefix)));
      } else {
        // An older attempt at a step that is durable now: only the chunks that the durable one does not have.
        rocksdb::WriteBatch batch;
        for (std::size_t k = i; k < end; ++k) batch.Delete(is_log ? log : full, unmarked[k]);
        GRADTAP_TRY(write_batch(batch, true, "deletion of unmarked chunks"));
      }
      report.unmarked_chunks_deleted += end - i;
      i = end;
    }
  }
  return {};
}

std::string after_prefix(std::string prefix) {
  while (!prefix.empty()) {
    auto& last = reinterpret_cast<unsigned char&>(prefix.back());
    if (last != 0xFF) {
      ++last;
      return prefix;
    }
    prefix.pop_back();
  }
  return prefix;
}

}  // namespace gradtap::storage
