// Retention of points against a naive model, over random histories: publishes, restarts, damage, leases, orphans, runs
// that end in the middle.
#include "storage/point_retain.h"

#include <algorithm>
#include <map>
#include <set>
#include <string>
#include <utility>
#include <vector>

#include "tests/unit/storage/memory_store.h"
#include "tests/unit/storage/point_fixture.h"

using namespace gradtap;
using namespace gradtap::storage;
using namespace gradtap::storage::test;

namespace {

using PointName = std::pair<LineageId, StepNumber>;

// What the history knows by itself: who is whose parent, which point needs which keys, in which way a point was
// damaged.
struct Model {
  struct Point {
    std::set<std::string> needs;
    std::map<ShardId, StepNumber> base;
  };
  std::map<PointName, Point> points;                        // as published
  std::map<LineageId, PointName> parent;                    // (lineage, fork step); lineage 0: none
  std::set<std::string> foreign;                            // keys that retention must never touch
  std::map<std::string, std::vector<std::uint8_t>> stored;  // every key as it was first written

  static bool whole(const MemoryStore& store, const std::string& job, const PointName& name, const Point& point) {
    return store.objects.contains(point_key(job, name.first, name.second)) &&
           std::all_of(point.needs.begin(), point.needs.end(),
                       [&](const std::string& key) { return store.objects.contains(key); });
  }
  std::vector<StepNumber> valid(const MemoryStore& store, const std::string& job, LineageId lineage) const {
    std::vector<StepNumber> out;  // newest first
    for (auto at = points.rbegin(); at != points.rend(); ++at)
      if (at->first.first == lineage && whole(store, job, at->first, at->second)) out.push_back(at->first.second);
    return out;
  }
  // Live lineages, newest first, each with the highest step that a restore takes from it.
  std::vector<PointName> chain() const {
    std::vector<PointName> out;
    PointName next{parent.rbegin()->first, ~StepNumber{0}};
    while (next.first != 0) {
      out.push_back(next);
      next = parent.at(next.first);
    }
    return out;
  }
  PointName choice(const MemoryStore& store, const std::string& job) const {
    for (const auto& [lineage, up_to] : chain())
      for (const StepNumber step : valid(store, job, lineage))
        if (step <= up_to) return {lineage, step};
    return {0, 0};
  }
};

struct History {
  std::uint64_t seed;
  SeededRandom random{seed};
  MemoryStore store;
  ManualClock clock;
  PointMaker maker{store};
  Model model;
  PointRetainOptions options;
  std::unique_ptr<PointRetention> retention;
  std::vector<std::pair<Lease, PointName>> leases;
  std::map<LineageId, StepNumber> next_step;
  std::uint64_t points_gone = 0, objects_gone = 0, runs = 0;

  explicit History(std::uint64_t s) : seed(s) {
    maker.bytes = 4;
    maker.world = 1;
    options.points_kept = random.below(4);
    options.lease_timeout_ms = 1000;
    options.orphan_grace_ms = random.below(2) * 50;
    restart();
    start(0, 0);
    for (const char* key : {"jobs/gpt-2.small/notes.txt", "jobs/gpt-2.small/00000000000000000001/point/x",
                            "jobs/gpt-2.small/00000000000000000001/shard/00000/log/7-x",
                            "jobs/other/00000000000000000001/side/00000000000000000000-u",
                            "jobs/gpt-2.small2/00000000000000000001/side/00000000000000000000-u", "cluster/store-id"}) {
      store.objects[key] = {1};
      model.foreign.insert(key);
    }
  }
  void restart() { retention = std::make_unique<PointRetention>(store, clock, options); }
  void start(LineageId parent, StepNumber step) {
    const LineageId lineage = maker.start(parent, step);
    model.parent[lineage] = {parent, step};
    next_step[lineage] = step;
  }

