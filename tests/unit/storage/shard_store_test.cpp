#include "storage/shard_store.h"

#include <atomic>
#include <filesystem>
#include <fstream>
#include <iterator>
#include <thread>

#include <sys/mount.h>

#include "tests/unit/storage/store_fixture.h"

using namespace gradtap;
using namespace gradtap::storage;
using namespace gradtap::storage::test;

namespace {

const JobId kStoreJob = job_id("store test");

std::vector<std::filesystem::path> tables(const std::string& path) {
  std::vector<std::filesystem::path> found;
  for (const auto& entry : std::filesystem::directory_iterator(path + "/rocks"))
    if (entry.path().extension() == ".sst") found.push_back(entry.path());
  return found;
}

std::string contents(const std::filesystem::path& path) {
  std::ifstream file(path, std::ios::binary);
  return {std::istreambuf_iterator<char>(file), {}};
}

// The table that holds these bytes, and where.
std::pair<std::filesystem::path, std::size_t> find_in_tables(const std::string& store,
                                                             const std::vector<std::uint8_t>& bytes) {
  const std::string needle(bytes.begin(), bytes.end());
  for (const auto& path : tables(store))
    if (const std::size_t at = contents(path).find(needle); at != std::string::npos) return {path, at};
  return {};
}

}  // namespace

TEST_CASE("what is committed is read again after a reopen, byte by byte") {
  TempDir dir;
  {
    auto store = open_or_fail(options_at(dir.path));
    OwnedCommit baseline(kStoreJob, 1, 0);
    for (ShardId shard = 0; shard < 3; ++shard) baseline.shard(shard, false, true, 10000 + shard);
    require_ok(store->commit(baseline.commit));
    for (StepNumber step = 1; step <= 5; ++step) {
      OwnedCommit next(kStoreJob, 1, step);
      for (ShardId shard = 0; shard < 3; ++shard) next.shard(shard, true, step == 3 && shard == 1, 10000 + shard);
      next.commit.side.push_back(
          {side_key(SideKind::kStepMessage, kStoreJob, 1, step), {1, 2, static_cast<std::uint8_t>(step)}});
      require_ok(store->commit(next.commit));
    }
  }
  auto store = open_or_fail(options_at(dir.path));
  CHECK(store->open_report().unmarked_chunks_deleted == 0);
  CHECK(store->open_report().stage_files_deleted == 0);
  const auto marks = store->marks(kStoreJob);
  REQUIRE(marks);
  REQUIRE(marks->size() == 3);
  for (ShardId shard = 0; shard < 3; ++shard) {
    const Mark& mark = (*marks)[shard];
    CHECK(mark.shard == shard);
    CHECK(mark.version == 5);
    CHECK(mark.full == (shard == 1 ? 3 : 0));
    CHECK(mark.log_from == 1);
    CHECK(mark.log_to == 5);
    CHECK(mark.state_digest == digest_of(shard, 5));
    for (StepNumber step = 1; step <= 5; ++step) {
      const auto log = store->read_log(kStoreJob, 1, shard, step);
      REQUIRE(log);
      CHECK(*log == bytes_of(shard, step, kKindGradient, 10000 + shard));
      const auto digest = store->state_digest(kStoreJob, 1, shard, step);
      REQUIRE(digest);
      CHECK(*digest == digest_of(shard, step));
    }
    for (std::uint8_t kind = kKindParam; kind < kKindParam + 3; ++kind) {
      std::vector<std::uint8_t> out(10000 + shard);
      require_ok(store->read_into(kStoreJob, 1, shard, mark.full, kind, out));
      CHECK(out == bytes_of(shard, mark.full, kind, 10000 + shard));
      CHECK_FALSE(store->read_into(kStoreJob, 1, shard, mark.full, kind, std::span(out).subspan(1)));
    }
    const auto parts = store->full_parts(kStoreJob, 1, shard, mark.full);
    REQUIRE(parts);
    REQUIRE(parts->size() == 3);
    CHECK((*parts)[2].kind == kKindParam + 2);
    CHECK((*parts)[2].bytes == 10000 + shard);
    CHECK((*parts)[2].digests == std::vector<std::uint64_t>{kKindParam + 2, shard, mark.full});
  }
  CHECK(store->full_steps(kStoreJob, 1, 1).value() == std::vector<StepNumber>{0, 3});
  CHECK(store->get_side(side_key(SideKind::kStepMessage, kStoreJob, 1, 4)).value() ==
        std::vector<std::uint8_t>{1, 2, 4});
  const auto absent = store->read_log(kStoreJob, 1, 0, 6);
  REQUIRE_FALSE(absent);
  CHECK(absent.error().code == ErrorCode::kStoreMissingChunk);
}

