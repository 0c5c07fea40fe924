#include "actors/self_benchmark.h"

#include <algorithm>
#include <cstring>
#include <ctime>
#include <filesystem>
#include <optional>
#include <thread>
#include <vector>

#include <fcntl.h>
#include <unistd.h>

#include "common/random.h"
#include "replica/shard.h"
#include "storage/object_key.h"

namespace gradtap::actors {

namespace {

constexpr std::size_t kCopyBytes = std::size_t{16} << 20;  // twice on each thread
constexpr unsigned kCopyThreadsMax = kBenchmarkMemoryBytesMax / (2 * kCopyBytes);
constexpr double kCopySeconds = 0.04;
constexpr std::uint64_t kElements = std::uint64_t{2} << 20;
constexpr double kApplySeconds = 0.06;
constexpr double kDigestSeconds = 0.04;
constexpr std::size_t kFileBytes = std::size_t{8} << 20;
constexpr std::size_t kObjectBytes = std::size_t{4} << 20;
constexpr double kWriteSeconds = 0.1;
constexpr int kWritesMax = 8;
constexpr double kWallSeconds = 0.2;  // of one measurement: a busy machine lets it have few turns

double now(clockid_t clock) {
  timespec time{};
  ::clock_gettime(clock, &time);
  return static_cast<double>(time.tv_sec) + 1e-9 * static_cast<double>(time.tv_nsec);
}

// Bytes copied in a second of one thread's CPU time.
double copy_rate() {
  std::vector<std::uint8_t> from(kCopyBytes, 1), to(kCopyBytes, 2);
  const double begun = now(CLOCK_THREAD_CPUTIME_ID);
  const double end = now(CLOCK_MONOTONIC) + kWallSeconds;
  double spent = 0;
  std::uint64_t bytes = 0;
  do {
    std::memcpy(to.data(), from.data(), kCopyBytes);
    from[bytes % kCopyBytes] = to[(bytes * 7) % kCopyBytes];  // each copy depends on the one before
    bytes += kCopyBytes;
    spent = now(CLOCK_THREAD_CPUTIME_ID) - begun;
  } while (spent < kCopySeconds && now(CLOCK_MONOTONIC) < end);
  return static_cast<double>(bytes) / spent;
}

unsigned copy_threads() {
  return std::clamp(std::thread::hardware_concurrency(), 1U, kCopyThreadsMax);
}

void measure_memory(capacity::NodeShape& node) {
  const unsigned threads = copy_threads();
  std::vector<double> rates(threads, 0);
  {
    std::vector<std::jthread> running;
    running.reserve(threads);
    for (double& rate : rates) running.emplace_back([&rate] { rate = copy_rate(); });
  }
  double sum = 0;
  for (const double rate : rates) sum += rate;
  node.memory_bytes_per_s = 2 * sum;  // read and written
  node.place_bytes_per_s = sum / threads;
}

std::optional<replica::Shard> made_up_shard(replica::Schema& schema) {
  replica::GroupHyper hyper;
  hyper.lr.value = 1e-3;
  hyper.beta1 = 0.9;
  hyper.beta2 = 0.999;
  hyper.eps = 1e-8;
  replica::ParameterSpec parameter;
  parameter.name = "w";
  parameter.shape = {kElements};
  parameter.order = {0};
  parameter.numel = kElements;
  parameter.group = 0;
  schema.parameters = {parameter};
  schema.optimizer.type = replica::OptimizerClass::kAdamW;
  schema.optimizer.kinds = {replica::StateKind::kExpAvg, replica::StateKind::kExpAvgSq};
  schema.optimizer.groups = {hyper};
  const auto map = replica::ShardMap::cut(schema, kElements);
  if (!map) return std::nullopt;
  auto shard = replica::Shard::create(schema, map->shards().front(), {true, true, false});
  if (!shard) return std::nullopt;
  const std::vector<float> values(kElements, 0.5F);
  if (!shard->load_range(0, 0, 0, {reinterpret_cast<const std::uint8_t*>(values.data()), kElements * sizeof(float)}) ||
      !shard->finish_baseline(0))
    return std::nullopt;
  return std::move(*shard);
}

void measure_optimizer(capacity::NodeShape& node) {
  replica::Schema schema;
  auto shard = made_up_shard(schema);
  if (!shard) return;
  const std::vector<float> gradient(kElements, 1e-3F);
  const std::vector<const float*> pieces = replica::contiguous_pieces(shard->range(), gradient.data());
  replica::StepScalars scalars;
  scalars.groups = schema.optimizer.groups;
  scalars.param_state = {replica::ParamState::kWire};
  scalars.step = 1;
  if (!shard->apply(scalars, {pieces})) return;  // creates the moments
  double begun = now(CLOCK_THREAD_CPUTIME_ID);
  double end = now(CLOCK_MONOTONIC) + kWallSeconds;
  double spent = 0;
  std::uint64_t steps = 0;
  do {
    scalars.step = shard->version() + 1;
    if (!shard->apply(scalars, {pieces})) return;
    ++steps;
    spent = now(CLOCK_THREAD_CPUTIME_ID) - begun;
  } while (spent < kApplySeconds && now(CLOCK_MONOTONIC) < end);
  node.apply_parameters_per_s = static_cast<double>(steps * kElements) / spent;
  (void)shard->digest();  // the first one builds the table of keys
  begun = now(CLOCK_THREAD_CPUTIME_ID);
  end = now(CLOCK_MONOTONIC) + kWallSeconds;
  std::uint64_t digests = 0;
  do {
    (void)shard->digest();
    ++digests;
    spent = now(CLOCK_THREAD_CPUTIME_ID) - begun;
  } while (spent < kDigestSeconds && now(CLOCK_MONOTONIC) < end);
  node.digest_bytes_per_s = static_cast<double>(digests * kElements * sizeof(float) * shard->kind_count()) / spent;
}

std::vector<std::uint8_t> noise(std::size_t bytes) {
  SeededRandom random(1);
  std::vector<std::uint8_t> out(bytes);
  for (std::size_t i = 0; i + sizeof(std::uint64_t) <= bytes; i += sizeof(std::uint64_t)) {
    const std::uint64_t word = random.next();
    std::memcpy(out.data() + i, &word, sizeof word);
  }
  return out;
}

bool write_all(int file, const std::vector<std::uint8_t>& bytes) {
  for (std::size_t at = 0; at < bytes.size();) {
    const ssize_t wrote = ::pwrite(file, bytes.data() + at, bytes.size() - at, static_cast<off_t>(at));
    if (wrote <= 0) return false;
    at += static_cast<std::size_t>(wrote);
  }
  return true;
}

void measure_disk(const std::string& directory, capacity::NodeShape& node) {
  const std::string path = std::filesystem::path(directory) / "rates.tmp";
  const std::vector<std::uint8_t> bytes = noise(kFileBytes);
  const double begun = now(CLOCK_MONOTONIC);
  double spent = 0;
  std::uint64_t written = 0;
  for (int i = 0; i < kWritesMax && spent < kWriteSeconds; ++i) {
    const int file = ::open(path.c_str(), O_CREAT | O_TRUNC | O_WRONLY | O_CLOEXEC | O_NOFOLLOW, 0600);
    const bool done = file >= 0 && write_all(file, bytes) && ::fdatasync(file) == 0;
    if (file >= 0) ::close(file);
    if (!done) break;
    written += bytes.size();
    spent = now(CLOCK_MONOTONIC) - begun;
  }
  ::unlink(path.c_str());
  if (written > 0) node.disk_write_bytes_per_s = static_cast<double>(written) / spent;
}

void measure_objects(storage::ObjectStore& objects, const std::string& node_name, capacity::NodeShape& node) {
  const std::string key = "cluster/rates/" + storage::job_segment(node_name);
  const std::vector<std::uint8_t> bytes = noise(kObjectBytes);
  if (!objects.remove({key})) return;  // of an interrupted start
  const double begun = now(CLOCK_MONOTONIC);
  const bool done = objects.put(key, {ByteSpan(bytes)}).has_value();
  const double spent = now(CLOCK_MONOTONIC) - begun;
  (void)objects.remove({key});
  if (done && spent > 0) node.object_write_bytes_per_s = static_cast<double>(bytes.size()) / spent;
}

}  // namespace

std::uint64_t benchmark_memory_bytes() {
  // Values, gradient, and the shard's three arrays.
  return std::max<std::uint64_t>(2 * kCopyBytes * copy_threads(), 5 * kElements * sizeof(float));
}

void measure_rates(const std::string& directory, storage::ObjectStore* objects, const std::string& node_name,
                   capacity::NodeShape& node) {
  measure_memory(node);
  measure_optimizer(node);
  measure_disk(directory, node);
  if (objects != nullptr) measure_objects(*objects, node_name, node);
}

}  // namespace gradtap::actors
