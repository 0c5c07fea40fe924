// A durable log step of the shard store against a raw file with fdatasync on the same file system.
#include <cstdio>
#include <cstdlib>
#include <cstring>
#include <filesystem>
#include <memory>
#include <string>
#include <vector>

#include <benchmark/benchmark.h>
#include <fcntl.h>
#include <unistd.h>

#include "common/random.h"
#include "storage/shard_store.h"

using namespace gradtap;
using namespace gradtap::storage;

namespace {

struct Dir {
  std::string path;
  Dir() {
    std::string pattern = (std::filesystem::temp_directory_path() / "gradtap-bench-XXXXXX").string();
    if (::mkdtemp(pattern.data()) == nullptr) std::abort();
    path = pattern;
  }
  ~Dir() {
    std::error_code ignored;
    std::filesystem::remove_all(path, ignored);
  }
};

std::vector<std::uint8_t> noise(std::size_t bytes) {
  SeededRandom random(1);
  std::vector<std::uint8_t> out(bytes);
  for (std::size_t i = 0; i + 8 <= bytes; i += 8) {
    const std::uint64_t word = random.next();
    std::memcpy(out.data() + i, &word, sizeof word);
  }
  return out;
}

void store_log_step(benchmark::State& state) {
  const Dir dir;
  const auto bytes = noise(static_cast<std::size_t>(state.range(0)) << 20);
  StoreOptions options;
  options.path = dir.path;
  auto store = ShardStore::open(options);
  if (!store) return state.SkipWithError(store.error().text().c_str());
  StepCommit commit;
  commit.job = job_id("bench");
  commit.lineage = 1;
  commit.shards.resize(1);
  commit.shards[0].full = {{kKindParam, {ByteSpan(bytes)}, {}}};
  if (!(*store)->commit(commit)) return state.SkipWithError("baseline");
  commit.shards[0].full.clear();
  commit.shards[0].has_log = true;
  commit.shards[0].log = {ByteSpan(bytes)};
  for (auto _ : state) {
    ++commit.step;
    if (const auto status = (*store)->commit(commit); !status)
      return state.SkipWithError(status.error().text().c_str());
    if (commit.step % 32 == 0) {  // keeps the disk bounded; not part of a step
      state.PauseTiming();
      commit.shards[0].full = {{kKindParam, {ByteSpan(bytes)}, {}}};
      ++commit.step;
      const bool ok = (*store)->commit(commit) && (*store)->retain(commit.job, 1, commit.step, 1);
      commit.shards[0].full.clear();
      state.ResumeTiming();
      if (!ok) return state.SkipWithError("retention");
    }
  }
  state.SetBytesProcessed(state.iterations() * static_cast<std::int64_t>(bytes.size()));
}

void raw_file_fdatasync(benchmark::State& state) {
  const Dir dir;
  const auto bytes = noise(static_cast<std::size_t>(state.range(0)) << 20);
  std::uint64_t number = 0;
  for (auto _ : state) {
    const std::string file = dir.path + "/" + std::to_string(number++ % 32);
    const int fd = ::open(file.c_str(), O_CREAT | O_TRUNC | O_WRONLY | O_CLOEXEC, 0600);
    for (std::size_t at = 0; at < bytes.size();) {
      const ssize_t wrote = ::write(fd, bytes.data() + at, bytes.size() - at);
      if (wrote <= 0) return state.SkipWithError("write");
      at += static_cast<std::size_t>(wrote);
    }
    if (::fdatasync(fd) != 0) return state.SkipWithError("fdatasync");
    ::close(fd);
  }
  state.SetBytesProcessed(state.iterations() * static_cast<std::int64_t>(bytes.size()));
}

}  // namespace

BENCHMARK(store_log_step)->Arg(1)->Arg(16)->Arg(64)->UseRealTime()->Unit(benchmark::kMillisecond);
BENCHMARK(raw_file_fdatasync)->Arg(1)->Arg(16)->Arg(64)->UseRealTime()->Unit(benchmark::kMillisecond);
