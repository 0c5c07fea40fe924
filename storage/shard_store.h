// ShardStore: what lasts on one node (PROTOCOLS 6.2): logs, full versions, their digests, side values and marks.
//
// Purpose: commit() makes a step durable; recovery reads marks, then full F and logs F+1..L, each verified against a
// digest stored apart from it. Ownership: owns the directory (locked) and every file below it. Threads: one owner
// thread writes (commit, put_side, open_lineage, retain); const functions may be called from any thread.
// Invariants: only a synced mark makes a step durable; marks and digest entries appear in one synced batch after the
// tensor bytes; the newest full F and logs F+1..L are always kept. Failure: every function returns an Error;
// after a failed write the store keeps what it had and stays readable, and the next commit tries again. Never fork() a
// process that has a store open.
#pragma once

#include <cstdint>
#include <functional>
#include <memory>
#include <string>
#include <string_view>
#include <utility>
#include <vector>

#include "common/bytes.h"
#include "common/error.h"
#include "common/ids.h"
#include "schema/record_codec.h"
#include "storage/key.h"
#include "storage/kill_points.h"
#include "storage/value_format.h"

namespace rocksdb {
class Env;
}

namespace gradtap::storage {

using Mark = schema::MarkRecord;

// Upper bound of what an open store keeps in memory: write buffers, block caches, tables (rocks.cpp), and what one
// commit writes at once.
inline constexpr std::uint64_t kStoreMemoryBytes = std::uint64_t{128} << 20;

struct StoreOptions {
  std::string path;
  std::uint64_t chunk_bytes = std::uint64_t{4} << 20;       // plain bytes of one value, 4 KiB..16 MiB
  std::uint64_t min_free_bytes = std::uint64_t{256} << 20;  // kept free on the file system of `path`
  std::uint64_t digest_history = 4096;                      // shard digests of this many steps outlive retention
  std::uint32_t open_files = 512;
  KillPoints* kill_points = nullptr;  // not owned
  rocksdb::Env* env = nullptr;        // not owned; disk as a parameter (fault injection)
};

// One kind of one full version: bytes as a scatter list, and the two-sum digests of its blocks (may be empty).
struct FullPart {
  std::uint8_t kind = kKindParam;
  std::vector<ByteSpan> bytes;
  std::vector<std::uint64_t> digests;
};

struct ShardCommit {
  ShardId shard = 0;
  bool has_log = false;
  std::vector<ByteSpan> log;               // gradient bytes of the shard, in shard order
  std::vector<std::uint64_t> log_digests;  // may be empty
  std::vector<FullPart> full;              // empty: no full version with this step
  Sha256 state_digest{};                   // shard digest after the step
};

struct SideEntry {
  std::string key;  // side_key(...)
  std::vector<std::uint8_t> bytes;
};

// Bytes are only read during the call. A log must follow the shard's version by exactly one; a full version without a
// log jumps (replay never crosses it). A shard already at the step with the same state digest is skipped: a repeated
// commit succeeds and changes nothing.
struct StepCommit {
  JobId job{};
  LineageId lineage = 0;
  StepNumber step = 0;
  Sha256 schema_id{};
  std::uint64_t epoch = 0;
  std::vector<ShardCommit> shards;
  std::vector<SideEntry> side;
};

struct Lineage {
  LineageId id = 0;
  bool created = false;     // a new number was given
  bool superseded = false;  // another run_nonce came after this one
};

struct FullPartInfo {
  std::uint8_t kind = 0;
  std::uint64_t bytes = 0;
  std::vector<std::uint64_t> digests;
};

struct RetainReport {
  std::uint64_t logs = 0;   // records deleted
  std::uint64_t fulls = 0;  // versions deleted
  std::uint64_t side = 0;   // step messages deleted
};

// What open() found and did.
struct OpenReport {
  std::uint64_t stage_files_deleted = 0;
  std::uint64_t unmarked_chunks_deleted = 0;
  std::uint64_t marks = 0;
  std::uint64_t chunks_checked = 0;
};

class ShardStore {
 public:
  // Locks the directory, deletes stage files and unmarked chunks, and checks that every chunk a mark names is there.
  [[nodiscard]] static Result<std::unique_ptr<ShardStore>> open(const StoreOptions& options);
  ~ShardStore();
  ShardStore(const ShardStore&) = delete;
  ShardStore& operator=(const ShardStore&) = delete;

