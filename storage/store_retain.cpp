#include <algorithm>
#include <set>

#include <fmt/format.h>
#include <rocksdb/convenience.h>
#include <rocksdb/table_properties.h>

#include "storage/store_impl.h"

namespace gradtap::storage {
namespace {

std::string step_key(const Mark& mark, StepNumber step) {
  return encode(ChunkKey{mark.job, mark.lineage, mark.shard, step, 0, 0});
}

}  // namespace

Status ShardStore::Impl::delete_chunks(rocksdb::ColumnFamilyHandle* family, const std::string& begin,
                                       const std::string& end) {
  const rocksdb::Slice first(begin);
  const rocksdb::Slice last(end);
  if (const auto status = rocksdb::DeleteFilesInRange(db.get(), family, &first, &last, false); !status.ok())
    return std::unexpected<Error>(map_write(status, "deletion of tables", options.path));
  // What shares a table with something that stays. Only properties are read, never tensor bytes.
  const rocksdb::Range range(first, last);
  rocksdb::TablePropertiesCollection tables;
  if (const auto status = db->GetPropertiesOfTablesInRange(family, &range, 1, &tables); !status.ok())
    return std::unexpected<Error>(map_write(status, "deletion of tables", options.path));
  for (const auto& [file, properties] : tables) {
    const auto found = properties->user_collected_properties.find(kKeysProperty);
    if (found == properties->user_collected_properties.end()) continue;
    const std::string& keys = found->second;
    for (std::size_t i = 0; i + kChunkKeyBytes <= keys.size(); i += kChunkKeyBytes) {
      const rocksdb::Slice key(keys.data() + i, kChunkKeyBytes);
      if (key.compare(first) < 0 || key.compare(last) >= 0) continue;
      rocksdb::WriteBatch batch;
      batch.DeleteRange(family, first, last);
      return write_batch(batch, true, "deletion of chunks");
    }
  }
  return {};
}

Result<RetainReport> ShardStore::Impl::retain(const JobId& job, LineageId lineage, StepNumber floor,
                                              std::uint64_t keep_fulls) {
  GRADTAP_TRY(resume_after_failure());
  const auto found = scan_marks(lineage_prefix(job, lineage));
  if (!found) return std::unexpected<Error>(found.error());
  struct Cut {
    Mark mark;
    StepNumber base;
  };
  std::vector<Cut> cuts;
  RetainReport report;
  rocksdb::WriteBatch batch;
  StepNumber lowest_base = ~StepNumber{0};
  for (const Mark& each : *found) {
    // The digest family lists what is there; steps ascending.
    std::vector<ChunkKey> entries;
    std::vector<StepNumber> fulls;
    const std::string prefix = shard_key(each.job, each.lineage, each.shard);
    const std::unique_ptr<rocksdb::Iterator> it(db->NewIterator({}, dig));
    for (it->Seek(prefix); it->Valid() && it->key().starts_with(prefix); it->Next()) {
      const auto key = parse_chunk_key(span(it->key()));
      if (!key) return fail(ErrorCode::kStoreCorrupt, "digest key is malformed", options.path);
      if (key->kind == kKindParam && key->chunk == 0) fulls.push_back(key->step);
      entries.push_back(*key);
    }
    if (!it->status().ok()) return std::unexpected<Error>(map_write(it->status(), "retention", options.path));
    if (fulls.empty()) continue;  // open() refuses such a store; nothing to decide here
    const std::size_t keep = std::max<std::uint64_t>(1, std::min<std::uint64_t>(keep_fulls, fulls.size()));
    StepNumber base = fulls.front();
    for (const StepNumber full_step : fulls)
      if (full_step <= floor) base = full_step;
    base = std::min(base, fulls[fulls.size() - keep]);
    lowest_base = std::min(lowest_base, base);
    std::uint64_t removed = 0;
    for (const ChunkKey& key : entries) {
      if (key.kind == kKindState) {
        if (key.step < base && each.version - key.step > options.digest_history) batch.Delete(dig, encode(key));
        continue;
      }
      const bool is_log = key.kind < kKindFullFirst;
      if (is_log ? key.step > base : key.step >= base) continue;
      batch.Delete(dig, encode(key));
      ++removed;
      if (key.chunk != 0) continue;
      if (is_log) ++report.logs;
      if (key.kind == kKindParam) ++report.fulls;
    }
    if (removed == 0) continue;
    Mark next = each;
    next.log_from = std::max(next.log_from, base + 1);
    batch.Put(mark, prefix, slice(schema::encode(next)));
    cuts.push_back({each, base});
  }
  if (lowest_base != ~StepNumber{0}) {
    // Step messages replay logs; the one of the lowest base itself is not needed any more.
    const std::string begin = side_prefix(SideKind::kStepMessage, job, lineage);
    const std::string end = side_key(SideKind::kStepMessage, job, lineage, lowest_base + 1);
    const std::unique_ptr<rocksdb::Iterator> it(db->NewIterator({}, side));
    for (it->Seek(begin); it->Valid() && it->key().compare(end) < 0; it->Next()) {
      batch.Delete(side, it->key());
      ++report.side;
    }
  }
  if (batch.Count() == 0) return report;
  // Marks and digests first: what a crash leaves after this is unmarked, and open() deletes it.
  GRADTAP_TRY(write_batch(batch, true, "retention"));
  reached(kRetainAfterMark);
  for (const Cut& cut : cuts) {
    GRADTAP_TRY(delete_chunks(log, step_key(cut.mark, 0), step_key(cut.mark, cut.base + 1)));
    GRADTAP_TRY(delete_chunks(full, step_key(cut.mark, 0), step_key(cut.mark, cut.base)));
  }
  return report;
}

Status ShardStore::Impl::remove_side(const std::vector<std::string>& keys) {
  GRADTAP_TRY(resume_after_failure());
  rocksdb::WriteBatch batch;
  for (const std::string& key : keys) batch.Delete(side, key);
  return write_batch(batch, false, "deletion of side values");
}

Status ShardStore::Impl::drop_shard(const JobId& job, LineageId lineage, ShardId shard) {
  GRADTAP_TRY(resume_after_failure());
  const std::string prefix = shard_key(job, lineage, shard);
  const std::string end = after_prefix(prefix);
  rocksdb::WriteBatch batch;
  batch.DeleteRange(mark, prefix, end);
  batch.DeleteRange(dig, prefix, end);
  GRADTAP_TRY(write_batch(batch, true, "drop of a shard"));
  reached(kRetainAfterMark);
  GRADTAP_TRY(delete_chunks(log, prefix, end));
  return delete_chunks(full, prefix, end);
}

Status ShardStore::Impl::drop_lineage(const JobId& job, LineageId lineage) {
  GRADTAP_TRY(resume_after_failure());
  const std::string prefix = lineage_prefix(job, lineage);
  const std::string end = after_prefix(prefix);
  rocksdb::WriteBatch batch;
  batch.DeleteRange(mark, prefix, end);
  batch.DeleteRange(dig, prefix, end);
  for (const SideKind kind :
       {SideKind::kAttach, SideKind::kLayout, SideKind::kStepMessage, SideKind::kBlob, SideKind::kOther}) {
    const std::string begin = side_prefix(kind, job, lineage);
    batch.DeleteRange(side, begin, after_prefix(begin));
  }
  GRADTAP_TRY(write_batch(batch, true, "drop of a lineage"));
  reached(kRetainAfterMark);
  GRADTAP_TRY(delete_chunks(log, prefix, end));
  return delete_chunks(full, prefix, end);
}

}  // namespace gradtap::storage