  void publish(LineageId lineage) {
    const StepNumber step = ++next_step[lineage];
    std::vector<StepNumber> base(maker.shards);
    for (ShardId shard = 0; shard < maker.shards; ++shard) {
      // Bases move on every few steps, at another phase for each shard, never back.
      base[shard] = std::max<StepNumber>((step + shard) / 4 * 4, shard) - shard;
      if (const StepNumber fork = model.parent[lineage].second; base[shard] < fork) base[shard] = fork;
    }
    // Another publisher's uploads for this step, of which nothing is to come, or its record is: nobody can tell.
    if (random.below(4) == 0) {
      maker.record(lineage, step, base);
      const auto shard = static_cast<ShardId>(random.below(maker.shards));
      maker.object(full_key(maker.job, lineage, shard, base[shard], maker.uid()), {1});
      for (StepNumber at = base[shard] + 1; at <= step; ++at)
        maker.object(log_key(maker.job, lineage, shard, at, maker.uid()), {2});
    }
    const StoredPoint point = maker.publish(lineage, step, base);
    Model::Point& known = model.points[{lineage, step}];
    for (const PointObject& object : objects_of(point.record)) known.needs.insert(object.ref->key);
    for (const schema::ShardObjects& shard : point.record.shards) known.base[shard.shard] = shard.base_step;
  }

  void act() {
    const LineageId newest = model.parent.rbegin()->first;
    switch (random.below(12)) {
      case 0:
        if (model.parent.size() < 5) {
          const PointName from = model.choice(store, maker.job);
          if (from.first != 0) start(from.first, from.second);
        }
        break;
      case 1: {  // an object or a record of some point is lost
        auto at = model.points.begin();
        std::advance(at, static_cast<std::ptrdiff_t>(random.below(std::max<std::size_t>(model.points.size(), 1))));
        if (at == model.points.end() || random.below(2) == 0) break;
        auto key = at->second.needs.begin();
        std::advance(key, static_cast<std::ptrdiff_t>(random.below(at->second.needs.size())));
        // Objects shared by everything end the history: rarely.
        const auto parsed = parse_key(*key);
        if (parsed && (parsed->kind == KeyKind::kSide || random.below(8) == 0)) store.objects.erase(*key);
        break;
      }
      case 2: {
        const auto valid = model.valid(store, maker.job, newest);
        if (valid.empty()) break;
        const PointName name{newest, valid[random.below(valid.size())]};
        leases.emplace_back(ok(Lease::take(store, maker.job, name.first, name.second, "test", random)), name);
        break;
      }
      case 3:
        if (!leases.empty()) {
          require_ok(leases.back().first.release());
          leases.pop_back();
        }
        break;
      case 4:
        if (model.parent.size() > 1) publish(1 + static_cast<LineageId>(random.below(newest)));  // a zombie
        break;
      case 5:
        clock.advance_ms(random.below(200));
        break;
      default:
        publish(newest);
    }
    for (auto& [lease, name] : leases) require_ok(lease.renew());
  }

  // Objects at or above this step may belong to a point that is not created yet.
  StepNumber horizon(const ObjectKey& key, std::map<LineageId, StepNumber>& cut) const {
    if (key.kind == KeyKind::kSide) return cut[key.lineage];
    StepNumber lowest = ~StepNumber{0};
    for (const auto& [name, known] : model.points) {
      if (name.first != key.lineage || name.second < cut[name.first] ||
          !store.objects.contains(point_key(maker.job, name.first, name.second)))
        continue;
      for (const auto& [shard, base] : known.base)
        if (key.kind == KeyKind::kStep || shard == key.shard) lowest = std::min(lowest, base);
    }
    return lowest == ~StepNumber{0} ? 0 : lowest;
  }