TEST_CASE("a commit that does not follow is refused and changes nothing") {
  TempDir dir;
  auto store = open_or_fail(options_at(dir.path));
  const auto code = [&](OwnedCommit& commit) {
    const Status status = store->commit(commit.commit);
    return status ? ErrorCode{} : status.error().code;
  };
  OwnedCommit log_first(kStoreJob, 1, 1);
  log_first.shard(0, true, false, 100);
  CHECK(code(log_first) == ErrorCode::kOutOfRange);
  OwnedCommit baseline(kStoreJob, 1, 0);
  baseline.shard(0, false, true, 100).shard(1, false, true, 100);
  CHECK(code(baseline) == ErrorCode{});
  OwnedCommit hole(kStoreJob, 1, 2);
  hole.shard(0, true, false, 100);
  CHECK(code(hole) == ErrorCode::kOutOfRange);
  OwnedCommit twice(kStoreJob, 1, 1);
  twice.shard(0, true, false, 100).shard(0, true, false, 100);
  CHECK(code(twice) == ErrorCode::kOutOfRange);
  OwnedCommit half(kStoreJob, 1, 1);  // shard 7 has no full version: shard 0 must not move either
  half.shard(0, true, false, 100).shard(7, true, false, 100);
  CHECK(code(half) == ErrorCode::kOutOfRange);
  const auto unmoved = store->marks(kStoreJob).value();
  CHECK(unmoved.size() == 2);
  for (const Mark& mark : unmoved) CHECK(mark.version == 0);
  CHECK(std::filesystem::is_empty(dir.path + "/stage"));

  OwnedCommit one(kStoreJob, 1, 1);
  one.shard(0, true, false, 100);
  CHECK(code(one) == ErrorCode{});
  CHECK(code(one) == ErrorCode{});  // again: succeeds, changes nothing
  OwnedCommit back(kStoreJob, 1, 0);
  back.shard(0, false, true, 100);
  CHECK(code(back) == ErrorCode::kOutOfRange);
  OwnedCommit other(kStoreJob, 1, 1);
  other.shard(0, true, false, 100);
  other.commit.shards[0].state_digest[0] ^= 1;
  CHECK(code(other) == ErrorCode::kDigestMismatch);
}

TEST_CASE("a jump starts a new run of logs") {
  TempDir dir;
  {
    auto store = open_or_fail(options_at(dir.path));
    OwnedCommit baseline(kStoreJob, 1, 0);
    require_ok(store->commit(baseline.shard(0, false, true, 500).commit));
    OwnedCommit one(kStoreJob, 1, 1);
    require_ok(store->commit(one.shard(0, true, false, 500).commit));
    OwnedCommit jump(kStoreJob, 1, 9);
    require_ok(store->commit(jump.shard(0, false, true, 500).commit));
    OwnedCommit ten(kStoreJob, 1, 10);
    require_ok(store->commit(ten.shard(0, true, false, 500).commit));
  }
  auto store = open_or_fail(options_at(dir.path));
  const Mark mark = store->marks(kStoreJob).value().at(0);
  CHECK(mark.full == 9);
  CHECK(mark.log_from == 10);
  CHECK(mark.log_to == 10);
}

