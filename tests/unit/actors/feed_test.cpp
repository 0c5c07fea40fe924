#include "actors/feed.h"

#include <doctest/doctest.h>

#include "actors/keeper.h"
#include "actors/side_channel.h"
#include "tests/unit/actors/fake_actor.h"
#include "tests/unit/actors/side_fixture.h"

namespace gradtap::actors {
namespace {

using storage::SideEntry;
using test::json;

// A store of its own with the job's first lineage, and a coordinator and a side channel that only listen.
struct FeedRig {
  test::StoredJob job{test::three_shards(test::sgd())};
  caf::actor_system_config config;
  caf::actor_system system{config};
  test::Probe coordinator{system}, side_channel{system};
  KeeperActor keeper;
  FeedActor feed;
  std::shared_ptr<test::Log<schema::LineageRecord>> launched = std::make_shared<test::Log<schema::LineageRecord>>();
  std::shared_ptr<test::Script<Launched>> launches = std::make_shared<test::Script<Launched>>();

  FeedRig() {
    KeeperOptions keeping;
    keeping.job = job_id("job");
    keeping.store = job.store;
    keeper = spawn_keeper(system, std::move(keeping));
    FeedOptions options;
    options.job_name = "job";
    options.store = job.store;
    options.keeper = keeper;
    options.launch = [launched = launched, launches = launches](const schema::LineageRecord& record) {
      launched->add(record);
      return launches->next({});
    };
    feed = spawn_feed(system, std::move(options));
  }
  ~FeedRig() {
    coordinator.end(feed);
    coordinator.end(keeper);
  }

