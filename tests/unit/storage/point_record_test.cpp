#include "storage/point_record.h"

#include <string>

#include "storage/lease.h"
#include "storage/store_identity.h"
#include "tests/test_files.h"
#include "tests/unit/storage/memory_store.h"
#include "tests/unit/storage/point_fixture.h"

using namespace gradtap;
using namespace gradtap::storage;
using namespace gradtap::storage::test;
using gradtap::testing::bytes_of;

namespace {}  // namespace

TEST_CASE("objects are put under their key's identity and read back whole or not at all (J4)") {
  MemoryStore store;
  const std::string key = log_key("a", 1, 2, 3, "u");
  const auto one = bytes_of("one"), two = bytes_of("two");
  const schema::ObjectRef ref = ok(put_object(store, key, {one, two}));
  CHECK(ref.bytes == store.objects.at(key).size());
  CHECK(ref.sha256 == sha256(store.objects.at(key)));
  const auto loaded = ok(read_object(store, ref, 1000));
  CHECK(std::string(loaded.payload().begin(), loaded.payload().end()) == "onetwo");
  CHECK(read_object(store, ref, ref.bytes - 1).error().code == ErrorCode::kLimitReached);
  require_ok(check_object(store, ref));
  CHECK(put_object(store, point_key("a", 1, 3), {one}).error().code == ErrorCode::kBadText);
  CHECK(put_object(store, key, {one}).error().code == ErrorCode::kObjectConflict);
  auto& stored = store.objects.at(key);
  stored[100] ^= 1;
  const auto damaged = read_object(store, ref, 1000);
  CHECK(damaged.error().code == ErrorCode::kObjectCorrupt);
  CHECK(damaged.error().where == key + " offset 96");
  CHECK(check_object(store, ref).has_value());  // reads the header only
  stored[40] ^= 1;
  CHECK(check_object(store, ref).error().code == ErrorCode::kObjectCorrupt);
  stored.pop_back();
  CHECK(check_object(store, ref).error().code == ErrorCode::kObjectCorrupt);
  store.objects.clear();
  CHECK(check_object(store, ref).error().code == ErrorCode::kObjectMissing);
  CHECK(read_object(store, ref, 1000).error().code == ErrorCode::kObjectMissing);
}

TEST_CASE("create: ours, a twin's, another state (I5, J5, J7)") {
  MemoryStore store;
  PointMaker maker{store};
  maker.start();
  const auto record = maker.record(1, 3, {2, 2});
  CHECK(ok(create_point(store, record)).outcome == PointOutcome::kCreated);
  const auto again = ok(create_point(store, record));
  CHECK(again.outcome == PointOutcome::kExisted);
  CHECK(again.point.record == record);
  CHECK(again.point.digest == sha256(store.objects.at(point_key(maker.job, 1, 3))));
  auto twin = maker.record(1, 3, {1, 2});  // other objects, another publisher, the same state
  twin.publisher = "tap2";
  const auto existed = ok(create_point(store, twin));
  CHECK(existed.outcome == PointOutcome::kExisted);
  CHECK(existed.point.record == record);
  auto other = record;
  other.canonical.state_root[0] ^= 1;
  const auto conflict = create_point(store, other);
  CHECK(conflict.error().code == ErrorCode::kObjectConflict);
  CHECK(conflict.error().expected.find(to_hex(other.canonical.state_root)) != std::string::npos);
  CHECK(conflict.error().actual.find(to_hex(record.canonical.state_root)) != std::string::npos);
  CHECK(ok(read_point(store, maker.job, 1, 3)).record == record);
  store.objects.at(point_key(maker.job, 1, 3))[50] ^= 1;
  CHECK(create_point(store, record).error().code == ErrorCode::kObjectCorrupt);
}