TEST_CASE("lineage: same nonce, same number; another nonce, the next one; also after a reopen") {
  TempDir dir;
  schema::LineageRecord record;
  record.job = kStoreJob;
  record.job_name = "store test";
  record.run_nonce = std::string(32, 'a');
  {
    auto store = open_or_fail(options_at(dir.path));
    const Lineage first = store->open_lineage(record).value();
    CHECK(first.id == 1);
    CHECK(first.created);
    const Lineage again = store->open_lineage(record).value();
    CHECK(again.id == 1);
    CHECK_FALSE(again.created);
    CHECK_FALSE(again.superseded);
  }
  auto store = open_or_fail(options_at(dir.path));
  CHECK(store->open_lineage(record).value().id == 1);
  record.run_nonce = std::string(32, 'b');
  CHECK(store->open_lineage(record).value().id == 2);
  record.run_nonce = std::string(32, 'a');
  const Lineage old = store->open_lineage(record).value();
  CHECK(old.id == 1);
  CHECK(old.superseded);
  record.job = job_id("another");
  CHECK(store->open_lineage(record).value().id == 1);
  CHECK(store->lineages(kStoreJob).value().size() == 2);
  CHECK(store->all_lineages().value().size() == 3);
  CHECK(store->drop_lineage(kStoreJob, 2).error().code == ErrorCode::kOutOfRange);
}

TEST_CASE("one flipped byte: exactly that chunk is named, its neighbours read") {
  TempDir dir;
  {
    auto store = open_or_fail(options_at(dir.path));
    OwnedCommit baseline(kStoreJob, 1, 0);
    require_ok(store->commit(baseline.shard(0, false, true, 20000).commit));
    OwnedCommit one(kStoreJob, 1, 1);
    require_ok(store->commit(one.shard(0, true, false, 20000).commit));
  }
  const auto bytes = bytes_of(0, 1, kKindGradient, 20000);
  const std::vector<std::uint8_t> part(bytes.begin() + 9000, bytes.begin() + 9032);  // inside chunk 2
  const auto [table, at] = find_in_tables(dir.path, part);
  REQUIRE_FALSE(table.empty());
  {
    std::fstream file(table, std::ios::binary | std::ios::in | std::ios::out);
    file.seekp(static_cast<std::streamoff>(at));
    file.put(static_cast<char>(part[0] ^ 0x10));
  }
  auto store = open_or_fail(options_at(dir.path));
  const auto log = store->read_log(kStoreJob, 1, 0, 1);
  REQUIRE_FALSE(log);
  CHECK(log.error().code == ErrorCode::kStoreCorrupt);
  CHECK(log.error().where.find("step 1 kind 1 chunk 2") != std::string::npos);
  CHECK(log.error().where.find(table.filename().string()) != std::string::npos);
  CHECK(log.error().expected.find("XXH3-128 ") == 0);
  CHECK(log.error().actual.find("XXH3-128 ") == 0);
  CHECK(log.error().expected != log.error().actual.substr(0, log.error().expected.size()));
  for (std::uint8_t kind = kKindParam; kind < kKindParam + 3; ++kind)
    CHECK(store->read_full(kStoreJob, 1, 0, 0, kind).value() == bytes_of(0, 0, kind, 20000));
}

TEST_CASE("a missing table is a storage error, never an older state") {
  TempDir dir;
  {
    auto store = open_or_fail(options_at(dir.path));
    OwnedCommit baseline(kStoreJob, 1, 0);
    require_ok(store->commit(baseline.shard(0, false, true, 5000).commit));
    OwnedCommit one(kStoreJob, 1, 1);
    require_ok(store->commit(one.shard(0, true, false, 5000).commit));
  }
  const auto [table, at] = find_in_tables(dir.path, bytes_of(0, 1, kKindGradient, 1000));
  REQUIRE_FALSE(table.empty());
  REQUIRE(std::filesystem::remove(table));
  const auto store = ShardStore::open(options_at(dir.path));
  REQUIRE_FALSE(store);
  INFO(store.error().text());
  CHECK(store.error().code == ErrorCode::kStoreMissingChunk);
  CHECK(store.error().actual.find(table.filename().string()) != std::string::npos);
}

