// One node that publishes into a directory, with a coordinator that says what the test wants it to say.
#include "actors/publisher.h"

#include <atomic>
#include <mutex>
#include <thread>

#include <doctest/doctest.h>

#include "actors/upload_codec.h"
#include "storage/directory_store.h"
#include "storage/lineage_registry.h"
#include "storage/object_key.h"
#include "storage/point_record.h"
#include "tests/unit/actors/fake_actor.h"
#include "tests/unit/actors/side_fixture.h"

namespace gradtap::actors {
namespace {

using namespace std::chrono_literals;
using test::json;

class SharedClock final : public Clock {
 public:
  [[nodiscard]] std::uint64_t monotonic_ns() const override { return now_ns_; }
  [[nodiscard]] std::uint64_t wall_ms() const override { return 1'700'000'000'000; }
  void advance_ms(std::uint64_t ms) { now_ns_ += ms * 1'000'000; }

 private:
  std::atomic<std::uint64_t> now_ns_{1};
};

// What the fake coordinator says and heard.
struct Told {
  std::mutex mutex;
  JobPlanPtr plan;
  std::vector<std::map<StepNumber, Sha256>> digests;  // by shard
  StepNumber durable = 0;
  bool diverged = false;
  std::uint64_t asked = 0;
  StepNumber published = 0;
  std::vector<Gap> gaps;

  PublishViewPtr view(StepNumber previous, std::uint64_t interval) {
    const std::lock_guard lock(mutex);
    ++asked;
    auto view = std::make_shared<PublishView>();
    view->plan = plan;
    view->training = view->verified = view->durable = durable;
    view->diverged = diverged;
    StepNumber due = previous + 1;
    while (due % interval != 0) ++due;
    if (due > durable) return view;
    view->due = due;
    for (const auto& of_shard : digests) {
      view->digests.push_back(of_shard.at(due));
      view->producers.push_back({0});
    }
    return view;
  }
};

struct PublisherRig {
  test::StoredJob job{test::three_shards(test::sgd())};  // two ranks
  test::SideWriter side{job};
  storage::test::TempDir points{true};
  storage::SystemFileOps files;
  std::unique_ptr<storage::FaultyFileOps> faulty;
  std::shared_ptr<storage::DirectoryStore> objects;   // the publisher's
  std::shared_ptr<storage::DirectoryStore> observer;  // the test's, without faults
  std::shared_ptr<SharedClock> clock = std::make_shared<SharedClock>();
  std::shared_ptr<Told> told = std::make_shared<Told>();
  std::shared_ptr<ClusterState> cluster;
  caf::actor_system_config config;
  caf::actor_system system{config};
  test::Probe probe{system};
  CoordinatorActor coordinator;
  PublisherActor publisher;
  PublisherOptions options;