  void retain() {
    const auto before = store.objects;
    const PointName chosen = model.choice(store, maker.job);
    std::map<PointName, Model::Point> valid_before;
    for (const auto& [name, point] : model.points)
      if (Model::whole(store, maker.job, name, point)) valid_before.emplace(name, point);
    store.removals_left = random.below(4) == 0 ? random.below(12) : ~std::uint64_t{0};
    const auto report = retention->run(maker.job);
    const bool ended = report.has_value();
    if (!ended) REQUIRE(report.error().code == ErrorCode::kObjectStore);
    store.removals_left = ~std::uint64_t{0};
    ++runs;
    CAPTURE(seed);
    CAPTURE(runs);

    // What must still be there, however the run ended.
    std::set<PointName> must;
    const std::uint64_t keep = std::max<std::uint64_t>(options.points_kept, 1);
    std::map<LineageId, StepNumber> cut;
    for (const auto& [lineage, up_to] : model.chain()) {
      std::vector<StepNumber> steps;
      for (const auto& [name, point] : valid_before)
        if (name.first == lineage) steps.insert(steps.begin(), name.second);
      for (std::size_t i = 0; i < steps.size() && i < keep; ++i) must.emplace(lineage, steps[i]);
      for (const StepNumber step : steps)
        if (step <= up_to) {
          must.emplace(lineage, step);
          break;
        }
      cut[lineage] = steps.size() >= keep ? steps[keep - 1] : 0;
    }
    for (const auto& [name, point] : valid_before)
      if (!cut.contains(name.first)) must.insert(name);  // not live: left alone
    for (const auto& [lease, name] : leases)
      if (valid_before.contains(name)) must.insert(name);
    for (const PointName& name : must) {
      CAPTURE(name.first);
      CAPTURE(name.second);
      REQUIRE(Model::whole(store, maker.job, name, valid_before.at(name)));
    }
    REQUIRE(model.choice(store, maker.job) == chosen);
    for (const std::string& key : model.foreign) REQUIRE(store.objects.contains(key));
    for (const auto& [key, content] : before) {
      const auto parsed = parse_key(key);
      if (store.objects.contains(key) || !parsed) {
        if (store.objects.contains(key)) REQUIRE(store.objects.at(key) == content);
        continue;
      }
      const bool point = parsed->kind == KeyKind::kPoint;
      (point ? points_gone : objects_gone) += 1;
      REQUIRE(cut.contains(parsed->lineage));
      REQUIRE(parsed->kind != KeyKind::kMeta);
      REQUIRE(parsed->kind != KeyKind::kLineage);
      if (point || parsed->kind == KeyKind::kLease) continue;
      REQUIRE_MESSAGE(parsed->step < horizon(*parsed, cut), key);
      // No record that is left needs it, damaged points included.
      for (const auto& [name, known] : model.points)
        if (store.objects.contains(point_key(maker.job, name.first, name.second)))
          REQUIRE_FALSE(known.needs.contains(key));
    }
    if (!ended) return;
    // What must be gone after a whole run: older points, and what lies below the bases of the window without need.
    for (const auto& [name, point] : model.points)
      if (cut.contains(name.first) && name.second < cut[name.first] && !must.contains(name) &&
          std::none_of(leases.begin(), leases.end(), [&, n = name](const auto& lease) { return lease.second == n; }))
        REQUIRE_FALSE(store.objects.contains(point_key(maker.job, name.first, name.second)));
    if (options.orphan_grace_ms > 0 || !report->blocked.empty()) return;
    for (const auto& [key, content] : store.objects) {
      const auto parsed = parse_key(key);
      if (!parsed || parsed->job != maker.job || !cut.contains(parsed->lineage)) continue;
      if (parsed->kind != KeyKind::kFull && parsed->kind != KeyKind::kLog && parsed->kind != KeyKind::kSide) continue;
      bool needed = false;
      for (const auto& [name, known] : model.points)
        needed = needed ||
                 (store.objects.contains(point_key(maker.job, name.first, name.second)) && known.needs.contains(key));
      if (!needed) REQUIRE_MESSAGE(parsed->step >= horizon(*parsed, cut), key);
    }
  }
};

}  // namespace