TEST_CASE("a table that was cut is a storage error") {
  TempDir dir;
  {
    auto store = open_or_fail(options_at(dir.path));
    OwnedCommit baseline(kStoreJob, 1, 0);
    require_ok(store->commit(baseline.shard(0, false, true, 5000).commit));
  }
  const auto all = tables(dir.path);
  REQUIRE(all.size() == 1);
  std::filesystem::resize_file(all[0], std::filesystem::file_size(all[0]) - 1);
  const auto store = ShardStore::open(options_at(dir.path));
  REQUIRE_FALSE(store);
  INFO(store.error().text());
  CHECK(store.error().code == ErrorCode::kStoreCorrupt);
}

TEST_CASE("a second process or a second open is refused by the lock") {
  TempDir dir;
  auto store = open_or_fail(options_at(dir.path));
  const auto second = ShardStore::open(options_at(dir.path));
  REQUIRE_FALSE(second);
  CHECK(second.error().code == ErrorCode::kStoreLocked);
}

TEST_CASE("free space is asked of the store's own file system (J3)") {
  TempDir dir;
  auto options = options_at(dir.path);
  options.min_free_bytes = std::uint64_t{1} << 60;
  auto store = open_or_fail(options);
  OwnedCommit baseline(kStoreJob, 1, 0);
  const Status status = store->commit(baseline.shard(0, false, true, 100).commit);
  REQUIRE_FALSE(status);
  CHECK(status.error().code == ErrorCode::kStoreFull);
  CHECK(store->marks(kStoreJob).value().empty());
  require_ok(store->put_side("x", std::vector<std::uint8_t>{1}, true));  // still usable
}

TEST_CASE("a full disk: the step is refused, what was durable is read, and after freeing the store goes on (J2)") {
  TempDir dir;
  if (::mount("tmpfs", dir.path.c_str(), "tmpfs", 0, "size=24m") != 0) {
    MESSAGE("SKIPPED full_disk: needs root to mount a tmpfs");
    return;
  }
  {
    auto store = open_or_fail(options_at(dir.path, 1 << 20));
    OwnedCommit baseline(kStoreJob, 1, 0);
    require_ok(store->commit(baseline.shard(0, false, true, 1 << 20).commit));
    const std::string ballast = dir.path + "/ballast";
    std::ofstream(ballast, std::ios::binary) << std::string(19 << 20, 'x');
    std::filesystem::resize_file(ballast, std::filesystem::file_size(ballast));
    // min_free_bytes 0 lets the first check pass by a hair or refuse; both must answer STORE_FULL.
    OwnedCommit one(kStoreJob, 1, 1);
    one.shard(0, true, false, 4 << 20);
    const Status status = store->commit(one.commit);
    REQUIRE_FALSE(status);
    CHECK(status.error().code == ErrorCode::kStoreFull);
    CHECK(std::filesystem::is_empty(dir.path + "/stage"));
    CHECK(store->marks(kStoreJob).value().at(0).version == 0);
    CHECK(store->read_full(kStoreJob, 1, 0, 0, kKindParam).value() == bytes_of(0, 0, kKindParam, 1 << 20));
    std::filesystem::remove(ballast);
    require_ok(store->commit(one.commit));
    CHECK(store->read_log(kStoreJob, 1, 0, 1).value() == bytes_of(0, 1, kKindGradient, 4 << 20));
  }
  ::umount2(dir.path.c_str(), MNT_DETACH);
}

TEST_CASE("readers on another thread see whole steps while the owner writes (G7)") {
  TempDir dir;
  auto store = open_or_fail(options_at(dir.path));
  OwnedCommit baseline(kStoreJob, 1, 0);
  require_ok(store->commit(baseline.shard(0, false, true, 3000).shard(1, false, true, 3000).commit));
  std::atomic<bool> done = false;
  std::uint64_t torn = 0;
  std::uint64_t reads = 0;
  std::thread reader([&] {
    while (!done) {
      const auto marks = store->marks(kStoreJob);
      if (!marks || marks->size() != 2 || (*marks)[0].version != (*marks)[1].version) ++torn;
      const StepNumber step = marks ? (*marks)[0].version : 0;
      if (step > 0 && store->read_log(kStoreJob, 1, 1, step) != bytes_of(1, step, kKindGradient, 3000)) ++torn;
      ++reads;
    }
  });
  for (StepNumber step = 1; step <= 60; ++step) {
    OwnedCommit next(kStoreJob, 1, step);
    require_ok(store->commit(next.shard(0, true, false, 3000).shard(1, true, false, 3000).commit));
  }
  done = true;
  reader.join();
  CHECK(torn == 0);
  CHECK(reads > 0);
}

