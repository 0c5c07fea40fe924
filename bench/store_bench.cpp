// A durable log step of the shard store against a raw file with fdatasync on the same file system.
#include <cstdio>
#include <cstdlib>
#include <cstring>
#include <filesystem>
#include <fstream>
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

// Bytes that this process has made the disk write so far, as the kernel accounts them when pages become dirty.
std::uint64_t written_bytes() {
  std::ifstream io("/proc/self/io");
  std::string key;
  std::uint64_t value = 0;
  while (io >> key >> value)
    if (key == "write_bytes:") return value;
  return 0;
}

double per_byte(std::uint64_t written, const benchmark::State& state, std::size_t bytes) {
  return static_cast<double>(written) / (static_cast<double>(state.iterations()) * static_cast<double>(bytes));
}

bool raw_file(const std::string& file, const std::vector<std::uint8_t>& bytes) {
  const int fd = ::open(file.c_str(), O_CREAT | O_TRUNC | O_WRONLY | O_CLOEXEC, 0600);
  for (std::size_t at = 0; at < bytes.size();) {
    const ssize_t wrote = ::write(fd, bytes.data() + at, bytes.size() - at);
    if (wrote <= 0) return false;
    at += static_cast<std::size_t>(wrote);
  }
  const bool ok = ::fdatasync(fd) == 0;
  return ::close(fd) == 0 && ok;
}

// A virtual machine takes memory from its host when a page is touched after a while: that is paid before both, and by
// neither. 256 MiB are what the measured iterations write.
bool touch_page_cache(const std::string& path) {
  const std::vector<std::uint8_t> bytes(64 << 20, 1);
  bool ok = true;
  for (int i = 0; i < 4; ++i) ok = ok && raw_file(path + "/warm-" + std::to_string(i), bytes);
  for (int i = 0; i < 4; ++i) ok = ::unlink((path + "/warm-" + std::to_string(i)).c_str()) == 0 && ok;
  return ok;
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
  if (!touch_page_cache(dir.path)) return state.SkipWithError("warming up");
  std::uint64_t written = 0, since = written_bytes();
  for (auto _ : state) {
    ++commit.step;
    if (const auto status = (*store)->commit(commit); !status)
      return state.SkipWithError(status.error().text().c_str());
    if (commit.step % 32 == 0) {  // keeps the disk bounded; not part of a step
      state.PauseTiming();
      written += written_bytes() - since;
      commit.shards[0].full = {{kKindParam, {ByteSpan(bytes)}, {}}};
      ++commit.step;
      const bool ok = (*store)->commit(commit) && (*store)->retain(commit.job, 1, commit.step, 1);
      commit.shards[0].full.clear();
      since = written_bytes();
      state.ResumeTiming();
      if (!ok) return state.SkipWithError("retention");
    }
  }
  store->reset();  // what it still writes belongs to the steps
  written += written_bytes() - since;
  state.counters["written_per_byte"] = per_byte(written, state, bytes.size());
  state.SetBytesProcessed(state.iterations() * static_cast<std::int64_t>(bytes.size()));
}

void raw_file_fdatasync(benchmark::State& state) {
  const Dir dir;
  const auto bytes = noise(static_cast<std::size_t>(state.range(0)) << 20);
  if (!touch_page_cache(dir.path)) return state.SkipWithError("warming up");
  std::uint64_t number = 0;
  const std::uint64_t since = written_bytes();
  for (auto _ : state) {
    const std::string file = dir.path + "/" + std::to_string(number++ % 32);
    if (!raw_file(file, bytes)) return state.SkipWithError("write");
  }
  state.counters["written_per_byte"] = per_byte(written_bytes() - since, state, bytes.size());
  state.SetBytesProcessed(state.iterations() * static_cast<std::int64_t>(bytes.size()));
}

}  // namespace

BENCHMARK(store_log_step)->Arg(1)->Arg(16)->Arg(64)->UseRealTime()->Unit(benchmark::kMillisecond);
BENCHMARK(raw_file_fdatasync)->Arg(1)->Arg(16)->Arg(64)->UseRealTime()->Unit(benchmark::kMillisecond);