TEST_CASE("retention over random histories (I7)") {
  std::uint64_t points_gone = 0, objects_gone = 0, runs = 0;
  for (std::uint64_t seed = 1; seed <= 150; ++seed) {
    History history(seed);
    for (int i = 0; i < 70; ++i) {
      history.act();
      if (history.random.below(3) == 0) history.retain();
      if (history.random.below(25) == 0) history.restart();
    }
    history.retain();
    points_gone += history.points_gone;
    objects_gone += history.objects_gone;
    runs += history.runs;
  }
  // The histories do what they are for.
  CHECK(runs > 2000);
  CHECK(points_gone > 1500);
  CHECK(objects_gone > 5000);
}

TEST_CASE("steady publishing keeps a bounded number of objects, with the grace as well") {
  for (const std::uint64_t grace_ms : {0, 500}) {
    MemoryStore store;
    ManualClock clock;
    PointMaker maker{store};
    maker.start();
    PointRetainOptions options;
    options.points_kept = 3;
    options.orphan_grace_ms = grace_ms;
    PointRetention retention(store, clock, options);
    std::size_t most = 0;
    for (StepNumber step = 1; step <= 200; ++step) {
      maker.publish(1, step, {step / 8 * 8, step / 8 * 8});
      clock.advance_ms(100);
      const auto report = ok(retention.run(maker.job));
      CHECK(report.points_left <= 3);
      CHECK(report.blocked.empty());
      if (step > 50) most = std::max(most, store.objects.size());
      CHECK(ok(choose_point(ok(list_points(store, maker.job)))).point.step == step);
    }
    CHECK(most < 80);
  }
}

TEST_CASE("a lease on a point that is gone, and a record that cannot be read, spare the objects of the lineage") {
  MemoryStore store;
  ManualClock clock;
  SeededRandom random(4);
  PointMaker maker{store};
  maker.start();
  PointRetainOptions options;
  options.points_kept = 1;
  options.orphan_grace_ms = 0;
  options.lease_timeout_ms = 1000;
  for (StepNumber step = 1; step <= 8; ++step) maker.publish(1, step, {step / 4 * 4, step / 4 * 4});
  const std::string old_side = ok(read_point(store, maker.job, 1, 2)).record.side.key;
  const Lease lease = ok(Lease::take(store, maker.job, 1, 2, "test", random));
  store.objects.erase(point_key(maker.job, 1, 2));
  PointRetention retention(store, clock, options);
  auto report = ok(retention.run(maker.job));
  CHECK(report.points_deleted == 6);
  CHECK(report.objects_deleted == 0);
  REQUIRE(report.blocked.size() == 1);
  CHECK(report.blocked[0].where == point_key(maker.job, 1, 2));
  CHECK(store.objects.contains(old_side));
  clock.advance_ms(1000);
  store.broken[point_key(maker.job, 1, 8)] = ErrorCode::kObjectStore;
  report = ok(retention.run(maker.job));
  CHECK(report.leases_expired == 1);
  CHECK(report.objects_deleted == 0);
  CHECK(report.blocked.size() == 1);
  store.broken.clear();
  report = ok(retention.run(maker.job));
  CHECK(report.objects_deleted > 10);
  CHECK_FALSE(store.objects.contains(old_side));
  CHECK(store.objects.contains(point_key(maker.job, 1, 8)));
}

TEST_CASE("a store that cannot be listed is an error, and nothing is deleted (J13)") {
  MemoryStore store;
  ManualClock clock;
  PointMaker maker{store};
  maker.start();
  PointRetainOptions options;
  options.points_kept = 1;
  options.orphan_grace_ms = 0;
  for (StepNumber step = 1; step <= 4; ++step) maker.publish(1, step, {step, step});
  PointRetention retention(store, clock, options);
  const auto before = store.objects;
  store.unlistable = true;
  CHECK(retention.run(maker.job).error().code == ErrorCode::kObjectStore);
  CHECK(store.objects == before);
  CHECK(list_points(store, maker.job).error().code == ErrorCode::kObjectStore);
  store.unlistable = false;
  CHECK(ok(retention.run(maker.job)).points_deleted == 3);
  CHECK(ok(retention.run("nobody")).points_left == 0);
}