  explicit PublisherRig(const std::string& faults = "", json body = test::three_shards(test::sgd()))
      : job(std::move(body)) {
    observer = open("test", nullptr);
    storage::LineageRequest request;
    request.job_name = "job";
    request.run_nonce = std::string(32, 'a');
    request.node = "tap0";
    REQUIRE(storage::claim_lineage(*observer, request));
    if (!faults.empty()) {
      auto parsed = storage::parse_faults(faults);
      REQUIRE(parsed);
      faulty = std::make_unique<storage::FaultyFileOps>(files, std::move(*parsed));
    }
    objects = open("tap0", faulty.get());
    ClusterConfig alone;
    alone.replicas = 1;
    alone.members.resize(1);
    alone.members[0].name = "tap0";
    cluster = std::make_shared<ClusterState>(alone, 0);
    cluster->set_ready(0, true);
    told->plan = job.plan;
    told->digests = job.digests;
    coordinator = test::spawn_fake<CoordinatorActor>(
        system,
        [told = told](publish_atom, std::uint64_t previous, std::uint64_t interval) {
          return told->view(previous, interval);
        },
        [told = told](publish_atom, std::uint64_t step, const GapsPtr& gaps) {
          const std::lock_guard lock(told->mutex);
          told->published = step;
          told->gaps = *gaps;
        });
    for (ShardId id = 0; id < 3; ++id) job.base(id);
    options.job_name = "job";
    options.objects = objects;
    options.store = job.store;
    options.cluster = cluster;
    options.clock = clock;
    options.random = std::make_shared<SeededRandom>(5);
    options.events = std::make_shared<EventRing>(100, *clock);
  }
  ~PublisherRig() {
    if (publisher) end();
    probe.end(coordinator);
  }
  std::shared_ptr<storage::DirectoryStore> open(const std::string& writer, storage::FileOps* ops) {
    storage::DirectoryStoreOptions directory;
    directory.path = points.path;
    directory.writer = writer;
    directory.files = ops;
    auto opened = storage::DirectoryStore::open(directory);
    if (!opened) FAIL(opened.error().text());
    return std::move(*opened);
  }
  void start() {
    publisher = spawn_publisher(system, options);
    auto wiring = std::make_shared<Wiring>();
    wiring->coordinator = coordinator;
    wiring->plan = job.plan;
    probe.self->send(publisher, wire_atom_v, WiringPtr(wiring));
  }
  void end() {
    probe.end(publisher);
    probe.self->wait_for(caf::actor_cast<caf::actor>(publisher));
    publisher = PublisherActor();
  }
  // A step of every shard; `messages`: of how many ranks.
  void step(std::uint32_t messages = 2, const json& more = {}, bool full = false) {
    const StepNumber next = job.shards[0]->version() + 1;
    for (ShardId id = 0; id < 3; ++id) job.step(id, true, full);
    for (std::uint32_t rank = 0; rank < messages; ++rank) message(next, rank, rank == 1 ? more : json());
    const std::lock_guard lock(told->mutex);
    told->digests = job.digests;
  }
  void message(StepNumber step, std::uint32_t rank, const json& more = {}) const {
    json all = {
        {"blobs",
         {{"data", {{"digest", to_hex(sha256(std::string_view("foobar")))}, {"bytes", 6}, {"inline", "Zm9vYmFy"}}}}}};
    if (more.is_object()) all.update(more);
    side.message(step, rank, all);
  }
  void durable(StepNumber step) {
    const std::lock_guard lock(told->mutex);
    told->durable = step;
  }
  // Until it is so: the publisher looks by itself now and then; this only makes it look sooner.
  template <class F>
  [[nodiscard]] bool until(F so) {
    for (int i = 0; i < 1000; ++i) {
      if (so()) return true;
      probe.self->send(publisher, tick_atom_v);
      (void)probe.status(publisher);
      std::this_thread::sleep_for(5ms);
    }
    return false;
  }
  [[nodiscard]] bool published(StepNumber step) {
    return until([&] {
      const std::lock_guard lock(told->mutex);
      return told->published == step;
    });
  }
  [[nodiscard]] bool says(GapReason reason) {
    return until([&] {
      const std::lock_guard lock(told->mutex);
      return std::any_of(told->gaps.begin(), told->gaps.end(), [&](const Gap& gap) { return gap.reason == reason; });
    });
  }
  [[nodiscard]] bool says_nothing() {
    return until([&] {
      const std::lock_guard lock(told->mutex);
      return told->gaps.empty();
    });
  }
  [[nodiscard]] StepNumber told_step() const {
    const std::lock_guard lock(told->mutex);
    return told->published;
  }
  [[nodiscard]] std::uint64_t asked() const {
    const std::lock_guard lock(told->mutex);
    return told->asked;
  }
  [[nodiscard]] Gap gap() const {
    const std::lock_guard lock(told->mutex);
    REQUIRE(told->gaps.size() == 1);
    return told->gaps[0];
  }
  // It has looked since, more than once.
  [[nodiscard]] bool has_looked() {
    std::uint64_t before = 0;
    {
      const std::lock_guard lock(told->mutex);
      before = told->asked;
    }
    return until([&] {
      const std::lock_guard lock(told->mutex);
      return told->asked >= before + 2;
    });
  }
  [[nodiscard]] std::vector<StepNumber> steps() const {
    const auto keys = observer->list(storage::points_prefix("job", 1));
    REQUIRE(keys);
    std::vector<StepNumber> steps;
    for (const std::string& key : *keys)
      if (const auto parsed = storage::parse_key(key)) steps.push_back(parsed->step);
    return steps;
  }
  [[nodiscard]] storage::StoredPoint point(StepNumber step) const {
    auto point = storage::read_point(*observer, "job", 1, step);
    if (!point) FAIL(point.error().text());
    return std::move(*point);
  }
  // Everything that a point names is there.
  void check_objects(StepNumber step) const {
    const storage::StoredPoint stored = point(step);
    const auto objects_named = storage::objects_of(stored.record);
    CHECK(objects_named.size() >= 3 + 2);  // bases, side state, lineage record
    for (const storage::PointObject& object : objects_named)
      CHECK(storage::check_object(*observer, *object.ref).has_value());
  }
  [[nodiscard]] std::uint64_t count(const char* name) { return probe.status(publisher)[name].get<std::uint64_t>(); }
};

using Steps = std::vector<StepNumber>;

}  // namespace

TEST_CASE("every step that is due becomes a point, in order, with everything that a restore needs") {
  for (const std::uint64_t interval : {1U, 2U}) {
    CAPTURE(interval);
    PublisherRig rig;
    rig.options.interval_steps = interval;
    rig.start();
    for (int i = 0; i < 6; ++i) rig.step();
    rig.durable(6);
    CHECK(rig.published(6));
    CHECK(rig.says_nothing());
    const Steps expected = interval == 1 ? Steps{1, 2, 3, 4, 5, 6} : Steps{2, 4, 6};
    CHECK(rig.steps() == expected);
    CHECK(rig.count("points") == expected.size());
    StepNumber previous = 0;
    Sha256 previous_digest{};
    for (const StepNumber step : expected) {
      CAPTURE(step);
      const storage::StoredPoint point = rig.point(step);
      const auto& record = point.record;
      CHECK(record.canonical.step == step);
      CHECK(record.canonical.lineage == 1);
      CHECK(record.canonical.world == 2);
      CHECK(record.canonical.optimizer_class == "SGD");
      std::vector<Sha256> digests;
      for (ShardId id = 0; id < 3; ++id) {
        digests.push_back(rig.job.digests[id].at(step));
        CHECK(record.canonical.shards[id].digest == digests.back());
      }
      CHECK(record.canonical.state_root == test::sha_of_all(digests));
      CHECK(record.previous_step == previous);
      CHECK(record.previous_record == previous_digest);
      CHECK(record.publisher == "tap0");
      rig.check_objects(step);
      for (const schema::ShardObjects& shard : record.shards) {
        REQUIRE_FALSE(shard.logs.empty());
        CHECK(shard.logs.back().step == step);
        // The log object is the gradient, byte for byte.
        const auto log = storage::read_object(*rig.observer, shard.logs.back().object, std::uint64_t{1} << 30);
        REQUIRE(log);
        const auto gradient = test::shard_gradient(*rig.job.plan, shard.shard, step);
        REQUIRE(log->payload().size() == gradient.size() * 4);
        CHECK(std::memcmp(log->payload().data(), gradient.data(), gradient.size() * 4) == 0);
      }
      const auto stored = storage::read_object(*rig.observer, record.side, std::uint64_t{1} << 30);
      REQUIRE(stored);
      const auto state = schema::decode_side_state(stored->payload());
      REQUIRE(state);
      REQUIRE(state->ranks.size() == 2);
      for (const schema::SideRank& rank : state->ranks) {
        CHECK(json::parse(rank.message.begin(), rank.message.end())["step"] == step);
        REQUIRE(rank.blobs.size() == 1);
        CHECK(rank.blobs[0].bytes == test::text_bytes("foobar"));
      }
      previous = step;
      previous_digest = point.digest;
    }
  }
}

TEST_CASE("objects of the point before are taken over, not written again") {
  PublisherRig rig;
  rig.start();
  for (StepNumber step = 1; step <= 3; ++step) rig.step();
  rig.durable(3);
  CHECK(rig.published(3));
  const auto first = rig.point(1).record;
  const auto third = rig.point(3).record;
  CHECK(third.meta == first.meta);
  for (ShardId id = 0; id < 3; ++id) {
    CHECK(third.shards[id].base == first.shards[id].base);
    CHECK(third.shards[id].base_step == 0);
    REQUIRE(third.shards[id].logs.size() == 3);
    CHECK(third.shards[id].logs[0] == first.shards[id].logs[0]);
  }
  CHECK(third.steps[0] == first.steps[0]);
}

TEST_CASE("a shard's base follows its newest full version, and the logs before it are not carried on") {
  PublisherRig rig;
  rig.start();
  for (StepNumber step = 1; step <= 3; ++step) rig.step();
  rig.durable(3);
  CHECK(rig.published(3));
  rig.step(2, {}, true);
  rig.step();
  rig.durable(5);
  CHECK(rig.published(5));
  CHECK(rig.point(3).record.shards[0].base_step == 0);
  const auto fifth = rig.point(5).record;
  for (ShardId id = 0; id < 3; ++id) {
    CHECK(fifth.shards[id].base_step == 4);
    REQUIRE(fifth.shards[id].logs.size() == 1);
    CHECK(fifth.shards[id].logs[0].step == 5);
  }
  CHECK(fifth.steps.size() == 1);
  rig.check_objects(4);
  rig.check_objects(5);
}

TEST_CASE("a step waits for the side state of every rank, and is published when it is there (I14)") {
  PublisherRig rig;
  rig.start();
  rig.step(1);
  rig.durable(1);
  CHECK(rig.says(GapReason::kSideStateMissing));
  CHECK(rig.gap().since_step == 1);
  CHECK(rig.gap().evidence.find("step 1 rank 1") != std::string::npos);
  CHECK(rig.has_looked());
  CHECK(rig.steps().empty());
  rig.message(1, 1);
  CHECK(rig.published(1));
  CHECK(rig.says_nothing());
  CHECK(rig.steps() == Steps{1});
  CHECK(rig.count("steps_given_up") == 0);
}

TEST_CASE("a step whose side state never comes whole is left behind when others have long been durable") {
  PublisherRig rig;
  rig.start();
  rig.step(2, {{"blobs_missing", {"data"}}});
  for (int i = 0; i < 4; ++i) rig.step();
  rig.durable(5);
  CHECK(rig.says(GapReason::kSideStateMissing));
  CHECK(rig.has_looked());
  CHECK(rig.steps().empty());  // four steps later it might still come
  rig.step();
  rig.durable(6);
  CHECK(rig.published(6));
  CHECK(rig.says_nothing());
  CHECK(rig.steps() == Steps{2, 3, 4, 5, 6});
  CHECK(rig.count("steps_given_up") == 1);
}

TEST_CASE("only the home publishes, and what it published is gone on from by the next life of the node") {
  PublisherRig rig;
  rig.cluster->set_ready(0, false);
  rig.start();
  rig.step();
  rig.durable(1);
  for (int i = 0; i < 5; ++i) {
    rig.probe.self->send(rig.publisher, tick_atom_v);
    CHECK(rig.count("points") == 0);
  }
  CHECK(rig.asked() == 0);
  rig.cluster->set_ready(0, true);
  CHECK(rig.published(1));
  rig.end();
  const Sha256 first = rig.point(1).digest;
  rig.step();
  rig.durable(2);
  rig.start();
  CHECK(rig.published(2));
  CHECK(rig.count("points") == 1);
  const auto second = rig.point(2).record;
  CHECK(second.previous_step == 1);
  CHECK(second.previous_record == first);
  CHECK(second.shards[1].base == rig.point(1).record.shards[1].base);
}

TEST_CASE("a full object store is said, tried again after a pause, and recovered from without a restart (I13)") {
  PublisherRig rig("write:2-4:ENOSPC");
  rig.start();
  rig.step();
  rig.durable(1);
  CHECK(rig.says(GapReason::kObjectStoreError));
  CHECK(rig.gap().since_step == 1);
  CHECK(rig.gap().evidence.find("STORE_FULL") != std::string::npos);
  CHECK(rig.steps().empty());
  // Not before its time.
  const std::uint64_t failures = rig.count("failures");
  for (int i = 0; i < 10; ++i) {
    rig.probe.self->send(rig.publisher, tick_atom_v);
    CHECK(rig.count("failures") == failures);
  }
  CHECK(rig.count("retry_ms") > 0);
  CHECK(rig.until([&] {
    rig.clock->advance_ms(1000);
    const std::lock_guard lock(rig.told->mutex);
    return rig.told->published == 1;
  }));
  CHECK(rig.says_nothing());
  CHECK(rig.count("failures") == 3);
  CHECK(rig.count("retry_ms") == 0);
  CHECK(rig.steps() == Steps{1});
  rig.check_objects(1);
}

TEST_CASE("a store that cannot be reached is an error of it, and the last point stays") {
  PublisherRig rig("link:20+:EIO");
  rig.start();
  rig.step();
  rig.durable(1);
  CHECK(rig.published(1));
  for (int i = 0; i < 5; ++i) rig.step();
  rig.durable(6);
  CHECK(rig.says(GapReason::kObjectStoreError));
  // Ten names for the first point, six for the second; the twentieth is one of the third.
  const StepNumber reached = rig.told_step();
  CHECK(reached == 2);
  for (int i = 0; i < 20; ++i) {
    rig.clock->advance_ms(6000);
    rig.probe.self->send(rig.publisher, tick_atom_v);
    (void)rig.probe.status(rig.publisher);
  }
  CHECK(rig.told_step() == reached);
  CHECK(rig.point(reached).record.canonical.step == reached);
  CHECK(rig.count("failures") > 1);
}

TEST_CASE("a record that says something else about the same step ends publishing of the lineage") {
  schema::PointRecord planted;
  {
    PublisherRig other;  // the same job, the same steps
    other.start();
    other.step();
    other.durable(1);
    REQUIRE(other.published(1));
    planted = other.point(1).record;
  }
  PublisherRig rig;
  rig.start();
  rig.step();
  CHECK(rig.has_looked());  // it has listed the store: there was nothing
  SUBCASE("another state") {
    planted.canonical.qualified_by = "somebody";
    const auto bytes = schema::encode(planted);
    REQUIRE(bytes);
    REQUIRE(rig.observer->create(storage::point_key("job", 1, 1), *bytes) == storage::Created::kCreated);
    rig.durable(1);
    CHECK(rig.says(GapReason::kPublishConflict));
    CHECK(rig.gap().since_step == 1);
    rig.step();
    rig.durable(2);
    for (int i = 0; i < 20; ++i) {
      rig.clock->advance_ms(6000);
      rig.probe.self->send(rig.publisher, tick_atom_v);
      (void)rig.probe.status(rig.publisher);
    }
    CHECK(rig.steps() == Steps{1});
    CHECK(rig.point(1).record == planted);
    CHECK(rig.says(GapReason::kPublishConflict));
    CHECK(rig.count("failures") == 1);  // it is not tried again
    CHECK(rig.count("points") == 0);
  }
  SUBCASE("the same state, by a twin") {
    const auto bytes = schema::encode(planted);
    REQUIRE(bytes);
    REQUIRE(rig.observer->create(storage::point_key("job", 1, 1), *bytes) == storage::Created::kCreated);
    rig.durable(1);
    CHECK(rig.published(1));
    CHECK(rig.says_nothing());
    CHECK(rig.point(1).record == planted);
  }
}

TEST_CASE("the newest points are kept, older ones go") {
  PublisherRig rig;
  rig.options.points_kept = 2;
  rig.start();
  for (StepNumber step = 1; step <= 5; ++step) {
    rig.clock->advance_ms(4000);  // retention is due again
    rig.step();
    rig.durable(step);
    CHECK(rig.published(step));
  }
  CHECK(rig.until([&] { return rig.steps() == Steps{4, 5}; }));
  CHECK(rig.count("points_deleted") == 3);
  for (const StepNumber step : {4U, 5U}) rig.check_objects(step);
}

TEST_CASE("nothing is published of a job that diverged, or that has state nobody knows") {
  SUBCASE("diverged") {
    PublisherRig rig;
    rig.told->diverged = true;
    rig.start();
    rig.step();
    rig.durable(1);
    CHECK(rig.has_looked());
    CHECK(rig.steps().empty());
  }
  SUBCASE("unknown state") {
    json body = test::three_shards(test::sgd());
    body["inventory"] = {{{"name", "loader.queue"}, {"class", "unknown"}, {"type", "X"}}};
    PublisherRig rig("", body);
    rig.start();
    rig.step();
    rig.durable(1);
    for (int i = 0; i < 5; ++i) {
      rig.probe.self->send(rig.publisher, tick_atom_v);
      CHECK(rig.count("points") == 0);
    }
    CHECK(rig.steps().empty());
    CHECK(rig.asked() == 0);
  }
}

TEST_CASE("a node uploads its part when the home asks, and answers with an error otherwise") {
  PublisherRig rig;
  rig.cluster->set_ready(0, false);  // another node is the home
  rig.start();
  for (int i = 0; i < 2; ++i) rig.step();
  const auto ask = [&](const std::string& text) {
    return decode_uploaded(rig.probe.ask<HttpAnswer>(rig.publisher, upload_atom_v, text).body);
  };
  UploadRequest request;
  request.lineage = 1;
  request.step = 2;
  request.shards = {0, 2};
  auto uploaded = ask(encode_upload(request));
  REQUIRE_MESSAGE(uploaded, uploaded.error().text());
  REQUIRE(uploaded->size() == 2);
  CHECK((*uploaded)[1].shard == 2);
  CHECK((*uploaded)[1].whole);
  CHECK((*uploaded)[1].base_step == 0);
  REQUIRE((*uploaded)[1].logs.size() == 2);
  const auto log = storage::read_object(*rig.observer, (*uploaded)[1].logs[1].object, std::uint64_t{1} << 30);
  REQUIRE(log);
  const auto gradient = test::shard_gradient(*rig.job.plan, 2, 2);
  CHECK(log->payload().size() == gradient.size() * 4);
  CHECK(std::memcmp(log->payload().data(), gradient.data(), gradient.size() * 4) == 0);
  CHECK(rig.steps().empty());

  const auto refused = [&](const UploadRequest& wrong) {
    const auto answer = ask(encode_upload(wrong));
    REQUIRE_FALSE(answer);
    return answer.error().code;
  };
  UploadRequest wrong = request;
  wrong.lineage = 2;
  CHECK(refused(wrong) == ErrorCode::kStepUnavailable);
  wrong = request;
  wrong.shards = {3};
  CHECK(refused(wrong) == ErrorCode::kOutOfRange);
  wrong = request;
  wrong.step = 3;  // not applied here yet
  (void)refused(wrong);
  wrong = request;
  wrong.previous_step = 1;  // a point that there is not
  CHECK(refused(wrong) == ErrorCode::kObjectMissing);
  CHECK_FALSE(ask("{}"));
  CHECK_FALSE(ask("nonsense"));
  CHECK(rig.count("uploads") >= 2);
}

}  // namespace gradtap::actors
