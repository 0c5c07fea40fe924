// Random lives of a store against a naive model: what recovery needs is always there, what it does not need is freed.
#include <algorithm>
#include <filesystem>
#include <map>
#include <set>

#include "tests/unit/storage/store_fixture.h"

using namespace gradtap;
using namespace gradtap::storage;
using namespace gradtap::storage::test;

namespace {

const JobId kJob = job_id("retention");
constexpr std::size_t kBytes = 5000;

struct Stop {};

// Leaves the store in the middle of a retention, as a crash would.
class StopAt final : public KillPoints {
 public:
  bool armed = false;
  void reached(std::string_view name) override {
    if (armed && name == kRetainAfterMark) throw Stop{};
  }
};

struct ModelShard {
  std::set<StepNumber> logs;
  std::set<StepNumber> fulls;
  StepNumber version = 0;
};

// The rule, said plainly: drop fulls from the oldest on while at least `keep` remain and the next one is still <=
// floor; then drop every log that the oldest remaining full does not need.
void naive_retain(ModelShard& shard, StepNumber floor, std::uint64_t keep) {
  keep = std::max<std::uint64_t>(keep, 1);
  while (shard.fulls.size() > keep && *std::next(shard.fulls.begin()) <= floor) shard.fulls.erase(shard.fulls.begin());
  std::erase_if(shard.logs, [&](StepNumber step) { return step <= *shard.fulls.begin(); });
}

void check(const ShardStore& store, const std::map<ShardId, ModelShard>& model) {
  const auto marks = store.marks(kJob).value();
  REQUIRE(marks.size() == model.size());
  for (const Mark& mark : marks) {
    const ModelShard& shard = model.at(mark.shard);
    CHECK(mark.version == shard.version);
    CHECK(mark.full == *shard.fulls.rbegin());
    const auto fulls = store.full_steps(kJob, 1, mark.shard).value();
    CHECK(std::set<StepNumber>(fulls.begin(), fulls.end()) == shard.fulls);
    for (StepNumber step = 0; step <= shard.version; ++step) {
      const auto log = store.read_log(kJob, 1, mark.shard, step);
      REQUIRE(log.has_value() == shard.logs.contains(step));
      if (log) {
        CHECK(*log == bytes_of(mark.shard, step, kKindGradient, kBytes));
      } else {
        CHECK(log.error().code == ErrorCode::kStoreMissingChunk);
      }
    }
    for (const StepNumber step : shard.fulls)
      CHECK(store.read_full(kJob, 1, mark.shard, step, kKindParam + 1).value() ==
            bytes_of(mark.shard, step, kKindParam + 1, kBytes));
    // What replay needs, from the mark alone.
    for (StepNumber step = mark.full + 1; step <= mark.version; ++step) CHECK(shard.logs.contains(step));
  }
}

std::uint64_t table_bytes(const std::string& path) {
  std::uint64_t total = 0;
  for (const auto& entry : std::filesystem::directory_iterator(path + "/rocks")) {
    if (entry.path().extension() != ".sst") continue;
    std::error_code gone;  // RocksDB deletes what no version needs from its own threads
    if (const std::uint64_t bytes = entry.file_size(gone); !gone) total += bytes;
  }
  return total;
}

}  // namespace

