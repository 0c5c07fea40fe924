// DirectoryStore: an object store in a directory that all nodes see, local or on a network file system.
//
// Purpose: a key is a path below the root. Writing: tmp/WRITER.uid, fsync, link(2) to the final name, fsync of the
// directory, unlink of the temporary name; so a name appears whole or not at all, and of any number of contenders one
// link succeeds. Ownership: the directory is shared; this object owns the temporary files of its writer's name, which
// must be unique among the processes that use the directory. Threads: any. Invariants: what was reported as done is
// on the disk, name and content. Failure: STORE_FULL (no space or quota), OBJECT_STORE (everything else that the
// system reports), OBJECT_MISSING only while the root is seen to be the store that was opened: a directory that is
// unmounted later is an error, not an empty store. EEXIST, whatever caused it, is answered by comparing content.
#pragma once

#include <atomic>
#include <cstdint>
#include <memory>
#include <mutex>
#include <set>
#include <string>
#include <string_view>
#include <vector>

#include "common/random.h"
#include "storage/file_ops.h"
#include "storage/kill_points.h"
#include "storage/object_store.h"

namespace gradtap::storage {

struct DirectoryStoreOptions {
  std::string path;                                    // made when absent, unless read_only
  std::string writer;                                  // A-Z a-z 0-9 _ -: node name, or a uid for a program
  bool read_only = false;                              // never writes; needs no writer
  std::uint64_t keys_max = 4'000'000;                  // of one list()
  std::uint64_t write_bytes = std::uint64_t{4} << 20;  // of one write call at most
  FileOps* files = nullptr;                            // not owned; null: the system's
  KillPoints* kill_points = nullptr;                   // not owned; reached after the link of a point record
};

struct DirectoryStoreCounters {
  std::uint64_t created = 0;
  std::uint64_t existed = 0;
  std::uint64_t bytes_written = 0;
  std::uint64_t removed = 0;
  std::uint64_t failed = 0;  // writes and removals that ended in an error
};

class DirectoryStore final : public ObjectStore {
 public:
  [[nodiscard]] static Result<std::unique_ptr<DirectoryStore>> open(const DirectoryStoreOptions& options);

  Status put(std::string_view key, const std::vector<ByteSpan>& parts) override;
  Result<Created> create(std::string_view key, ByteSpan bytes) override;
  Result<std::vector<std::uint8_t>> get(std::string_view key, std::uint64_t bytes_max) const override;
  Result<LargeBuffer> load(std::string_view key, std::uint64_t bytes_max,
                           const std::function<void(ByteSpan)>& seen) const override;
  Result<std::vector<std::uint8_t>> read(std::string_view key, std::uint64_t offset,
                                         std::uint64_t count) const override;
  Result<std::uint64_t> length(std::string_view key) const override;
  Result<std::vector<std::string>> list(std::string_view prefix) const override;
  Status remove(const std::vector<std::string>& keys) override;
  Result<std::uint64_t> remove_stray() override;
  std::string describe() const override;

  [[nodiscard]] DirectoryStoreCounters counters() const;

 private:
  class OpenFile;
  explicit DirectoryStore(const DirectoryStoreOptions& options);

  [[nodiscard]] std::string path_of(std::string_view key) const;
  [[nodiscard]] Status check_key(std::string_view key) const;
  [[nodiscard]] Status check_writable(std::string_view key) const;
  [[nodiscard]] Result<Created> write_once(std::string_view key, const std::vector<ByteSpan>& parts);
  [[nodiscard]] Result<Created> write_and_link(std::string_view key, const std::string& tmp,
                                               const std::vector<ByteSpan>& parts);
  [[nodiscard]] Status write_file(const std::string& path, const std::vector<ByteSpan>& parts);
  [[nodiscard]] Status make_directories(std::string_view key, bool again);
  [[nodiscard]] Result<Created> compare(std::string_view key, const std::vector<ByteSpan>& parts) const;
  [[nodiscard]] Result<std::uint64_t> open_key(std::string_view key, OpenFile& file) const;
  // LIMIT_REACHED when it is longer than bytes_max.
  [[nodiscard]] Result<std::uint64_t> open_bounded(std::string_view key, std::uint64_t bytes_max, OpenFile& file) const;
  [[nodiscard]] Status read_exact(const OpenFile& file, std::string_view key, std::uint64_t offset,
                                  std::span<std::uint8_t> out) const;
  [[nodiscard]] Status root_is_here() const;
  [[nodiscard]] Status walk(const std::string& folder, std::string_view prefix, int depth,
                            std::vector<std::string>& out) const;

  const DirectoryStoreOptions options_;
  SystemFileOps system_;
  FileOps& files_;
  SystemRandom random_;
  std::atomic<bool> has_store_id_ = false;  // cluster/store-id was there: its absence means that the root has gone

  mutable std::mutex mutex_;
  std::set<std::string, std::less<>> directories_;  // known to exist, durably
  std::set<std::string> active_tmp_;                // names that a write in progress uses
  DirectoryStoreCounters counters_;
};

}  // namespace gradtap::storage