  [[nodiscard]] const OpenReport& open_report() const;

  // -- owner thread ---------------------------------------------------------------------------------------------
  [[nodiscard]] Status commit(const StepCommit& step);
  [[nodiscard]] Status put_side(std::string_view key, ByteSpan bytes, bool synced);
  [[nodiscard]] Status put_side(const std::vector<SideEntry>& entries, bool synced);
  [[nodiscard]] Status remove_side(
      const std::vector<std::string>& keys);  // not synced: what comes back is deleted again
  // Same run_nonce: the same number; another: the next one, synced before it is returned (PROTOCOLS 2.1). `record`
  // needs job and run_nonce; its lineage is 0 (the next number), or the number that the cluster's register gave it.
  [[nodiscard]] Result<Lineage> open_lineage(schema::LineageRecord record);
  [[nodiscard]] Status put_lineage(const schema::LineageRecord& record);  // replaces the record of an existing number
  // Per shard: keeps the newest full version with step <= floor, at least `keep_fulls` fulls, and every log and step
  // message needed after the oldest full kept; deletes the rest. Never the newest full or a log after it, whatever is
  // asked.
  [[nodiscard]] Result<RetainReport> retain(const JobId& job, LineageId lineage, StepNumber floor,
                                            std::uint64_t keep_fulls);
  // Deletes everything of a lineage; refuses the newest one of the job.
  [[nodiscard]] Status drop_lineage(const JobId& job, LineageId lineage);
  // Deletes mark, versions and logs of one shard of a lineage; a shard that is not there is success.
  [[nodiscard]] Status drop_shard(const JobId& job, LineageId lineage, ShardId shard);

  // -- any thread -----------------------------------------------------------------------------------------------
  [[nodiscard]] Result<std::vector<std::uint8_t>> get_side(std::string_view key) const;  // STORE_MISSING_CHUNK: absent
  // Visits keys with the prefix in order until visit returns false; bytes are valid during the call.
  [[nodiscard]] Status scan_side(std::string_view prefix,
                                 const std::function<bool(std::string_view key, ByteSpan bytes)>& visit) const;
  [[nodiscard]] Result<std::vector<schema::LineageRecord>> lineages(const JobId& job) const;  // ascending
  [[nodiscard]] Result<std::vector<schema::LineageRecord>> all_lineages() const;
  [[nodiscard]] Result<std::vector<Mark>> marks(const JobId& job) const;
  [[nodiscard]] Result<std::vector<Mark>> marks(const JobId& job, LineageId lineage) const;
  [[nodiscard]] Result<std::vector<StepNumber>> full_steps(const JobId& job, LineageId lineage, ShardId shard) const;
  [[nodiscard]] Result<std::vector<std::uint8_t>> read_log(const JobId& job, LineageId lineage, ShardId shard,
                                                           StepNumber step) const;
  // Length of that record; 0 when there is none, or nothing in it.
  [[nodiscard]] Result<std::uint64_t> log_bytes(const JobId& job, LineageId lineage, ShardId shard,
                                                StepNumber step) const;
  [[nodiscard]] Result<std::vector<FullPartInfo>> full_parts(const JobId& job, LineageId lineage, ShardId shard,
                                                             StepNumber step) const;
  [[nodiscard]] Result<std::vector<std::uint8_t>> read_full(const JobId& job, LineageId lineage, ShardId shard,
                                                            StepNumber step, std::uint8_t kind) const;
  // Reads a record into `out`, which must have exactly its length: no allocation but one chunk buffer.
  [[nodiscard]] Status read_into(const JobId& job, LineageId lineage, ShardId shard, StepNumber step, std::uint8_t kind,
                                 std::span<std::uint8_t> out) const;
  [[nodiscard]] Result<Sha256> state_digest(const JobId& job, LineageId lineage, ShardId shard, StepNumber step) const;
  [[nodiscard]] Result<std::uint64_t> free_bytes() const;  // of the file system of the store

 private:
  struct Impl;
  explicit ShardStore(std::unique_ptr<Impl> impl);
  std::unique_ptr<Impl> impl_;
};

}  // namespace gradtap::storage