namespace {

// Ends the life of a store at a named point, as a kill would for what is on the disk.
struct StopAt final : KillPoints {
  struct Stop {};
  std::string point;
  void reached(std::string_view name) override {
    if (name == point) throw Stop{};
  }
};

// Shards 0..2 at step 3: a full version of step 0 and 2, logs of 1..3; and shard 1 of another lineage and another job.
void fill(ShardStore& store) {
  const auto commit = [&](const JobId& job, LineageId lineage, StepNumber step, ShardId first, ShardId last) {
    OwnedCommit next(job, lineage, step);
    for (ShardId shard = first; shard <= last; ++shard) next.shard(shard, step > 0, step % 2 == 0, 9000 + shard);
    require_ok(store.commit(next.commit));
  };
  for (StepNumber step = 0; step <= 3; ++step) commit(kStoreJob, 1, step, 0, 2);
  commit(kStoreJob, 2, 0, 1, 1);
  commit(job_id("another"), 1, 0, 1, 1);
}

void check_others(ShardStore& store) {
  for (const ShardId shard : {0U, 2U}) {
    for (StepNumber step = 1; step <= 3; ++step)
      CHECK(store.read_log(kStoreJob, 1, shard, step).value() == bytes_of(shard, step, kKindGradient, 9000 + shard));
    CHECK(store.full_steps(kStoreJob, 1, shard).value() == std::vector<StepNumber>{0, 2});
    CHECK(store.read_full(kStoreJob, 1, shard, 2, kKindParam).value() == bytes_of(shard, 2, kKindParam, 9000 + shard));
    CHECK(store.state_digest(kStoreJob, 1, shard, 3).value() == digest_of(shard, 3));
  }
  CHECK(store.read_full(kStoreJob, 2, 1, 0, kKindParam).value() == bytes_of(1, 0, kKindParam, 9001));
  CHECK(store.read_full(job_id("another"), 1, 1, 0, kKindParam).value() == bytes_of(1, 0, kKindParam, 9001));
  std::vector<ShardId> marked;
  const std::vector<Mark> marks = store.marks(kStoreJob, 1).value();
  for (const Mark& mark : marks) marked.push_back(mark.shard);
  CHECK(marked == std::vector<ShardId>{0, 2});
}

void check_gone(ShardStore& store) {
  CHECK(store.full_steps(kStoreJob, 1, 1).value().empty());
  for (StepNumber step = 0; step <= 3; ++step) {
    CHECK_FALSE(store.read_log(kStoreJob, 1, 1, step));
    CHECK_FALSE(store.read_full(kStoreJob, 1, 1, step, kKindParam));
    CHECK_FALSE(store.state_digest(kStoreJob, 1, 1, step));
  }
}

}  // namespace

