// A job of 136 005 parameters in three shards: AdamW, so 12 B of state each (1 632 060 B), a gradient of 544 020 B.
// Every expected number is worked out beside its check.
#include "actors/admission.h"

#include <memory>
#include <optional>

#include <doctest/doctest.h>

#include "actors/self_benchmark.h"
#include "actors/side_channel.h"
#include "storage/directory_store.h"
#include "tests/unit/actors/fake_actor.h"
#include "tests/unit/actors/job_fixture.h"
#include "tests/unit/storage/store_fixture.h"

namespace gradtap::actors {
namespace {

using namespace test;
using storage::test::TempDir;

// What rank 0 posts.
json whole_attach() {
  json body = three_shards(adamw());
  body.update({{"protocol", 1},
               {"job", "job"},
               {"run_nonce", std::string(32, 'a')},
               {"rank", 0},
               {"group", 0},
               {"layout", json::parse(layout_of(*plan_of(body), {{2, 1, 0}})->canonical_json())}});
  return body;
}

class Home {
 public:
  std::shared_ptr<ManualClock> clock = std::make_shared<ManualClock>();
  std::shared_ptr<EventRing> events = std::make_shared<EventRing>(16, *clock);
  capacity::NodeShape own;
  bool measured = true;
  AdmissionTerms terms;

  ~Home() {
    if (side_channel_) probe_->end(side_channel_);
  }

  HttpAnswer attach(const json& body = whole_attach()) {
    if (!side_channel_) start();
    const auto request = std::make_shared<MessagesPost>();
    request->body = body.dump();
    return probe_->ask<HttpAnswer>(side_channel_, attach_atom_v, MessagesPostPtr(request));
  }
  json status() { return probe_->status(side_channel_); }

 private:
  void start() {
    config_.set("scheduler.max-threads", std::size_t{1});
    config_.add_message_types<caf::id_block::gradtap>();
    system_ = std::make_unique<caf::actor_system>(config_);
    probe_ = std::make_unique<Probe>(*system_);
    SideChannelOptions options;
    options.job_name = "job";
    options.endpoints = {"10.0.0.1", "10.0.0.2"};
    options.shard_elements = 65'536;
    options.clock = clock;
    options.random = std::make_shared<SeededRandom>(1);
    options.events = events;
    options.store = store_;
    options.admission.terms = terms;
    options.admission.own = [this] { return own; };
    options.admission.measured = [this] { return measured; };
    options.keeper = spawn_fake<KeeperActor>(
        *system_,
        [](lineage_atom, const LineageRecordPtr&) {
          LineageAnswer answer;
          answer.lineage.id = 1;
          return answer;
        },
        [](side_atom, const SideEntriesPtr&) { return Outcome{}; });
    side_channel_ = spawn_side_channel(*system_, std::move(options));
    probe_->self->send(side_channel_, home_atom_v, true);
  }

