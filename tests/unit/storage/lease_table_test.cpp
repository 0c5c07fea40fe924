#include "storage/lease_table.h"

#include <set>

#include "storage/point_retain.h"
#include "tests/unit/storage/memory_store.h"
#include "tests/unit/storage/point_fixture.h"

using namespace gradtap;
using namespace gradtap::storage;
using namespace gradtap::storage::test;

namespace {

struct Table {
  std::shared_ptr<MemoryStore> store = std::make_shared<MemoryStore>();
  std::shared_ptr<ManualClock> clock = std::make_shared<ManualClock>();
  PointMaker maker{*store};
  LeaseTable table;

  explicit Table(std::uint64_t leases_max = 64, std::uint64_t timeout_ms = 10'000)
      : table(store, clock, std::make_shared<SeededRandom>(5), {maker.job, leases_max, timeout_ms}) {
    maker.start();
    for (StepNumber step = 1; step <= 3; ++step) ok(create_point(*store, maker.record(1, step, {step, step})));
  }
  [[nodiscard]] std::vector<std::string> leases() const { return ok(store->list(leases_prefix(maker.job, 1))); }
};

}  // namespace

TEST_CASE("a lease through the table: an object in the store, renewed under a new counter, gone when released") {
  Table t;
  CHECK(t.leases().empty());
  const std::string id = ok(t.table.take(1, 2, "rank 0 of a job"));
  CHECK(id.size() == 32);
  REQUIRE(t.leases().size() == 1);
  const std::string first = t.leases()[0];
  CHECK(first.find(id) == std::string::npos);  // who reads the store does not learn the id
  CHECK(first.ends_with("-00000000000000000000"));
  require_ok(t.table.renew(1, 2, id));
  REQUIRE(t.leases().size() == 1);
  CHECK(t.leases()[0] == first.substr(0, first.size() - 1) + "1");
  // Of another point, or another id: nothing happens to this one.
  CHECK(t.table.renew(1, 3, id).error().code == ErrorCode::kObjectMissing);
  CHECK(t.table.release(1, 3, id).error().code == ErrorCode::kObjectMissing);
  CHECK(t.table.release(1, 2, std::string(32, '0')).error().code == ErrorCode::kObjectMissing);
  CHECK(t.leases().size() == 1);
  require_ok(t.table.release(1, 2, id));
  CHECK(t.leases().empty());
  CHECK(t.table.release(1, 2, id).error().code == ErrorCode::kObjectMissing);
  CHECK(t.table.renew(1, 2, id).error().code == ErrorCode::kObjectMissing);
  CHECK(t.table.counters().taken == 1);
  CHECK(t.table.counters().held == 0);
}

TEST_CASE("no more leases than the bound, each with an id of its own; a released one makes room") {
  Table t(4);
  std::set<std::string> ids;
  for (int i = 0; i < 4; ++i) ids.insert(ok(t.table.take(1, 1, "x")));
  CHECK(ids.size() == 4);
  CHECK(t.table.take(1, 1, "x").error().code == ErrorCode::kLimitReached);
  CHECK(t.table.counters().refused == 1);
  CHECK(t.leases().size() == 4);
  require_ok(t.table.release(1, 1, *ids.begin()));
  CHECK(t.table.take(1, 1, "x").has_value());
  CHECK(t.table.take(1, 1, "x").error().code == ErrorCode::kLimitReached);
  CHECK(t.table.counters().held == 4);
}

TEST_CASE("an id that is not renewed in time is released by the table; one that is renewed lives on") {
  Table t(2);
  const std::string kept = ok(t.table.take(1, 1, "kept"));
  const std::string lost = ok(t.table.take(1, 2, "lost"));
  t.clock->advance_ms(9'999);
  require_ok(t.table.renew(1, 1, kept));
  CHECK(t.leases().size() == 2);
  t.clock->advance_ms(1);
  CHECK(t.table.renew(1, 2, lost).error().code == ErrorCode::kObjectMissing);
  REQUIRE(t.leases().size() == 1);
  CHECK(t.leases()[0].find("lease/00000000000000000001-") != std::string::npos);
  CHECK(t.table.counters().expired == 1);
  t.clock->advance_ms(9'998);
  require_ok(t.table.renew(1, 1, kept));
  // Both places are free again once both have run out: taking is what cleans up.
  t.clock->advance_ms(10'000);
  CHECK(t.table.take(1, 3, "new").has_value());
  CHECK(t.table.counters().expired == 2);
  CHECK(t.leases().size() == 1);
}

TEST_CASE("a point that is gone, or a store that fails: no lease stays, and the place is free") {
  Table t(1);
  CHECK(t.table.take(1, 9, "x").error().code == ErrorCode::kPointNone);
  CHECK(t.table.take(7, 1, "x").error().code == ErrorCode::kPointNone);
  t.store->broken[point_key(t.maker.job, 1, 2)] = ErrorCode::kObjectStore;
  CHECK(t.table.take(1, 2, "x").error().code == ErrorCode::kObjectStore);
  for (const auto& [key, bytes] : t.store->objects) CHECK(key.find("/lease/") == std::string::npos);
  CHECK(t.table.take(1, 1, "x").has_value());
}

TEST_CASE("retention spares the point that the table holds, whatever it keeps otherwise (I9)") {
  Table t;
  PointRetainOptions options;
  options.points_kept = 1;
  options.orphan_grace_ms = 0;
  PointRetention retention(*t.store, *t.clock, options);
  const std::string id = ok(t.table.take(1, 1, "x"));
  CHECK(ok(retention.run(t.maker.job)).points_deleted == 1);  // step 2
  CHECK(t.store->objects.contains(point_key(t.maker.job, 1, 1)));
  CHECK_FALSE(t.store->objects.contains(point_key(t.maker.job, 1, 2)));
  require_ok(t.table.release(1, 1, id));
  CHECK(ok(retention.run(t.maker.job)).points_deleted == 1);
  CHECK_FALSE(t.store->objects.contains(point_key(t.maker.job, 1, 1)));
  CHECK(t.store->objects.contains(point_key(t.maker.job, 1, 3)));
}

TEST_CASE("how often to renew: every 30 s, more often where the time-out is short") {
  for (const auto& [timeout_ms, renew_s] : std::vector<std::pair<std::uint64_t, std::uint64_t>>{
           {600'000, 30}, {120'000, 30}, {60'000, 15}, {1'000, 1}, {86'400'000, 30}})
    CHECK(Table(1, timeout_ms).table.renew_s() == renew_s);
}