  void wire(bool with_lineage = true) {
    auto wiring = std::make_shared<Wiring>();
    if (with_lineage) {
      wiring->plan = job.plan;
      wiring->coordinator = coordinator.as<CoordinatorActor>();
    }
    wiring->side_channel = side_channel.as<SideChannelActor>();
    coordinator.self->send(feed, wire_atom_v, WiringPtr(wiring));
  }
  [[nodiscard]] Outcome give(std::vector<SideEntry> entries) {
    auto batch = std::make_shared<SideEntries>();
    batch->entries = std::move(entries);
    return side_channel.ask<Outcome>(feed, side_atom_v, SideEntriesPtr(std::move(batch)));
  }
  [[nodiscard]] SideEntry message(StepNumber step, std::uint32_t rank, LineageId lineage = 1) const {
    JobPlan plan = *job.plan;
    plan.lineage = lineage;
    return {test::message_key(plan, step, rank), test::message_bytes(plan, job.groups, step, rank, {})};
  }
  [[nodiscard]] SideEntry layout(const LayoutPtr& layout) const {
    return {storage::side_key(storage::SideKind::kLayout, job.plan->job, 1) +
                std::string(layout->id().begin(), layout->id().end()),
            test::text_bytes(layout->canonical_json())};
  }
  [[nodiscard]] SideEntry session(std::uint32_t rank, std::uint64_t received, char id = 'b') const {
    Session session;
    session.id = std::string(32, id);
    session.run_nonce = std::string(32, 'a');
    session.rank = rank;
    session.lineage = 1;
    session.received_seq = received;
    return {session_key(job.plan->job, 1, rank), encode_session(session)};
  }
  [[nodiscard]] std::vector<std::uint8_t> stored(const std::string& key) const {
    auto bytes = job.store->get_side(key);
    return bytes ? *bytes : std::vector<std::uint8_t>();
  }
  [[nodiscard]] std::uint64_t count(const char* name) { return coordinator.status(feed)[name].get<std::uint64_t>(); }
};

}  // namespace

TEST_CASE("entries are stored, and what a coordinator needs is told to it") {
  FeedRig rig;
  rig.wire();
  const LayoutPtr layout = test::layout_of(*rig.job.plan, {{2}, {1, 0}});
  const SideEntry blob{test::blob_key(*rig.job.plan, 1, "blob"), test::text_bytes("blob")};
  const std::vector<SideEntry> entries = {rig.layout(layout), rig.message(1, 0), rig.message(1, 1), blob,
                                          rig.session(1, 5)};
  CHECK(rig.give(entries).ok);
  for (const SideEntry& entry : entries) CHECK(rig.stored(entry.key) == entry.bytes);
  CHECK(rig.coordinator.expect<LayoutPtr>(layout_atom_v)->id() == layout->id());
  const auto message = rig.coordinator.expect<StepMessagePtr>(step_atom_v);
  CHECK(message->step == 1);
  CHECK(rig.coordinator.silent<StepMessagePtr>(step_atom_v));  // rank 1's is for the recovery point alone
  const auto sessions = rig.side_channel.expect<SideEntriesPtr>(side_atom_v);
  REQUIRE(sessions->entries.size() == 1);
  CHECK(sessions->entries[0].key == entries[4].key);
  CHECK(rig.count("steps") == 1);
  CHECK(rig.count("layouts") == 1);
  CHECK(rig.count("batches") == 1);
}

TEST_CASE("a session that is further here is kept, and its side channel is not told of the older one") {
  FeedRig rig;
  rig.wire();
  CHECK(rig.give({rig.session(1, 50)}).ok);
  CHECK(rig.side_channel.expect<SideEntriesPtr>(side_atom_v)->entries.size() == 1);
  CHECK(rig.give({rig.session(1, 49)}).ok);
  CHECK(rig.stored(rig.session(1, 0).key) == rig.session(1, 50).bytes);
  CHECK(rig.side_channel.silent<SideEntriesPtr>(side_atom_v));
  CHECK(rig.count("older_sessions") == 1);
  for (const std::uint64_t received : {50U, 51U}) {  // the same again, and a newer one
    CHECK(rig.give({rig.session(1, received)}).ok);
    CHECK(rig.side_channel.expect<SideEntriesPtr>(side_atom_v)->entries.size() == 1);
    CHECK(rig.stored(rig.session(1, 0).key) == rig.session(1, received).bytes);
  }
  // Another session of the same rank counts anew; another rank is another matter.
  CHECK(rig.give({rig.session(1, 2, 'c'), rig.session(0, 1)}).ok);
  CHECK(rig.stored(rig.session(1, 0).key) == rig.session(1, 2, 'c').bytes);
  CHECK(rig.stored(rig.session(0, 0).key) == rig.session(0, 1).bytes);
  CHECK(rig.count("older_sessions") == 1);
}

TEST_CASE("entries of another job, and keys that are none, are neither stored nor told") {
  FeedRig rig;
  rig.wire();
  const SideEntry foreign{storage::side_key(storage::SideKind::kStepMessage, job_id("another"), 1, 1, 0),
                          rig.message(1, 0).bytes};
  const SideEntry none{"x", {1}};
  CHECK(rig.give({foreign, none, rig.message(2, 0)}).ok);
  CHECK(rig.stored(foreign.key).empty());
  CHECK(rig.stored("x").empty());
  CHECK(rig.coordinator.expect<StepMessagePtr>(step_atom_v)->step == 2);
  CHECK(rig.coordinator.silent<StepMessagePtr>(step_atom_v));
  CHECK(rig.count("foreign") == 2);
}

TEST_CASE("what does not parse is counted, and the rest goes on") {
  FeedRig rig;
  rig.wire();
  SideEntry broken = rig.message(1, 0);
  broken.bytes.resize(broken.bytes.size() / 2);
  SideEntry no_layout = rig.layout(test::layout_of(*rig.job.plan, {{2}, {1, 0}}));
  no_layout.bytes = test::text_bytes("{}");
  SideEntry no_record{storage::side_key(storage::SideKind::kLineage, rig.job.plan->job, 5), test::text_bytes("?")};
  CHECK(rig.give({broken, no_layout, no_record, rig.message(2, 0)}).ok);
  CHECK(rig.coordinator.expect<StepMessagePtr>(step_atom_v)->step == 2);
  CHECK(rig.count("malformed") == 3);
  CHECK(rig.launched->all().empty());
}

TEST_CASE("messages of a lineage that is not in force are stored and not told") {
  FeedRig rig;
  rig.wire();
  CHECK(rig.give({rig.message(1, 0, 2)}).ok);
  CHECK_FALSE(rig.stored(rig.message(1, 0, 2).key).empty());
  CHECK(rig.coordinator.silent<StepMessagePtr>(step_atom_v));
  CHECK(rig.count("steps") == 0);
}

TEST_CASE("a lineage whose baseline its home has is launched, and told what came before its record") {
  FeedRig rig;
  rig.wire(false);
  const LayoutPtr layout = test::layout_of(*rig.job.plan, {{2}, {1, 0}});
  CHECK(rig.give({rig.layout(layout), rig.message(2, 0), rig.message(1, 0)}).ok);
  schema::LineageRecord record = rig.job.record;
  record.recipe_id.clear();
  const std::string key = storage::side_key(storage::SideKind::kLineage, rig.job.plan->job, 1);
  CHECK(rig.give({{key, schema::encode(record)}}).ok);
  CHECK(rig.launched->all().empty());  // its probe has not ended
  CHECK(rig.coordinator.silent<LayoutPtr>(layout_atom_v));
  rig.launches->then({rig.job.plan, rig.coordinator.as<CoordinatorActor>()});
  CHECK(rig.give({{key, schema::encode(rig.job.record)}}).ok);
  REQUIRE(rig.launched->all().size() == 1);
  CHECK(rig.launched->all()[0] == rig.job.record);
  CHECK(rig.coordinator.expect<LayoutPtr>(layout_atom_v)->id() == layout->id());
  for (const StepNumber step : {1U, 2U}) CHECK(rig.coordinator.expect<StepMessagePtr>(step_atom_v)->step == step);
  // From here on its messages are told as they come.
  CHECK(rig.give({rig.message(3, 0)}).ok);
  CHECK(rig.coordinator.expect<StepMessagePtr>(step_atom_v)->step == 3);
  // The record again: the launch says that it is in force already, and nothing is told twice.
  CHECK(rig.give({{key, schema::encode(rig.job.record)}}).ok);
  CHECK(rig.launched->all().size() == 2);
  CHECK(rig.coordinator.silent<StepMessagePtr>(step_atom_v));
  CHECK(rig.give({rig.message(4, 0)}).ok);
  CHECK(rig.coordinator.expect<StepMessagePtr>(step_atom_v)->step == 4);
}

TEST_CASE("what the store did not take is not told") {
  FeedRig rig;
  rig.wire();
  const KeeperActor failing = test::spawn_fake<KeeperActor>(rig.system, [](side_atom, const SideEntriesPtr&) {
    return Outcome{false, {ErrorCode::kStoreFull, "no space", {}, {}, {}, {}}};
  });
  FeedOptions options;
  options.job_name = "job";
  options.store = rig.job.store;
  options.keeper = failing;
  options.launch = [](const schema::LineageRecord&) { return Launched{}; };
  const FeedActor feed = spawn_feed(rig.system, std::move(options));
  auto wiring = std::make_shared<Wiring>();
  wiring->plan = rig.job.plan;
  wiring->coordinator = rig.coordinator.as<CoordinatorActor>();
  rig.coordinator.self->send(feed, wire_atom_v, WiringPtr(wiring));
  auto batch = std::make_shared<SideEntries>();
  batch->entries = {rig.message(1, 0)};
  const auto outcome = rig.side_channel.ask<Outcome>(feed, side_atom_v, SideEntriesPtr(batch));
  CHECK_FALSE(outcome.ok);
  CHECK(outcome.error.code == ErrorCode::kStoreFull);
  CHECK(rig.coordinator.silent<StepMessagePtr>(step_atom_v));
  rig.coordinator.end(feed);
  rig.coordinator.end(failing);
}

}  // namespace gradtap::actors
