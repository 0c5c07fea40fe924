// The epoch actor against an object store in memory that can be slow, broken, or used by others in between.
#include "actors/epochs.h"

#include <atomic>
#include <functional>
#include <mutex>
#include <set>
#include <thread>

#include <doctest/doctest.h>
#include <fmt/format.h>

#include "storage/object_key.h"
#include "tests/unit/actors/fake_actor.h"
#include "tests/unit/storage/memory_store.h"

namespace gradtap::actors {
namespace {

using nlohmann::json;
using schema::MemberState;

// One store for several actors and threads.
class SharedStore final : public storage::ObjectStore {
 public:
  std::atomic<bool> broken = false;
  std::atomic<int> answers_lost = 0;    // of creations that were done
  std::function<void()> before_create;  // set while nobody uses the store

  Status put(std::string_view key, const std::vector<ByteSpan>& parts) override {
    const std::lock_guard lock(mutex_);
    return memory_.put(key, parts);
  }
  Result<storage::Created> create(std::string_view key, ByteSpan bytes) override {
    if (before_create) std::exchange(before_create, nullptr)();
    const std::lock_guard lock(mutex_);
    if (broken) return gone(key);
    auto created = memory_.create(key, bytes);
    if (answers_lost > 0) {
      --answers_lost;
      return gone(key);
    }
    return created;
  }
  Result<std::vector<std::uint8_t>> get(std::string_view key, std::uint64_t bytes_max) const override {
    const std::lock_guard lock(mutex_);
    if (broken) return gone(key);
    return memory_.get(key, bytes_max);
  }
  Result<std::vector<std::uint8_t>> read(std::string_view key, std::uint64_t at, std::uint64_t count) const override {
    const std::lock_guard lock(mutex_);
    return memory_.read(key, at, count);
  }
  Result<std::uint64_t> length(std::string_view key) const override {
    const std::lock_guard lock(mutex_);
    return memory_.length(key);
  }
  Result<std::vector<std::string>> list(std::string_view prefix) const override {
    const std::lock_guard lock(mutex_);
    if (broken) return gone(prefix);
    return memory_.list(prefix);
  }
  Status remove(const std::vector<std::string>& keys) override {
    const std::lock_guard lock(mutex_);
    return memory_.remove(keys);
  }
  std::string describe() const override { return "shared memory"; }

 private:
  static std::unexpected<Error> gone(std::string_view key) {
    return fail(ErrorCode::kObjectStore, "the store is gone", std::string(key));
  }
  mutable std::mutex mutex_;
  storage::test::MemoryStore memory_;
};

ClusterConfig file_of(std::size_t members = 3) {
  ClusterConfig config;
  config.replicas = 2;
  for (std::size_t i = 0; i < members; ++i) {
    MemberSection member;
    member.name = fmt::format("tap{}", i);
    member.link = fmt::format("10.0.0.{}:7800", i);
    member.http = fmt::format("http://10.0.0.{}:7700", i);
    member.domain = fmt::format("rack-{}", i);
    config.members.push_back(member);
  }
  return config;
}

EpochPtr join(storage::ObjectStore& store, const std::string& node, const ClusterConfig& config = file_of()) {
  const ManualClock clock;
  auto joined = join_epoch(store, config, node, clock);
  if (!joined) FAIL(joined.error().text());
  return *joined;
}
storage::StoredEpoch newest(const storage::ObjectStore& store) {
  auto epoch = storage::newest_epoch(store);
  if (!epoch) FAIL(epoch.error().text());
  REQUIRE(epoch->has_value());
  return **epoch;
}
// The same members with a change, by another proposer.
void propose(storage::ObjectStore& store, const std::function<void(schema::EpochRecord&)>& change) {
  const storage::StoredEpoch now = newest(store);
  schema::EpochRecord record = now.record;
  ++record.number;
  record.previous = now.digest;
  record.proposer = "operator";
  change(record);
  const auto created = storage::create_epoch(store, record);
  REQUIRE(created);
  REQUIRE(*created);
}

// A node's epoch actor, with a coordinator that says what the test lets it say.
struct MemberNode {
  caf::actor_system& system;
  std::shared_ptr<ManualClock> clock = std::make_shared<ManualClock>();
  std::shared_ptr<EventRing> events = std::make_shared<EventRing>(100, *clock);
  std::shared_ptr<ClusterState> cluster;
  std::shared_ptr<std::mutex> mutex = std::make_shared<std::mutex>();
  std::shared_ptr<PlacementView> view = std::make_shared<PlacementView>();
  CoordinatorActor coordinator;
  EpochActor actor;
  test::Probe probe;