TEST_CASE("a record that no reader would accept is not created") {
  MemoryStore store;
  PointMaker maker{store};
  maker.start();
  maker.start(1, 2);
  const auto refused = [&](auto change) {
    auto record = maker.record(2, 3, {2, 2});
    change(record);
    const bool no = !create_point(store, record).has_value();
    return no && !store.objects.contains(point_key(maker.job, 2, record.canonical.step));
  };
  using schema::PointRecord;
  CHECK(refused([](PointRecord& p) { p.canonical.ranks.pop_back(); }));
  CHECK(refused([](PointRecord& p) { p.side.key = "../../etc/passwd"; }));
  CHECK(refused([&](PointRecord& p) { p.side.key = side_state_key(maker.job, 1, 3, "u"); }));
  CHECK(refused([&](PointRecord& p) { p.side.key = side_state_key("other", 2, 3, "u"); }));
  CHECK(refused([](PointRecord& p) { std::swap(p.shards[0].base, p.shards[1].base); }));
  CHECK(refused([](PointRecord& p) { std::swap(p.shards[0].logs[0], p.shards[1].logs[0]); }));
  CHECK(refused([](PointRecord& p) { p.meta = p.side; }));
}

TEST_CASE("leases: taken, renewed, released; they run out on the watcher's own clock") {
  MemoryStore store;
  SeededRandom random(3);
  ManualClock clock;
  LeaseWatch watch(clock, 10'000);
  const auto look = [&] { return watch.look("a", ok(store.list(job_prefix("a")))); };
  using Held = std::vector<std::pair<LineageId, StepNumber>>;
  CHECK(look().held.empty());
  Lease first = ok(Lease::take(store, "a", 1, 7, "trainer-0", random));
  Lease second = ok(Lease::take(store, "a", 2, 9, "trainer-1", random));
  ok(Lease::take(store, "b", 1, 1, "other", random));
  CHECK(look().held == Held{{1, 7}, {2, 9}});
  clock.advance_ms(9'999);
  CHECK(look().held.size() == 2);
  require_ok(first.renew());
  clock.advance_ms(1);
  const auto seen = look();
  CHECK(seen.held == Held{{1, 7}});
  CHECK(seen.expired == std::vector<std::string>{second.key()});
  // Renewed after all: it counts again.
  require_ok(second.renew());
  CHECK(look().held == Held{{1, 7}, {2, 9}});
  require_ok(second.release());
  CHECK(look().held == Held{{1, 7}});
  // A watcher that has just started knows nothing of the past and waits the whole time.
  clock.advance_ms(5'000);
  LeaseWatch other(clock, 10'000);
  CHECK(other.look("a", ok(store.list(job_prefix("a")))).held == Held{{1, 7}});
  clock.advance_ms(9'999);
  CHECK(look().held.empty());
  CHECK(other.look("a", ok(store.list(job_prefix("a")))).held == Held{{1, 7}});
  CHECK(ok(store.list(leases_prefix("a", 1))).size() == 1);
}

TEST_CASE("nodes find out whether they see the same store") {
  MemoryStore shared, apart;
  SeededRandom random(5);
  CHECK(read_store_id(shared).error().code == ErrorCode::kObjectMissing);
  const StoreHello a = ok(announce_store(shared, "tap0", random));
  const StoreHello b = ok(announce_store(shared, "tap1", random));
  CHECK(a.store_id == b.store_id);
  CHECK(a.store_id.size() == 32);
  require_ok(sees_peer(shared, a, "tap1", b));
  require_ok(sees_peer(shared, b, "tap0", a));
  const StoreHello c = ok(announce_store(apart, "tap2", random));
  CHECK(sees_peer(shared, a, "tap2", c).error().code == ErrorCode::kStoreNotShared);
  // A copy of the directory has the nonce, and not the file.
  CHECK(sees_peer(shared, a, "tap2", {a.store_id, c.presence_key}).error().code == ErrorCode::kStoreNotShared);
  for (const std::string& key : {std::string("../../etc/passwd"), point_key("a", 1, 1), b.presence_key, std::string()})
    CHECK(sees_peer(shared, a, "tap0x", {a.store_id, key}).error().code == ErrorCode::kStoreNotShared);
  // A restart writes a new file and deletes the old one.
  const StoreHello again = ok(announce_store(shared, "tap0", random));
  CHECK(again.store_id == a.store_id);
  CHECK(again.presence_key != a.presence_key);
  CHECK(ok(shared.list("cluster/seen/")).size() == 2);
  CHECK(sees_peer(shared, b, "tap0", a).error().code == ErrorCode::kStoreNotShared);
  shared.objects.at("cluster/store-id")[30] ^= 1;
  CHECK_FALSE(announce_store(shared, "tap0", random).has_value());
}
