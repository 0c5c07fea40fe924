#include <algorithm>
#include <cstring>
#include <filesystem>
#include <system_error>

#include <fmt/format.h>
#include <rocksdb/sst_file_writer.h>
#include <sys/statvfs.h>

#include "storage/store_impl.h"

namespace gradtap::storage {
namespace {

std::uint64_t total_bytes(const std::vector<ByteSpan>& parts) {
  std::uint64_t total = 0;
  for (const ByteSpan part : parts) total += part.size();
  return total;
}

// Reads a scatter list as one sequence.
class ScatterReader {
 public:
  explicit ScatterReader(const std::vector<ByteSpan>& parts) : parts_(parts) {}
  void copy(std::uint8_t* out, std::size_t count) {
    while (count > 0) {
      const ByteSpan part = parts_[index_];
      const std::size_t take = std::min(count, part.size() - position_);
      if (take > 0) std::memcpy(out, part.data() + position_, take);
      out += take;
      count -= take;
      position_ += take;
      if (position_ == part.size()) {
        ++index_;
        position_ = 0;
      }
    }
  }

 private:
  const std::vector<ByteSpan>& parts_;
  std::size_t index_ = 0;
  std::size_t position_ = 0;
};

// What one shard of the commit still has to write.
struct Plan {
  const ShardCommit* shard = nullptr;
  Mark mark;
  bool log = false;
  bool full = false;
};

std::unexpected<Error> refused(const StepCommit& step, ShardId shard, std::string expected, std::string actual) {
  return fail(ErrorCode::kOutOfRange, "commit does not fit the shard's durable state",
              fmt::format("lineage {} shard {} step {}", step.lineage, shard, step.step), std::move(expected),
              std::move(actual));
}

// Decides, before anything is written, whether this shard may go to this step.
Result<Plan> plan_shard(const StepCommit& step, const ShardCommit& shard, const std::optional<Mark>& mark) {
  Plan plan;
  plan.shard = &shard;
  for (std::size_t i = 0; i < shard.full.size(); ++i)
    if (shard.full[i].kind < kKindFullFirst || (i > 0 && shard.full[i].kind <= shard.full[i - 1].kind))
      return refused(step, shard.shard, "kinds of a full version ascending, from 16",
                     fmt::format("kind {}", shard.full[i].kind));
  if (!shard.full.empty() && shard.full[0].kind != kKindParam)
    return refused(step, shard.shard, "a full version with kind 16 (parameters)", "none");
  if (!shard.has_log && shard.full.empty()) return refused(step, shard.shard, "a log or a full version", "neither");
  if (mark && mark->version == step.step) {
    if (mark->state_digest != shard.state_digest)
      return fail(ErrorCode::kDigestMismatch, "step is already durable with another state digest",
                  fmt::format("lineage {} shard {} step {}", step.lineage, shard.shard, step.step),
                  to_hex(mark->state_digest), to_hex(shard.state_digest));
    plan.mark = *mark;
    plan.full = !shard.full.empty() && mark->full != step.step;
  } else {
    if (mark && step.step < mark->version)
      return refused(step, shard.shard, fmt::format("a step after {}", mark->version), fmt::format("{}", step.step));
    if (!mark && shard.full.empty()) return refused(step, shard.shard, "a full version first", "a log");
    if (shard.has_log && mark && step.step != mark->version + 1)
      return refused(step, shard.shard, fmt::format("step {}", mark->version + 1), fmt::format("{}", step.step));
    plan.log = shard.has_log && mark;
    plan.full = !shard.full.empty();
    if (mark) plan.mark = *mark;
    if (!plan.log) plan.mark.log_from = step.step + 1;  // a jump: replay never crosses it
  }
  if (plan.full) plan.mark.full = step.step;
  plan.mark.job = step.job;
  plan.mark.lineage = step.lineage;
  plan.mark.shard = shard.shard;
  plan.mark.version = step.step;
  plan.mark.log_to = step.step;
  plan.mark.schema_id = step.schema_id;
  plan.mark.epoch = step.epoch;
  plan.mark.state_digest = shard.state_digest;
  return plan;
}

// Stage files of one commit; deletes what is left of them.
class Stage {
 public:
  ~Stage() {
    std::error_code ignored;
    for (const auto& files : {logs, fulls})
      for (const std::string& file : files) std::filesystem::remove(file, ignored);
  }
  std::vector<std::string> logs;
  std::vector<std::string> fulls;
};

// The disk begins while the rest is still being cut and digested, so that the sync at the end waits for little.
rocksdb::EnvOptions stage_options() {
  rocksdb::EnvOptions options;
  options.bytes_per_sync = std::uint64_t{8} << 20;
  return options;
}

}  // namespace

Status ShardStore::Impl::resume_after_failure() {
  if (!write_failed) return {};
  if (const auto status = db->Resume(); !status.ok())
    return std::unexpected<Error>(map_write(status, "resuming after a failed write", options.path));
  write_failed = false;
  return {};
}

Status ShardStore::Impl::write_batch(rocksdb::WriteBatch& batch, bool synced, std::string doing) {
  rocksdb::WriteOptions write;
  write.sync = synced;
  if (const auto status = db->Write(write, &batch); !status.ok()) {
    write_failed = true;
    return std::unexpected<Error>(map_write(status, std::move(doing), options.path));
  }
  return {};
}

namespace {

// Cuts a record into chunks, adds them to the table and their digests to the batch.
Status add_record(rocksdb::SstFileWriter& table, rocksdb::WriteBatch& batch, rocksdb::ColumnFamilyHandle* dig,
                  std::vector<std::uint8_t>& scratch, std::uint64_t chunk_bytes, ChunkKey key,
                  const std::vector<ByteSpan>& parts, const std::vector<std::uint64_t>& digests) {
  const std::uint64_t total = total_bytes(parts);
  const std::uint64_t chunks = std::max<std::uint64_t>(1, (total + chunk_bytes - 1) / chunk_bytes);
  if (chunks > 0xFFFF)
    return fail(ErrorCode::kLimitReached, "record has too many chunks", describe(key), "at most 65535",
                fmt::format("{}", chunks), "raise store.chunk_bytes");
  ScatterReader reader(parts);
  for (std::uint64_t chunk = 0; chunk < chunks; ++chunk) {
    ChunkHeader header;
    header.offset = chunk * chunk_bytes;
    header.total = total;
    header.plain_bytes = static_cast<std::uint32_t>(std::min(chunk_bytes, total - header.offset));
    header.stored_bytes = header.plain_bytes;
    write_chunk_header(header, scratch.data());
    reader.copy(scratch.data() + kChunkHeaderBytes, header.plain_bytes);
    const ByteSpan value(scratch.data(), kChunkHeaderBytes + header.plain_bytes);
    key.chunk = static_cast<std::uint16_t>(chunk);
    const std::string text = encode(key);
    if (const auto status = table.Put(text, slice(value)); !status.ok())
      return std::unexpected<Error>(map_write(status, "staging of a chunk", describe(key)));
    DigestEntry entry;
    entry.chunks = static_cast<std::uint16_t>(chunks);
    entry.stored_bytes = static_cast<std::uint32_t>(value.size());
    entry.xxh3_128 = xxh3_128(value);
    if (chunk == 0) entry.digests = digests;
    batch.Put(dig, text, encode(entry));
  }
  return {};
}

}  // namespace

Status ShardStore::Impl::commit(const StepCommit& step) {
  GRADTAP_TRY(resume_after_failure());
  std::vector<Plan> plans;
  std::vector<ShardId> seen;
  std::uint64_t bytes = 0;
  for (const ShardCommit& shard : step.shards) {
    const auto mark = read_mark(shard_key(step.job, step.lineage, shard.shard));
    if (!mark) return std::unexpected<Error>(mark.error());
    auto plan = plan_shard(step, shard, *mark);
    if (!plan) return std::unexpected<Error>(plan.error());
    if (plan->log) bytes += total_bytes(shard.log);
    if (plan->full)
      for (const FullPart& part : shard.full) bytes += total_bytes(part.bytes);
    seen.push_back(shard.shard);
    plans.push_back(std::move(*plan));
  }
  std::sort(seen.begin(), seen.end());
  if (const auto twice = std::adjacent_find(seen.begin(), seen.end()); twice != seen.end())
    return refused(step, *twice, "each shard once", "twice");

  struct statvfs file_system{};
  if (::statvfs(stage_dir.c_str(), &file_system) != 0)
    return fail(ErrorCode::kStoreWrite, "free space cannot be read", stage_dir, {}, std::strerror(errno));
  const std::uint64_t free = static_cast<std::uint64_t>(file_system.f_bavail) * file_system.f_frsize;
  const std::uint64_t needed = bytes + bytes / 64 + options.min_free_bytes;
  if (free < needed)
    return fail(ErrorCode::kStoreFull, "not enough free space for this step", options.path,
                fmt::format("{} bytes (step {} + min_free_bytes {})", needed, bytes, options.min_free_bytes),
                fmt::format("{} bytes", free), "free space on this file system or shorten retention");

  // One table per (shard, family): tables of one family never overlap, so every one lands in the last level and
  // retention can free it whole.
  Stage stage;
  rocksdb::WriteBatch batch;
  scratch.resize(kChunkHeaderBytes + options.chunk_bytes);
  rocksdb::Options table_options(db_options(options.env, options.open_files), tensor_family_options());
  for (const Plan& plan : plans) {
    ChunkKey key{step.job, step.lineage, plan.shard->shard, step.step, 0, 0};
    for (const bool is_log : {true, false}) {
      if (is_log ? !plan.log : !plan.full) continue;
      const std::string file = fmt::format("{}/stage-{:08}.sst", stage_dir, stage_number++);
      (is_log ? stage.logs : stage.fulls).push_back(file);
      // Pages stay in the cache: whoever publishes the step reads them next.
      rocksdb::SstFileWriter table(stage_options(), table_options, is_log ? log : full, false);
      if (const auto status = table.Open(file); !status.ok())
        return std::unexpected<Error>(map_write(status, "staging of a step", file));
      if (is_log) {
        key.kind = kKindGradient;
        GRADTAP_TRY(
            add_record(table, batch, dig, scratch, options.chunk_bytes, key, plan.shard->log, plan.shard->log_digests));
      } else {
        for (const FullPart& part : plan.shard->full) {
          key.kind = part.kind;
          GRADTAP_TRY(add_record(table, batch, dig, scratch, options.chunk_bytes, key, part.bytes, part.digests));
        }
      }
      if (const auto status = table.Finish(); !status.ok())
        return std::unexpected<Error>(map_write(status, "staging of a step", file));
    }
  }
  reached(kAfterStage);

  std::vector<rocksdb::IngestExternalFileArg> ingest;
  for (const bool is_log : {true, false}) {
    const auto& files = is_log ? stage.logs : stage.fulls;
    if (files.empty()) continue;
    rocksdb::IngestExternalFileArg arg;
    arg.column_family = is_log ? log : full;
    arg.external_files = files;
    arg.options.move_files = true;
    arg.options.write_global_seqno = false;
    ingest.push_back(std::move(arg));
  }
  if (!ingest.empty()) {
    if (const auto status = db->IngestExternalFiles(ingest); !status.ok()) {
      write_failed = true;
      return std::unexpected<Error>(map_write(status, "ingest of a step", options.path));
    }
  }
  reached(kAfterIngest);

  for (const Plan& plan : plans) {
    const ChunkKey key{step.job, step.lineage, plan.shard->shard, step.step, kKindState, 0};
    const Sha256& digest = plan.mark.state_digest;
    batch.Put(dig, encode(key), slice(schema::seal(schema::RecordType::kRaw, digest)));
    batch.Put(mark, shard_key(step.job, step.lineage, plan.shard->shard), slice(schema::encode(plan.mark)));
  }
  for (const SideEntry& entry : step.side)
    batch.Put(side, entry.key, slice(schema::seal(schema::RecordType::kRaw, entry.bytes)));
  GRADTAP_TRY(write_batch(batch, true, "mark of a step"));
  reached(kAfterMark);
  return {};
}

}  // namespace gradtap::storage