TEST_CASE("retention against a naive model, with jumps, group commits, reopens and crashes in between") {
  for (std::uint64_t seed = 1; seed <= 12; ++seed) {
    CAPTURE(seed);
    SeededRandom random(seed);
    TempDir dir(true);
    StopAt stop;
    auto options = options_at(dir.path);
    options.kill_points = &stop;
    options.digest_history = 5;
    auto store = open_or_fail(options);
    std::map<ShardId, ModelShard> model;
    const ShardId shards = static_cast<ShardId>(1 + random.below(4));
    OwnedCommit baseline(kJob, 1, 0);
    for (ShardId shard = 0; shard < shards; ++shard) {
      baseline.shard(shard, false, true, kBytes);
      model[shard].fulls.insert(0);
    }
    require_ok(store->commit(baseline.commit));
    StepNumber step = 0;
    for (int turn = 0; turn < 40; ++turn) {
      const std::uint64_t what = random.below(10);
      if (what < 6) {
        ++step;
        OwnedCommit next(kJob, 1, step);
        for (auto& [id, shard] : model) {
          const bool full = random.below(5) == 0;
          next.shard(id, true, full, kBytes);
          shard.logs.insert(step);
          if (full) shard.fulls.insert(step);
          shard.version = step;
        }
        require_ok(store->commit(next.commit));
      } else if (what == 6) {
        step += 1 + random.below(3);
        OwnedCommit jump(kJob, 1, step);
        for (auto& [id, shard] : model) {
          jump.shard(id, false, true, kBytes);
          shard.fulls.insert(step);
          shard.version = step;
        }
        require_ok(store->commit(jump.commit));
      } else if (what < 9) {
        const StepNumber floor = random.below(step + 3);
        const std::uint64_t keep = random.below(4);
        stop.armed = random.below(3) == 0;
        bool stopped = false;
        try {
          const auto report = store->retain(kJob, 1, floor, keep);
          REQUIRE(report);
        } catch (const Stop&) {
          stopped = true;
        }
        stop.armed = false;
        bool freed = false;
        for (auto& [id, shard] : model) {
          const std::size_t before = shard.logs.size() + shard.fulls.size();
          naive_retain(shard, floor, keep);
          freed = freed || shard.logs.size() + shard.fulls.size() < before;
        }
        if (stopped) {
          store.reset();
          store = open_or_fail(options);
          CHECK((store->open_report().unmarked_chunks_deleted > 0) == freed);
        }
      } else {
        store.reset();
        store = open_or_fail(options);
        CHECK(store->open_report().unmarked_chunks_deleted == 0);
      }
      check(*store, model);
    }
    REQUIRE(store->retain(kJob, 1, step, 1));
    std::uint64_t live = 0;
    for (auto& [id, shard] : model) {
      naive_retain(shard, step, 1);
      live += (shard.logs.size() + 3 * shard.fulls.size()) * (kBytes + 2 * kChunkHeaderBytes);
    }
    check(*store, model);
    const std::uint64_t tensor_tables = 2 * shards * 40;
    store.reset();
    store = open_or_fail(options);
    check(*store, model);
    // Freed for good: no more on disk than what lives, 2 KiB a table, and the small families.
    CHECK(table_bytes(dir.path) < live + tensor_tables * 2048 + (256 << 10));
    CHECK(store->open_report().unmarked_chunks_deleted == 0);
  }
}

TEST_CASE("dropping a superseded lineage frees it and touches no other") {
  TempDir dir;
  auto store = open_or_fail(options_at(dir.path));
  schema::LineageRecord record;
  record.job = kJob;
  for (const char nonce : {'a', 'b'}) {
    record.run_nonce = std::string(32, nonce);
    const Lineage lineage = store->open_lineage(record).value();
    OwnedCommit baseline(kJob, lineage.id, 0);
    require_ok(store->commit(baseline.shard(0, false, true, kBytes).commit));
    OwnedCommit one(kJob, lineage.id, 1);
    require_ok(store->commit(one.shard(0, true, false, kBytes).commit));
    require_ok(
        store->put_side(side_key(SideKind::kStepMessage, kJob, lineage.id, 1), std::vector<std::uint8_t>{7}, false));
  }
  require_ok(store->drop_lineage(kJob, 1));
  CHECK(store->marks(kJob, 1).value().empty());
  CHECK_FALSE(store->read_full(kJob, 1, 0, 0, kKindParam));
  CHECK_FALSE(store->get_side(side_key(SideKind::kStepMessage, kJob, 1, 1)));
  CHECK(store->get_side(side_key(SideKind::kStepMessage, kJob, 2, 1)));
  CHECK(store->read_full(kJob, 2, 0, 0, kKindParam).value() == bytes_of(0, 0, kKindParam, kBytes));
  CHECK_FALSE(store->read_log(kJob, 1, 0, 1));
  CHECK(store->read_log(kJob, 2, 0, 1).value() == bytes_of(0, 1, kKindGradient, kBytes));
  CHECK(store->lineages(kJob).value().size() == 2);  // numbers are never given twice
  store.reset();
  store = open_or_fail(options_at(dir.path));
  CHECK(store->open_report().unmarked_chunks_deleted == 0);  // nothing was left behind
  CHECK(store->marks(kJob).value().size() == 1);
}
