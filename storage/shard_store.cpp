#include "storage/shard_store.h"

#include <fmt/format.h>

#include "storage/store_impl.h"

namespace gradtap::storage {

ShardStore::ShardStore(std::unique_ptr<Impl> impl) : impl_(std::move(impl)) {}
ShardStore::~ShardStore() = default;

Result<std::unique_ptr<ShardStore>> ShardStore::open(const StoreOptions& options) {
  auto impl = std::make_unique<Impl>(options);
  GRADTAP_TRY(impl->open());
  return std::unique_ptr<ShardStore>(new ShardStore(std::move(impl)));
}

const OpenReport& ShardStore::open_report() const {
  return impl_->report;
}

Status ShardStore::commit(const StepCommit& step) {
  return impl_->commit(step);
}

Status ShardStore::put_side(std::string_view key, ByteSpan bytes, bool synced) {
  GRADTAP_TRY(impl_->resume_after_failure());
  rocksdb::WriteBatch batch;
  batch.Put(impl_->side, rocksdb::Slice(key.data(), key.size()), slice(schema::seal(schema::RecordType::kRaw, bytes)));
  return impl_->write_batch(batch, synced, "write of a side value");
}

Status ShardStore::put_side(const std::vector<SideEntry>& entries, bool synced) {
  GRADTAP_TRY(impl_->resume_after_failure());
  rocksdb::WriteBatch batch;
  for (const SideEntry& entry : entries)
    batch.Put(impl_->side, entry.key, slice(schema::seal(schema::RecordType::kRaw, entry.bytes)));
  return impl_->write_batch(batch, synced, "write of side values");
}

Result<std::vector<schema::LineageRecord>> ShardStore::all_lineages() const {
  std::vector<schema::LineageRecord> records;
  Status wrong;
  const std::string prefix(1, static_cast<char>(SideKind::kLineage));
  GRADTAP_TRY(scan_side(prefix, [&](std::string_view, ByteSpan bytes) {
    auto record = schema::decode_lineage(bytes);
    if (!record) {
      wrong = std::unexpected<Error>(record.error());
      return false;
    }
    records.push_back(std::move(*record));
    return true;
  }));
  GRADTAP_TRY(wrong);
  return records;
}

Result<std::vector<schema::LineageRecord>> ShardStore::lineages(const JobId& job) const {
  auto records = all_lineages();
  if (records) std::erase_if(*records, [&job](const auto& record) { return record.job != job; });
  return records;
}

Result<Lineage> ShardStore::open_lineage(schema::LineageRecord record) {
  if (record.run_nonce.empty())
    return fail(ErrorCode::kOutOfRange, "lineage needs a run_nonce", record.job_name, "32 hexadecimal digits",
                "nothing");
  const auto known = lineages(record.job);
  if (!known) return std::unexpected<Error>(known.error());
  const LineageId newest = known->empty() ? 0 : known->back().lineage;
  for (const auto& each : *known)
    if (each.run_nonce == record.run_nonce) return Lineage{each.lineage, false, each.lineage != newest};
  if (newest == ~LineageId{0}) return fail(ErrorCode::kLimitReached, "no lineage number is left", record.job_name);
  if (record.lineage != 0 && record.lineage <= newest)
    return fail(ErrorCode::kOutOfRange, "a lineage number was claimed that is not newer than those known here",
                record.job_name, fmt::format("above {}", newest), std::to_string(record.lineage),
                "see whether the object store was replaced or emptied");
  if (record.lineage == 0) record.lineage = newest + 1;
  const auto bytes = schema::encode(record);
  GRADTAP_TRY(put_side(side_key(SideKind::kLineage, record.job, record.lineage), bytes, true));
  return Lineage{record.lineage, true, false};
}

Status ShardStore::put_lineage(const schema::LineageRecord& record) {
  const std::string key = side_key(SideKind::kLineage, record.job, record.lineage);
  if (const auto known = get_side(key); !known) return std::unexpected<Error>(known.error());
  return put_side(key, schema::encode(record), true);
}

Status ShardStore::remove_side(const std::vector<std::string>& keys) {
  return impl_->remove_side(keys);
}

Result<RetainReport> ShardStore::retain(const JobId& job, LineageId lineage, StepNumber floor,
                                        std::uint64_t keep_fulls) {
  return impl_->retain(job, lineage, floor, keep_fulls);
}

Status ShardStore::drop_shard(const JobId& job, LineageId lineage, ShardId shard) {
  return impl_->drop_shard(job, lineage, shard);
}

Status ShardStore::drop_lineage(const JobId& job, LineageId lineage) {
  const auto known = lineages(job);
  if (!known) return std::unexpected<Error>(known.error());
  if (known->empty() || lineage >= known->back().lineage)
    return fail(ErrorCode::kOutOfRange, "the newest lineage is never dropped", fmt::format("lineage {}", lineage));
  return impl_->drop_lineage(job, lineage);
}

}  // namespace gradtap::storage
