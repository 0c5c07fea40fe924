// A store in a directory of its own, and bytes that are easy to predict.
#pragma once

#include <filesystem>
#include <memory>
#include <string>
#include <vector>

#include <doctest/doctest.h>
#include <unistd.h>

#include "common/random.h"
#include "storage/shard_store.h"

namespace gradtap::storage::test {

struct TempDir {
  std::string path;
  // In memory where only the logic counts: random lives sync hundreds of times.
  explicit TempDir(bool in_memory = false) {
    const std::filesystem::path memory = "/dev/shm";
    const bool use_memory = in_memory && ::access(memory.c_str(), W_OK) == 0;
    const std::filesystem::path parent = use_memory ? memory : std::filesystem::temp_directory_path();
    std::string pattern = (parent / "gradtap-store-XXXXXX").string();
    REQUIRE(::mkdtemp(pattern.data()) != nullptr);
    path = pattern;
  }
  ~TempDir() {
    std::error_code ignored;
    std::filesystem::remove_all(path, ignored);
  }
  TempDir(const TempDir&) = delete;
  TempDir& operator=(const TempDir&) = delete;
};

inline StoreOptions options_at(const std::string& path, std::uint64_t chunk_bytes = 4096) {
  StoreOptions options;
  options.path = path;
  options.chunk_bytes = chunk_bytes;
  options.min_free_bytes = 0;
  return options;
}

inline std::unique_ptr<ShardStore> open_or_fail(const StoreOptions& options) {
  auto store = ShardStore::open(options);
  if (!store) FAIL(store.error().text());
  return std::move(*store);
}

inline void require_ok(const Status& status) {
  if (!status) FAIL(status.error().text());
}

// Bytes of a record, a function of its name only: what a reader must find again.
inline std::vector<std::uint8_t> bytes_of(ShardId shard, StepNumber step, std::uint8_t kind, std::size_t count) {
  SeededRandom random(splitmix64_mix(shard * 1000003 + step * 257 + kind + 1));
  std::vector<std::uint8_t> out(count);
  for (auto& byte : out) byte = static_cast<std::uint8_t>(random.next());
  return out;
}

inline Sha256 digest_of(ShardId shard, StepNumber step) {
  Sha256 digest{};
  const auto bytes = bytes_of(shard, step, 0, digest.size());
  std::copy(bytes.begin(), bytes.end(), digest.begin());
  return digest;
}

// A commit that owns its bytes. Sizes differ per shard, so that mixed-up shards are seen.
struct OwnedCommit {
  StepCommit commit;
  std::vector<std::unique_ptr<std::vector<std::uint8_t>>> buffers;

  OwnedCommit(const JobId& job, LineageId lineage, StepNumber step) {
    commit.job = job;
    commit.lineage = lineage;
    commit.step = step;
  }
  OwnedCommit& shard(ShardId id, bool log, bool full, std::size_t bytes) {
    ShardCommit entry;
    entry.shard = id;
    entry.has_log = log;
    entry.state_digest = digest_of(id, commit.step);
    if (log) {
      const auto& buffer = own(bytes_of(id, commit.step, kKindGradient, bytes));
      const ByteSpan whole(buffer);
      // Three uneven pieces, one empty.
      const std::size_t cut = bytes / 3;
      entry.log = {whole.subspan(0, cut), whole.subspan(cut, 0), whole.subspan(cut)};
      entry.log_digests = {commit.step, id};
    }
    if (full)
      for (std::uint8_t kind = kKindParam; kind < kKindParam + 3; ++kind)
        entry.full.push_back({kind, {ByteSpan(own(bytes_of(id, commit.step, kind, bytes)))}, {kind, id, commit.step}});
    commit.shards.push_back(std::move(entry));
    return *this;
  }

 private:
  const std::vector<std::uint8_t>& own(std::vector<std::uint8_t> bytes) {
    buffers.push_back(std::make_unique<std::vector<std::uint8_t>>(std::move(bytes)));
    return *buffers.back();
  }
};

}  // namespace gradtap::storage::test