  MemberNode(caf::actor_system& used, const std::shared_ptr<SharedStore>& store, const std::string& name,
             std::uint64_t look_every_ms = 3'600'000)
      : system(used), probe(used) {
    const EpochPtr joined = join(*store, name);
    ClusterState by_name(file_of(), joined, 0);
    cluster = std::make_shared<ClusterState>(file_of(), joined, *by_name.index_of(name));
    for (MemberIndex member = 0; member < cluster->size(); ++member) {
      cluster->set_live(member, true);
      cluster->set_ready(member, true);
      cluster->set_tap(member, true);
    }
    EpochOptions options;
    options.objects = store;
    options.cluster = cluster;
    options.clock = clock;
    options.events = events;
    options.look_every_ms = look_every_ms;
    options.adopt = [state = cluster](const EpochPtr& epoch) { (void)state->set_epoch(epoch); };
    actor = spawn_epochs(system, std::move(options));
  }
  ~MemberNode() {
    probe.end(actor);
    if (coordinator) probe.end(coordinator);
  }
  void wire(CoordinatorActor with, JobPlanPtr plan = nullptr) {
    auto wiring = std::make_shared<Wiring>();
    wiring->coordinator = std::move(with);
    wiring->plan = std::move(plan);
    probe.self->send(actor, wire_atom_v, WiringPtr(wiring));
  }
  void with_coordinator() {
    coordinator = test::spawn_fake<CoordinatorActor>(system, [shown = view, lock = mutex](placement_atom) {
      const std::lock_guard held(*lock);
      return PlacementViewPtr(std::make_shared<const PlacementView>(*shown));
    });
    wire(coordinator);
  }
  // Shard by shard: who holds it in sync; everybody has said so.
  void shows(const std::vector<std::vector<MemberIndex>>& holders) {
    const std::lock_guard held(*mutex);
    *view = {};
    view->durable = view->published = 5;
    view->heard.assign(cluster->size(), true);
    for (const auto& list : holders) {
      ShardView shard;
      shard.shard = static_cast<ShardId>(view->shards.size());
      shard.state_bytes = 100;
      for (const MemberIndex member : list)
        shard.holders.push_back({member, HolderRole::kInSync, true, true, 6, 6, 0, {}});
      view->shards.push_back(shard);
    }
  }
  [[nodiscard]] HttpAnswer send(const json& body) { return probe.ask<HttpAnswer>(actor, nodes_atom_v, body.dump()); }
  [[nodiscard]] HttpAnswer add(int number) {
    return send({{"action", "add"},
                 {"name", fmt::format("more{}", number)},
                 {"link", fmt::format("10.0.1.{}:7800", number)},
                 {"http", fmt::format("http://10.0.1.{}:7700", number)},
                 {"domain", fmt::format("rack-m{}", number)}});
  }
  [[nodiscard]] HttpAnswer command(const char* action, const char* name, bool force = false, bool check = false) {
    return send({{"action", action}, {"name", name}, {"force", force}, {"check", check}});
  }
  [[nodiscard]] json status() { return probe.status(actor); }
  [[nodiscard]] std::size_t noted(const std::string& text) const {
    std::size_t count = 0;
    for (const Event& event : events->since(0)) count += event.text.find(text) != std::string::npos ? 1 : 0;
    return count;
  }
  void look() {
    probe.self->send(actor, epoch_atom_v, ~std::uint64_t{0});
    (void)status();
  }
};

ErrorCode code_of(const HttpAnswer& answer) {
  const json body = json::parse(answer.body, nullptr, false);
  REQUIRE(body.contains("error"));
  return static_cast<ErrorCode>(body["error"]["code"].get<unsigned>());
}

struct EpochsRig {
  caf::actor_system_config config;
  caf::actor_system system{config};
  std::shared_ptr<SharedStore> store = std::make_shared<SharedStore>();
};

}  // namespace

TEST_CASE("the first node makes epoch 1 of the cluster file, the others read it, whatever their file says") {
  SharedStore store;
  const EpochPtr first = join(store, "tap1");
  CHECK(first->record.number == 1);
  CHECK(first->record.proposer == "tap1");
  CHECK(first->record.members.size() == 3);
  CHECK(first->record.owners.empty());
  const EpochPtr second = join(store, "tap2", file_of(7));
  CHECK(second->digest == first->digest);
  CHECK(second->record == first->record);
}

TEST_CASE("who joins at the same moment joins the same epoch") {
  SharedStore store;
  std::vector<std::thread> threads;
  std::vector<EpochPtr> joined(8);
  for (std::size_t i = 0; i < joined.size(); ++i)
    threads.emplace_back([&, i] {
      ManualClock clock;
      clock.advance_ms(i);
      if (auto got = join_epoch(store, file_of(8), fmt::format("tap{}", i), clock)) joined[i] = *got;
    });
  for (std::thread& thread : threads) thread.join();
  for (const EpochPtr& each : joined) {
    REQUIRE(each);
    CHECK(each->digest == joined[0]->digest);
  }
  CHECK(store.list(storage::epochs_prefix())->size() == 1);
}

TEST_CASE("who is no member does not join, one that drains does, and a store that fails is no new cluster") {
  SharedStore store;
  const ManualClock clock;
  (void)join(store, "tap0");
  propose(store, [](schema::EpochRecord& record) {
    record.members[1].state = MemberState::kOut;
    record.members[2].state = MemberState::kDraining;
  });
  const auto out = join_epoch(store, file_of(), "tap1", clock);
  REQUIRE_FALSE(out);
  CHECK(out.error().code == ErrorCode::kNotAMember);
  CHECK(out.error().actual == "a member that left");
  const auto unknown = join_epoch(store, file_of(9), "tap8", clock);  // the file counts no more
  REQUIRE_FALSE(unknown);
  CHECK(unknown.error().code == ErrorCode::kNotAMember);
  CHECK(join(store, "tap2")->record.number == 2);
  store.broken = true;
  const auto broken = join_epoch(store, file_of(), "tap0", clock);
  REQUIRE_FALSE(broken);
  CHECK(broken.error().code == ErrorCode::kObjectStore);
  store.broken = false;
  CHECK(store.list(storage::epochs_prefix())->size() == 2);
}

TEST_CASE("a command makes an epoch, said again it makes none, and another node follows when it hears of it") {
  EpochsRig rig;
  MemberNode a(rig.system, rig.store, "tap0"), b(rig.system, rig.store, "tap1");
  (void)b.status();  // it has had its first look
  const HttpAnswer answer = a.add(1);
  CHECK(answer.status == 200);
  const json body = json::parse(answer.body);
  CHECK(body["epoch"] == 2);
  CHECK(body["changed"] == true);
  CHECK(a.cluster->epoch_number() == 2);
  CHECK(newest(*rig.store).record.proposer == "tap0");
  const json again = json::parse(a.add(1).body);
  CHECK(again["epoch"] == 2);
  CHECK(again["changed"] == false);
  CHECK(newest(*rig.store).record.number == 2);
  CHECK(b.cluster->epoch_number() == 1);
  b.probe.self->send(b.actor, epoch_atom_v, std::uint64_t{1});  // nothing new in that
  (void)b.status();
  CHECK(b.cluster->epoch_number() == 1);
  b.probe.self->send(b.actor, epoch_atom_v, std::uint64_t{2});
  (void)b.status();
  CHECK(b.cluster->epoch_number() == 2);
  CHECK(b.cluster->index_of("more1") == MemberIndex{3});
  CHECK(b.noted("an epoch is in force") == 1);
  CHECK(a.noted("a command for the members was carried out") == 1);
}

TEST_CASE("a check changes nothing") {
  EpochsRig rig;
  MemberNode a(rig.system, rig.store, "tap0");
  a.with_coordinator();
  a.shows({{0, 1}, {1, 2}});
  const json body = json::parse(a.command("drain", "tap1", false, true).body);
  CHECK(body["changed"] == true);
  CHECK(body["check"]["safe"] == true);
  CHECK(body["check"]["held_shards"] == 2);
  CHECK(newest(*rig.store).record.number == 1);
  CHECK(a.cluster->epoch_number() == 1);
}

TEST_CASE("a proposer that loses the race thinks again about what the winner made") {
  EpochsRig rig;
  MemberNode a(rig.system, rig.store, "tap0"), b(rig.system, rig.store, "tap1");
  (void)a.status();
  rig.store->before_create = [&] { CHECK(b.add(2).status == 200); };
  const json body = json::parse(a.add(1).body);
  CHECK(body["epoch"] == 3);
  CHECK(a.status()["races_lost"] == 1);
  CHECK(a.cluster->epoch_number() == 3);
  const schema::EpochRecord record = newest(*rig.store).record;
  CHECK(record.members.size() == 5);
  CHECK(record.members[3].name == "more2");
  CHECK(record.members[4].name == "more1");
  // The winner may have made the command needless, or impossible.
  rig.store->before_create = [&] { CHECK(b.add(3).status == 200); };
  CHECK(json::parse(a.add(3).body)["changed"] == false);
  rig.store->before_create = [&] { CHECK(b.command("drain", "tap2").status == 200); };
  CHECK(code_of(a.send({{"action", "retire"}, {"name", "tap2"}})) == ErrorCode::kMemberConflict);
}

TEST_CASE("many commands on two nodes at once: each is carried out, in one row of epochs") {
  EpochsRig rig;
  MemberNode a(rig.system, rig.store, "tap0", 5), b(rig.system, rig.store, "tap1", 5);
  constexpr int kEach = 10;
  std::atomic<int> failed = 0;
  const auto run = [&](MemberNode& node, int first) {
    for (int i = first; i < first + kEach; ++i) failed += node.add(i).status == 200 ? 0 : 1;
  };
  std::thread one([&] { run(a, 0); });
  std::thread two([&] { run(b, kEach); });
  one.join();
  two.join();
  CHECK(failed == 0);
  const schema::EpochRecord record = newest(*rig.store).record;
  CHECK(record.number == 1 + 2 * kEach);
  std::set<std::string> names;
  for (const schema::EpochMember& member : record.members) names.insert(member.name);
  CHECK(names.size() == 3 + 2 * kEach);
  a.look();
  b.look();
  CHECK(a.cluster->epoch()->digest == b.cluster->epoch()->digest);
}

TEST_CASE("a store that does not answer: members stay, the command says why, and all goes on when it is back") {
  EpochsRig rig;
  MemberNode a(rig.system, rig.store, "tap0");
  (void)a.status();
  rig.store->broken = true;
  for (int i = 0; i < 3; ++i) {
    const HttpAnswer answer = a.add(1);
    CHECK(answer.status == 503);
    CHECK(code_of(answer) == ErrorCode::kObjectStore);
  }
  json status = a.status();
  CHECK(status["failing"] == true);
  CHECK(status["failures"] >= 3);  // it looks by itself too
  CHECK(a.cluster->epoch_number() == 1);
  CHECK(a.noted("epochs cannot be read or made") == 1);  // said once
  CHECK(status["last_error"].get<std::string>().find("the store is gone") != std::string::npos);
  rig.store->broken = false;
  CHECK(a.add(1).status == 200);
  CHECK(a.status()["failing"] == false);
}

TEST_CASE("an epoch whose answer was lost is found when the command is repeated") {
  EpochsRig rig;
  MemberNode a(rig.system, rig.store, "tap0");
  (void)a.status();
  rig.store->answers_lost = 1;
  CHECK(a.add(1).status == 503);
  const json body = json::parse(a.add(1).body);
  CHECK(body["changed"] == false);
  CHECK(body["epoch"] == 2);
  CHECK(a.cluster->epoch_number() == 2);
}

TEST_CASE("an epoch that does not follow the one in force is not believed, and that is said") {
  EpochsRig rig;
  MemberNode a(rig.system, rig.store, "tap0");
  (void)a.status();
  propose(*rig.store, [](schema::EpochRecord& record) { std::swap(record.members[0], record.members[1]); });
  a.look();
  a.look();
  CHECK(a.cluster->epoch_number() == 1);
  CHECK(a.noted("an epoch is in force") == 0);
  CHECK(a.noted("epochs cannot be read or made") == 1);
  CHECK(a.status()["failing"] == true);
  CHECK(a.status()["last_error"].get<std::string>().find("does not follow") != std::string::npos);
}

TEST_CASE("a damaged newest epoch brings no older one back into force") {
  EpochsRig rig;
  MemberNode a(rig.system, rig.store, "tap0");
  REQUIRE(a.add(1).status == 200);
  REQUIRE(rig.store->remove({storage::epoch_key(2)}));
  REQUIRE(rig.store->put(storage::epoch_key(2), {}));
  CHECK(a.add(2).status == 409);
  a.look();
  CHECK(a.cluster->epoch_number() == 2);
  CHECK(a.status()["failing"] == true);
}

TEST_CASE("a member retires only when it is known, from itself, that it holds nothing") {
  EpochsRig rig;
  MemberNode a(rig.system, rig.store, "tap0");
  a.with_coordinator();
  REQUIRE(a.command("drain", "tap2").status == 200);
  const auto refused = [&](const char* why) {
    CAPTURE(why);
    const HttpAnswer answer = a.command("retire", "tap2");
    CHECK(answer.status == 409);
    CHECK(code_of(answer) == ErrorCode::kMemberUnsafe);
    CHECK(answer.body.find(why) != std::string::npos);
    CHECK(newest(*rig.store).record.members[2].state == MemberState::kDraining);
  };
  SUBCASE("it holds some") {
    a.shows({{0, 1}, {1, 0, 2}});
    a.view->shards[1].holders[2].assigned = false;
    a.view->shards[1].holders[2].waits_for = "tap0 copies the shard";
    refused("1 (tap0 copies the shard)");
  }
  SUBCASE("it has not said what it holds, since this node has started") {
    a.shows({{0, 1}, {1, 0}});
    a.view->heard[2] = false;
    refused("it is not known now which shards");
    a.view->heard.clear();
    refused("it is not known now which shards");
  }
  SUBCASE("others have not said what they hold") {
    a.shows({{0, 1}, {}});
    refused("no other live owner");
  }
  SUBCASE("the coordinator does not answer") {
    const auto silent =
        caf::actor_cast<CoordinatorActor>(rig.system.spawn([](caf::event_based_actor* self) -> caf::behavior {
          return {[self](placement_atom) { return self->make_response_promise<PlacementViewPtr>(); }};
        }));
    a.wire(silent);
    refused("it is not known now which shards");
    a.probe.end(silent);
  }
  SUBCASE("this node does not have the job yet") {
    propose(*rig.store, [](schema::EpochRecord& record) { record.owners = {{0, 1}, {1, 0}}; });
    a.wire({});
    refused("it is not known now which shards");
  }
  SUBCASE("it is the home still") {
    a.shows({{0, 1}, {1, 0}});
    for (const MemberIndex other : {0U, 1U}) a.cluster->set_ready(other, false);
    refused("still the home of the job");
  }
  a.wire(a.coordinator);
  for (const MemberIndex other : {0U, 1U}) a.cluster->set_ready(other, true);
  a.shows({{0, 1}, {1, 0}});
  CHECK(a.command("retire", "tap2").status == 200);
  CHECK(a.cluster->is_out(2));
  CHECK(json::parse(a.command("retire", "tap2").body)["changed"] == false);
}

TEST_CASE("a dead member that was drained retires when the others have everything") {
  EpochsRig rig;
  MemberNode a(rig.system, rig.store, "tap0");
  a.with_coordinator();
  REQUIRE(a.command("drain", "tap2").status == 200);
  a.cluster->set_live(2, false);
  a.shows({{0, 1}, {1, 0}});
  a.view->heard[2] = false;
  CHECK(a.command("retire", "tap2").status == 200);
}

TEST_CASE("a member is removed as it stands, unless only it has something") {
  EpochsRig rig;
  MemberNode a(rig.system, rig.store, "tap0");
  a.with_coordinator();
  a.shows({{0, 1}, {2}});
  HttpAnswer answer = a.command("remove", "tap2");
  CHECK(answer.status == 409);
  CHECK(code_of(answer) == ErrorCode::kMemberUnsafe);
  CHECK(answer.body.find("no other live owner has 1 of the shards in sync: 1") != std::string::npos);
  CHECK(newest(*rig.store).record.number == 1);
  SUBCASE("by force") {
    CHECK(a.command("remove", "tap2", true).status == 200);
  }
  SUBCASE("another one has it now") {
    a.shows({{0, 1}, {2, 1}});
    CHECK(a.command("remove", "tap2").status == 200);
  }
  CHECK(a.cluster->is_out(2));
  // Who cannot say where shards are does not say that nothing is lost.
  propose(*rig.store, [](schema::EpochRecord& record) { record.owners = {{0, 1}, {1, 0}}; });
  a.wire({});
  answer = a.command("remove", "tap1");
  CHECK(answer.status == 409);
  CHECK(answer.body.find("cannot say now where the shards are") != std::string::npos);
  const json check = json::parse(a.command("drain", "tap1", true, true).body);
  CHECK(check["check"]["safe"] == false);
}

TEST_CASE("hostile commands are answered, and a view with members that there are not does no harm") {
  EpochsRig rig;
  MemberNode a(rig.system, rig.store, "tap0");
  a.with_coordinator();
  a.shows({{0, 99}, {77}});
  for (const std::string& text : {std::string(), std::string("{"), std::string("[1]"), std::string(20'000, 'x'),
                                  std::string("{\"action\":\"drain\",\"name\":\"\xff\"}")}) {
    const HttpAnswer answer = a.probe.ask<HttpAnswer>(a.actor, nodes_atom_v, text);
    CHECK(answer.status == 422);
  }
  CHECK(code_of(a.command("drain", "nobody")) == ErrorCode::kMemberUnknown);
  CHECK(newest(*rig.store).record.number == 1);
}

}  // namespace gradtap::actors