  TempDir folder_{true};
  std::shared_ptr<storage::ShardStore> store_ = storage::test::open_or_fail(storage::test::options_at(folder_.path));
  caf::actor_system_config config_;
  std::unique_ptr<caf::actor_system> system_;
  std::unique_ptr<Probe> probe_;
  SideChannelActor side_channel_;
};

json error_of(const HttpAnswer& answer) {
  return json::parse(answer.body)["error"];
}

}  // namespace

TEST_CASE(
    "a job that the memory cannot hold is refused by name, with the nodes to add; with more it is admitted (L3)") {
  Home home;
  // On one node: state 1 632 060 + window 4 x 544 020 + two thirds of the state being written 1 088 040 = 4 896 180. On
  // three, of which each owns one shard of three: 544 020 + 2 176 080 + 1000 held + 544 020 = 3 265 120; on two 4 353
  // 160. The home gathers 2 x 1 632 060 = 3 264 120 at attach, on any number of nodes.
  home.own.memory_bytes = 3'265'120;
  home.own.hold_bytes_max = 1000;
  const HttpAnswer refused = home.attach();
  CHECK(refused.status == 422);
  const json error = error_of(refused);
  CHECK(error["name"] == "CAPACITY_EXCEEDED");
  CHECK(error["code"] == 512);
  CHECK(error["where"] == "capacity.memory");
  CHECK(error["expected"] == "at most 3.265 MB of a node");
  CHECK(error["actual"] == "4.896 MB");
  CHECK(error["remedy"] == "add 2 nodes");
  json status = home.status();
  CHECK(status["state"] == "unattached");
  CHECK(status["refusal"].get<std::string>().find("add 2 nodes") != std::string::npos);
  CHECK(status["refused"] == 1);
  CHECK(status["admission"]["fits"] == false);

  home.own.memory_bytes = 4'896'179;
  CHECK(home.attach().status == 422);
  home.own.memory_bytes = 4'896'180;
  CHECK(home.attach().status == 200);
  status = home.status();
  CHECK(status["state"] == "probe_pending");
  CHECK(status["refusal"] == "");
  CHECK(status["admission"]["fits"] == true);
  CHECK(status["admission"]["measuring_step_time"] == true);
}

TEST_CASE("what no number of nodes holds is said to be so") {
  Home home;
  home.own.memory_bytes = 3'264'119;
  const json error = error_of(home.attach());
  CHECK(error["where"] == "capacity.memory");
  CHECK(error["remedy"].get<std::string>().starts_with("more nodes do not help"));
}

TEST_CASE("rates are judged at a declared step time, and left for later without one") {
  Home home;
  // A step each 0.1 s: (544 020 + 1 632 060 / 64) B / 0.1 s = 5 695 209 B/s, of which a disk may give 0.7: 8 136 013.
  home.own.disk_write_bytes_per_s = 8'136'000;
  json body = whole_attach();
  body["step_time_ms"] = 100;
  const json error = error_of(home.attach(body));
  CHECK(error["name"] == "CAPACITY_EXCEEDED");
  CHECK(error["where"] == "capacity.disk write");
  CHECK(error["remedy"] == "add 1 node");  // two nodes own 2/3 each
  body["step_time_ms"] = -1;
  CHECK(home.attach(body).status == 422);
  CHECK(error_of(home.attach(body))["name"] != "CAPACITY_EXCEEDED");
  CHECK(home.attach().status == 200);

  Home enough;
  enough.own.disk_write_bytes_per_s = 8'136'100;
  body["step_time_ms"] = 100;
  CHECK(enough.attach(body).status == 200);
  CHECK(enough.status()["admission"]["measuring_step_time"] == false);
}

TEST_CASE("an operator may admit what does not fit; what is not known is not held against a job") {
  Home home;
  home.own.memory_bytes = 1;
  home.terms.refuse = false;
  CHECK(home.attach().status == 200);
  CHECK(home.status()["admission"]["fits"] == false);

  Home measuring;
  measuring.measured = false;
  json timed = whole_attach();
  timed["step_time_ms"] = 100;
  const HttpAnswer early = measuring.attach(timed);
  CHECK(early.status == 503);  // the client tries again
  CHECK(error_of(early)["name"] == "NODE_BUSY");
  CHECK(measuring.status()["refused"] == 0);
  measuring.clock->advance_ms(5'000);
  CHECK(measuring.attach(timed).status == 200);
}

TEST_CASE("the fullest member counts, and members that say nonsense do not") {
  const JobPlanPtr plan = plan_of(three_shards(adamw()));
  const auto& shards = plan->shards.shards();
  REQUIRE(shards.size() == 3);
  const double all = 136'005;
  CHECK(fullest_share(*plan, {{0}, {1}, {1}}) == static_cast<double>(shards[1].elements + shards[2].elements) / all);
  CHECK(fullest_share(*plan, {{0, 1}, {0, 1}, {0, 1}}) == 1.0);
  CHECK(fullest_share(*plan, {}) == 1.0);  // no map: as if one had all

  const auto shapes = member_shapes(R"({"b": {"cores": 4, "name": "x"}, "c": null, "d": {"cores": -1}, "e": [1]})");
  REQUIRE(shapes.size() == 1);
  CHECK(shapes[0].name == "b");
  CHECK(shapes[0].cores == 4);
  CHECK(member_shapes("nonsense").empty());
  CHECK(member_shapes("[]").empty());

  AdmissionTerms terms;
  terms.mirrored_edges = 1;
  const capacity::JobShape job = job_shape(*plan, terms, 2, 0.5);
  CHECK(job.parameters == 136'005);
  CHECK(job.state_bytes() == 12);
  CHECK(job.ranks == 2);
  CHECK(job.shards == 3);
  CHECK(job.mirrored_edges == 1);
  CHECK(job.step_time_s == 0.5);
}

TEST_CASE("the self-benchmark is short, leaves nothing behind and finds rates that a machine can have (N6)") {
  const TempDir folder;
  const TempDir objects_folder;
  storage::DirectoryStoreOptions options;
  options.path = objects_folder.path;
  options.writer = "node";
  auto objects = storage::DirectoryStore::open(options);
  REQUIRE(objects);
  capacity::NodeShape node;
  measure_rates(folder.path, objects->get(), "a node", node);
  // Between what a disk or core of decades ago did and what none does.
  const auto plausible = [](double rate, double least, double most) { return rate > least && rate < most; };
  CHECK(plausible(node.memory_bytes_per_s, 1e8, 1e13));
  CHECK(plausible(node.place_bytes_per_s, 1e8, 1e12));
  CHECK(plausible(node.apply_parameters_per_s, 1e6, 1e11));
  CHECK(plausible(node.digest_bytes_per_s, 1e7, 1e12));
  CHECK(plausible(node.disk_write_bytes_per_s, 1e5, 1e11));
  CHECK(plausible(node.object_write_bytes_per_s, 1e5, 1e11));
  CHECK(std::filesystem::is_empty(folder.path));
  const auto keys = (*objects)->list("cluster/rates/");
  REQUIRE(keys);
  CHECK(keys->empty());

  capacity::NodeShape nowhere;
  measure_rates(folder.path + "/absent", nullptr, "a node", nowhere);
  CHECK(nowhere.disk_write_bytes_per_s == 0);
  CHECK(nowhere.object_write_bytes_per_s == 0);
  CHECK(nowhere.apply_parameters_per_s > 0);
}

}  // namespace gradtap::actors
