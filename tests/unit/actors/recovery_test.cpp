#include "actors/recovery.h"

#include <filesystem>
#include <fstream>

#include <doctest/doctest.h>

#include "actors/side_channel.h"
#include "recovery/store_source.h"
#include "tests/unit/actors/stored_job.h"

namespace gradtap::actors {
namespace {

using replica::Verdict;
using test::json;
using test::StoredJob;

RecoveredJob recover(const StoredJob& job, bool whole = true) {
  auto recovered = recover_job(*job.store, "job", whole);
  if (!recovered) FAIL(recovered.error().text());
  REQUIRE(recovered->has_value());
  return std::move(**recovered);
}

std::string recovery_error(const StoredJob& job) {
  const auto recovered = recover_job(*job.store, "job", true);
  REQUIRE(!recovered);
  CHECK(!recovered.error().what.empty());
  return std::string(error_name(recovered.error().code));
}

}  // namespace

TEST_CASE("a full version is what the shard was, absent state included") {
  for (const json& optimizer : {test::sgd(), test::adamw()}) {
    StoredJob job(test::three_shards(optimizer));
    job.base(1);
    const recovery::StoreSource source(job.store, job.plan->job, job.plan->lineage);
    auto read = recovery::read_full_version(source, *job.plan, 1, 0);
    REQUIRE_MESSAGE(read, read.error().text());
    job.check_same(*read, 0);
    CHECK(read->piece_states()[0].present == 0);
    job.step(1, true, true);
    read = recovery::read_full_version(source, *job.plan, 1, 1);
    REQUIRE(read);
    job.check_same(*read, 1);
    CHECK(std::equal(read->piece_states().begin(), read->piece_states().end(), job.shards[1]->piece_states().begin()));
    CHECK(read->piece_states()[0].present != 0);
    CHECK_FALSE(recovery::read_full_version(source, *job.plan, 1, 2));
    CHECK_FALSE(recovery::read_full_version(source, *job.plan, 0, 0));
  }
}

TEST_CASE("a full version does not move with its shard") {
  StoredJob job(test::three_shards(test::sgd()));
  const recovery::FullVersion copy(*job.shards[2]);
  job.step(2, false);
  const auto parts = copy.parts();
  REQUIRE(parts.size() == 2);  // the parameter and the piece states: there is no momentum yet
  CHECK(parts[0].kind == storage::kKindParam);
  CHECK(std::memcmp(parts[0].bytes[0].data(), job.arrays[2][0][0].data(), parts[0].bytes[0].size()) == 0);
  CHECK(parts[1].kind == storage::kKindPresence);
  CHECK(parts[1].bytes[0].size() == 9);
}

TEST_CASE("a job comes back at every durable step, skipped ones included") {
  StoredJob job(test::three_shards(test::adamw()));
  CHECK_FALSE(recover_job(*job.store, "job", true)->has_value());  // attached, nothing durable
  CHECK_FALSE(recover_job(*job.store, "another", true)->has_value());
  for (ShardId id = 0; id < 3; ++id) job.base(id);
  for (StepNumber step = 1; step <= 6; ++step) {
    const Verdict verdict = step == 3 ? Verdict::kSkipped : Verdict::kApplied;
    job.store_message(step, verdict);
    // Full versions at different steps.
    for (ShardId id = 0; id < 3; ++id) job.step(id, true, step == 2 + id, verdict);
    if (step % 2 == 0) job.reopen();
    const RecoveredJob recovered = recover(job);
    REQUIRE(recovered.shards.size() == 3);
    for (const auto& shard : recovered.shards) job.check_same(*shard, step);
    CHECK(recovered.plan->lineage == job.plan->lineage);
    CHECK(recovered.feed.messages.empty());
    CHECK(recovered.record == job.record);
  }
  CHECK(job.digests[0][2] == job.digests[0][3]);
  // Any older step, from a full version before it.
  for (StepNumber step = 0; step <= 6; ++step)
    for (ShardId id = 0; id < 3; ++id) {
      const auto shard = rebuild_shard(*job.store, *job.plan, id, step);
      REQUIRE_MESSAGE(shard, shard.error().text());
      job.check_same(*shard, step);
    }
  CHECK(rebuild_shard(*job.store, *job.plan, 0, 7).error().code == ErrorCode::kStoreMissingChunk);
}

TEST_CASE("shards that are durable at different steps come back each at its own") {
  StoredJob job(test::three_shards(test::sgd()));
  for (ShardId id = 0; id < 3; ++id) job.base(id);
  for (StepNumber step = 1; step <= 4; ++step) {
    job.store_message(step);
    for (ShardId id = 0; id < 3; ++id)
      if (step <= 2 + id) job.step(id);  // 2, 3 and 4
  }
  const RecoveredJob recovered = recover(job);
  REQUIRE(recovered.shards.size() == 3);
  for (ShardId id = 0; id < 3; ++id) job.check_same(*recovered.shards[id], 2 + id);
  // The messages of every step that some shard has not.
  REQUIRE(recovered.feed.messages.size() == 2);
  CHECK(recovered.feed.messages[0]->step == 3);
  CHECK(recovered.feed.messages[1]->step == 4);
  CHECK(recovered.feed.messages[0]->scalars.groups.size() == 1);
}

TEST_CASE("layouts and sessions come back") {
  StoredJob job(test::three_shards(test::sgd()));
  for (ShardId id = 0; id < 3; ++id) job.base(id);
  const LayoutPtr layout = test::layout_of(*job.plan, {{2}, {1, 0}});
  const std::string body = layout->canonical_json();
  test::require_ok(job.store->put_side(storage::side_key(storage::SideKind::kLayout, job.plan->job, job.plan->lineage) +
                                           std::string(layout->id().begin(), layout->id().end()),
                                       ByteSpan(reinterpret_cast<const std::uint8_t*>(body.data()), body.size()),
                                       true));
  Session session;
  session.id = std::string(32, 'b');
  session.run_nonce = std::string(32, 'a');
  session.rank = 1;
  session.lineage = job.plan->lineage;
  session.received_seq = 42;
  test::require_ok(
      job.store->put_side(session_key(job.plan->job, job.plan->lineage, 1), encode_session(session), true));
  const RecoveredJob recovered = recover(job);
  REQUIRE(recovered.feed.layouts.size() == 1);
  CHECK(recovered.feed.layouts[0]->id() == layout->id());
  REQUIRE(recovered.sessions.size() == 1);
  CHECK(recovered.sessions[0].rank == 1);
  CHECK(recovered.sessions[0].received_seq == 42);
  CHECK(recovered.sessions[0].id == session.id);
  // A session that cannot be read is not a rank that never attached.
  test::require_ok(job.store->put_side(session_key(job.plan->job, job.plan->lineage, 0), {}, true));
  CHECK_FALSE(recover_job(*job.store, "job", true));
}

TEST_CASE("a lineage whose baseline is not durable everywhere is passed over") {
  StoredJob job(test::three_shards(test::sgd()));
  for (ShardId id = 0; id < 3; ++id) job.base(id);
  job.store_message(1);
  for (ShardId id = 0; id < 3; ++id) job.step(id);
  schema::LineageRecord next = test::record_of(job.body, 65'536, std::string(32, 'c'));
  SUBCASE("its probe did not end") {
    next.recipe_id.clear();
  }
  SUBCASE("nothing of it is durable") {}
  const auto opened = job.store->open_lineage(next);
  REQUIRE(opened);
  CHECK(opened->id == job.plan->lineage + 1);
  next.lineage = opened->id;
  test::require_ok(job.store->put_lineage(next));
  const RecoveredJob recovered = recover(job);
  CHECK(recovered.plan->lineage == job.plan->lineage);
  for (const auto& shard : recovered.shards) job.check_same(*shard, 1);
}

TEST_CASE("a node of several comes back with the shards that it has, and with the lineage that it has nothing of") {
  StoredJob job(test::three_shards(test::sgd()));
  job.base(0);
  job.base(2);
  job.store_message(1);
  job.step(2);
  CHECK_FALSE(recover_job(*job.store, "job", true)->has_value());
  RecoveredJob recovered = recover(job, false);
  REQUIRE(recovered.shards.size() == 2);
  job.check_same(*recovered.shards[0], 0);
  job.check_same(*recovered.shards[1], 1);
  REQUIRE(recovered.feed.messages.size() == 1);  // shard 0 goes on with step 1
  CHECK(recovered.feed.messages[0]->step == 1);
  // A newer lineage of which peers have everything.
  schema::LineageRecord next = test::record_of(job.body, 65'536, std::string(32, 'c'));
  const auto opened = job.store->open_lineage(next);
  REQUIRE(opened);
  next.lineage = opened->id;
  SUBCASE("its recipe is known") {
    test::require_ok(job.store->put_lineage(next));
    recovered = recover(job, false);
    CHECK(recovered.plan->lineage == 2);
    CHECK(recovered.shards.empty());
    CHECK(recovered.feed.messages.empty());
  }
  SUBCASE("its probe did not end") {
    next.recipe_id.clear();
    test::require_ok(job.store->put_lineage(next));
    CHECK(recover(job, false).plan->lineage == 1);
  }
}

TEST_CASE("what cannot be rebuilt is a named error") {
  StoredJob job(test::three_shards(test::sgd()));
  for (ShardId id = 0; id < 3; ++id) job.base(id);
  std::string expected;
  const std::vector<float> other = test::shard_gradient(*job.plan, 0, 77);
  const ByteSpan bytes(reinterpret_cast<const std::uint8_t*>(other.data()), other.size() * 4);
  const auto apply_first = [&] {
    for (ShardId id = 1; id < 3; ++id) job.step(id);
    job.step(0, false);
  };
  SUBCASE("no step message") {
    apply_first();
    job.write(0, true, {bytes}, false, job.digests[0][1]);
    expected = "STORE_MISSING_CHUNK";
  }
  SUBCASE("another gradient than the digest's") {
    job.store_message(1);
    apply_first();
    job.write(0, true, {bytes}, false, job.digests[0][1]);
    expected = "DIGEST_MISMATCH";
  }
  SUBCASE("a log of another length") {
    job.store_message(1);
    apply_first();
    job.write(0, true, {bytes.first(400)}, false, job.digests[0][1]);
    expected = "STORE_CORRUPT";
  }
  SUBCASE("an applied step without a gradient") {
    job.store_message(1);
    apply_first();
    job.write(0, true, {}, false, job.digests[0][1]);
    expected = "STORE_CORRUPT";
  }
  SUBCASE("a full version that is not its digest's") {
    job.store_message(1);
    apply_first();
    job.write(0, true, {bytes}, true, job.digests[0][0]);
    expected = "DIGEST_MISMATCH";
  }
  SUBCASE("a step message that is none") {
    apply_first();
    job.write(0, true, {bytes}, false, job.digests[0][1]);
    schema::StepRecord record;
    record.json = {'{', '}'};
    test::require_ok(
        job.store->put_side(storage::side_key(storage::SideKind::kStepMessage, job.plan->job, job.plan->lineage, 1, 0),
                            schema::encode(record), true));
    expected = "SCHEMA_INVALID";
  }
  CHECK(recovery_error(job) == expected);
}

TEST_CASE("a byte that changed on disk is an error, or was none of the state's") {
  StoredJob job(test::attach({test::parameter("a", {3000}), test::parameter("b", {77})}, test::sgd()));
  job.base(0);
  for (StepNumber step = 1; step <= 2; ++step) {
    job.store_message(step);
    job.step(0);
  }
  job.reopen();  // what was in the write-ahead log is in tables now
  job.store.reset();
  std::vector<std::filesystem::path> tables;
  for (const auto& entry : std::filesystem::recursive_directory_iterator(job.dir.path))
    if (entry.path().extension() == ".sst") tables.push_back(entry.path());
  REQUIRE(tables.size() >= 3);
  unsigned refused = 0;
  unsigned tried = 0;
  SeededRandom random(5);
  for (const auto& table : tables) {
    const auto size = std::filesystem::file_size(table);
    for (int i = 0; i < 6; ++i, ++tried) {
      const auto at = static_cast<std::streamoff>(random.below(size));
      const auto flip = [&] {
        std::fstream file(table, std::ios::in | std::ios::out | std::ios::binary);
        file.seekg(at);
        const char byte = static_cast<char>(file.get() ^ 0x10);
        file.seekp(at);
        file.put(byte);
      };
      flip();
      {
        const auto store = storage::ShardStore::open(storage::test::options_at(job.dir.path, 1 << 16));
        if (!store) {
          ++refused;
          CHECK(static_cast<unsigned>(store.error().code) >= 400);
        } else if (const auto recovered = recover_job(**store, "job", true); !recovered) {
          ++refused;
          CHECK(!recovered.error().where.empty());
        } else {
          REQUIRE(recovered->has_value());
          job.check_same(*(*recovered)->shards[0], 2);
        }
      }
      if (!std::filesystem::exists(table)) break;  // opening tidied it away
      flip();
    }
  }
  CHECK(refused * 2 > tried);
}

}  // namespace gradtap::actors