TEST_CASE("a shard that is dropped is gone with all it had, and nothing else is") {
  TempDir dir;
  {
    auto store = open_or_fail(options_at(dir.path));
    fill(*store);
    require_ok(store->drop_shard(kStoreJob, 1, 1));
    check_gone(*store);
    check_others(*store);
    require_ok(store->drop_shard(kStoreJob, 1, 1));  // again
    require_ok(store->drop_shard(kStoreJob, 1, 77));
    require_ok(store->drop_shard(kStoreJob, 9, 1));
    require_ok(store->drop_shard(kStoreJob, 1, ~ShardId{0}));
    check_others(*store);
  }
  auto store = open_or_fail(options_at(dir.path));
  CHECK(store->open_report().unmarked_chunks_deleted == 0);
  check_gone(*store);
  check_others(*store);
  // It begins anew with a version of its own, older than the one before or not.
  OwnedCommit log(kStoreJob, 1, 4);
  CHECK_FALSE(store->commit(log.shard(1, true, false, 9001).commit));
  for (StepNumber step = 1; step <= 3; ++step) {
    OwnedCommit next(kStoreJob, 1, step);
    require_ok(store->commit(next.shard(1, step > 1, step == 1, 9001).commit));
  }
  for (StepNumber step = 2; step <= 3; ++step)
    CHECK(store->read_log(kStoreJob, 1, 1, step).value() == bytes_of(1, step, kKindGradient, 9001));
  CHECK(store->full_steps(kStoreJob, 1, 1).value() == std::vector<StepNumber>{1});
  CHECK_FALSE(store->read_log(kStoreJob, 1, 1, 1));
}

TEST_CASE("a drop that a crash cuts short is finished when the store opens") {
  TempDir dir;
  {
    StopAt stop;
    auto options = options_at(dir.path);
    options.kill_points = &stop;
    auto store = open_or_fail(options);
    fill(*store);
    stop.point = kRetainAfterMark;
    CHECK_THROWS_AS((void)store->drop_shard(kStoreJob, 1, 1), StopAt::Stop);
  }
  auto store = open_or_fail(options_at(dir.path));
  CHECK(store->open_report().unmarked_chunks_deleted > 0);
  check_gone(*store);
  check_others(*store);
  OwnedCommit base(kStoreJob, 1, 2);
  require_ok(store->commit(base.shard(1, false, true, 9001).commit));
  CHECK(store->read_full(kStoreJob, 1, 1, 2, kKindParam).value() == bytes_of(1, 2, kKindParam, 9001));
}

TEST_CASE("a shard may go and come again and again while others are committed") {
  TempDir dir;
  auto store = open_or_fail(options_at(dir.path));
  fill(*store);
  for (int round = 0; round < 3; ++round) {
    require_ok(store->drop_shard(kStoreJob, 1, 1));
    check_gone(*store);
    OwnedCommit base(kStoreJob, 1, 3);
    base.shard(1, false, true, 9001);
    require_ok(store->commit(base.commit));
    OwnedCommit next(kStoreJob, 1, 4 + static_cast<StepNumber>(round));
    for (const ShardId shard : {0U, 2U}) next.shard(shard, true, false, 9000 + shard);
    require_ok(store->commit(next.commit));
    CHECK(store->marks(kStoreJob, 1).value().size() == 3);
    const auto report = store->retain(kStoreJob, 1, 3, 1);
    REQUIRE(report);
    CHECK(store->read_full(kStoreJob, 1, 1, 3, kKindParam).value() == bytes_of(1, 3, kKindParam, 9001));
  }
}

TEST_CASE("a full version of a step that is durable already is added to it") {
  TempDir dir;
  {
    auto store = open_or_fail(options_at(dir.path));
    fill(*store);
    OwnedCommit full(kStoreJob, 1, 3);
    require_ok(store->commit(full.shard(1, false, true, 9001).commit));
    CHECK(store->full_steps(kStoreJob, 1, 1).value() == std::vector<StepNumber>{0, 2, 3});
    CHECK(store->marks(kStoreJob, 1).value()[1].log_from == 1);  // no jump: what lies before is still one run
  }
  auto store = open_or_fail(options_at(dir.path));
  CHECK(store->open_report().unmarked_chunks_deleted == 0);
  CHECK(store->marks(kStoreJob, 1).value()[1].full == 3);
  CHECK(store->read_full(kStoreJob, 1, 1, 3, kKindParam).value() == bytes_of(1, 3, kKindParam, 9001));
  for (StepNumber step = 1; step <= 3; ++step)
    CHECK(store->read_log(kStoreJob, 1, 1, step).value() == bytes_of(1, step, kKindGradient, 9001));
  OwnedCommit four(kStoreJob, 1, 4);
  require_ok(store->commit(four.shard(1, true, false, 9001).commit));
}
