#include "actors/supervisor.h"

#include <condition_variable>
#include <mutex>
#include <utility>

#include <doctest/doctest.h>

#include "actors/admin.h"
#include "actors/assembler.h"
#include "actors/coordinator.h"
#include "actors/gateway.h"
#include "actors/ingress.h"
#include "actors/keeper.h"
#include "actors/shard_owner.h"
#include "actors/side_channel.h"
#include "dataplane/gloo_decoder.h"
#include "dataplane/gloo_ring.h"
#include "dataplane/memory_port.h"
#include "tests/unit/actors/actor_probe.h"
#include "tests/unit/actors/stored_job.h"

namespace gradtap::actors {
namespace {

using namespace std::chrono_literals;

struct Deaths {
  std::mutex mutex;
  std::condition_variable change;
  std::vector<std::pair<std::string, std::string>> list;
  [[nodiscard]] bool wait(std::size_t count) {
    std::unique_lock lock(mutex);
    return change.wait_for(lock, 20s, [&] { return list.size() >= count; });
  }
};

}  // namespace

TEST_CASE("an actor that dies is reported, one that was told to end is not (K6)") {
  SystemClock clock;
  caf::actor_system_config config;
  caf::actor_system system{config};
  Deaths deaths;
  SupervisorOptions options;
  options.events = std::make_shared<EventRing>(10, clock);
  options.on_death = [&](const std::string& who, const std::string& why) {
    const std::lock_guard lock(deaths.mutex);
    deaths.list.emplace_back(who, why);
    deaths.change.notify_all();
  };
  const auto events = options.events;
  const SupervisorActor supervisor = spawn_supervisor(system, std::move(options));
  test::Probe probe(system);
  const auto make = [&](const std::string& name) {
    const caf::actor actor = system.spawn([](caf::event_based_actor* self) -> caf::behavior {
      return {[self](int) { self->quit(caf::make_error(caf::sec::runtime_error, "broken")); },
              [](double) { throw std::runtime_error("thrown"); }};
    });
    probe.self->send(supervisor, watch_atom_v, caf::actor_cast<caf::strong_actor_ptr>(actor), name);
    CHECK(probe.status(supervisor).contains("watched"));  // it is watched from now on
    return actor;
  };
  const caf::actor ordered = make("ordered");
  const caf::actor broken = make("broken");
  const caf::actor thrower = make("thrower");
  const caf::actor killed = make("killed");
  CHECK(probe.status(supervisor)["watched"] == 4);
  probe.end(ordered);
  probe.self->wait_for(ordered);
  probe.self->send(broken, 1);
  REQUIRE(deaths.wait(1));
  probe.self->send(thrower, 1.0);
  REQUIRE(deaths.wait(2));
  probe.self->send_exit(killed, caf::exit_reason::kill);
  REQUIRE(deaths.wait(3));
  CHECK(deaths.list[0].first == "broken");
  CHECK(deaths.list[0].second.find("broken") != std::string::npos);
  CHECK(deaths.list[1].first == "thrower");
  CHECK(deaths.list[2].first == "killed");
  const auto status = probe.status(supervisor);
  CHECK(status["watched"] == 0);
  CHECK(status["deaths"] == 3);
  CHECK(status["last_death"].get<std::string>().rfind("killed: ", 0) == 0);
  CHECK(events->since(1).size() == 3);
  // One that is dead already is reported when it is handed over.
  probe.self->send(supervisor, watch_atom_v, caf::actor_cast<caf::strong_actor_ptr>(broken), "late");
  REQUIRE(deaths.wait(4));
  CHECK(deaths.list[3].first == "late");
  probe.self->send(supervisor, watch_atom_v, caf::strong_actor_ptr{}, "nobody");
  CHECK(probe.status(supervisor)["watched"] == 0);
  probe.end(supervisor);
}

TEST_CASE("every actor answers for its status") {
  test::StoredJob job(test::three_shards(test::sgd()));
  caf::actor_system_config config;
  caf::actor_system system{config};
  test::Probe probe(system);
  const auto clock = std::make_shared<const SystemClock>();
  const auto events = std::make_shared<EventRing>(100, *clock);
  std::vector<std::string> names;
  const auto check = [&](const auto& actor) {
    std::string name;
    const auto body = probe.status(actor, &name);
    CHECK(body.is_object());
    CHECK_FALSE(body.empty());
    names.push_back(name);
  };
  KeeperOptions keeper_options;
  keeper_options.job = job_id("job");
  keeper_options.store = job.store;
  const KeeperActor keeper = spawn_keeper(system, std::move(keeper_options));
  AssemblerOptions assembler_options;
  assembler_options.index = 1;
  assembler_options.schedule = std::make_shared<const dataplane::GlooRing>(2);
  const AssemblerActor assembler = spawn_assembler(system, std::move(assembler_options));
  ShardOwnerOptions owner_options;
  owner_options.plan = job.plan;
  owner_options.shard = job.shards[2];
  const OwnerActor owner = spawn_shard_owner(system, std::move(owner_options));
  CoordinatorOptions coordinator_options;
  coordinator_options.plan = job.plan;
  coordinator_options.clock = clock;
  coordinator_options.events = events;
  coordinator_options.warnings = {"mind the gap"};
  const CoordinatorActor coordinator = spawn_coordinator(system, std::move(coordinator_options));
  IngressOptions ingress_options;
  ingress_options.port = std::make_shared<dataplane::MemoryPort>(std::vector<dataplane::MemoryFrame>{}, 1);
  const auto directory = std::make_shared<dataplane::FlowDirectory>(16);
  ingress_options.clock = clock;
  ingress_options.make_decoder = [directory, clock](std::uint16_t queue) {
    return std::make_unique<dataplane::GlooDecoder>(dataplane::GlooDecoderConfig{}, *directory, *clock, queue);
  };
  const IngressActor ingress = spawn_ingress(system, std::move(ingress_options));
  AdminOptions admin_options;
  admin_options.node = "node";
  admin_options.job = "job";
  admin_options.clock = clock;
  const AdminActor admin = spawn_admin(system, std::move(admin_options));
  SideChannelOptions side_options;
  side_options.job_name = "job";
  side_options.endpoints = {"10.0.0.1", "10.0.0.2"};
  side_options.shard_elements = 65'536;
  side_options.keeper = keeper;
  side_options.clock = clock;
  side_options.random = std::make_shared<SeededRandom>(1);
  side_options.events = events;
  side_options.store = job.store;
  side_options.launch = [](const JobPlanPtr&, std::vector<std::shared_ptr<replica::Shard>>) {
    return CoordinatorActor{};
  };
  const SideChannelActor side_channel = spawn_side_channel(system, std::move(side_options));
  GatewayOptions gateway_options;
  gateway_options.job = "job";
  gateway_options.side_channel = side_channel;
  gateway_options.admin = admin;
  auto gateway = spawn_gateway(system, std::move(gateway_options));
  REQUIRE(gateway);
  SupervisorOptions supervisor_options;
  supervisor_options.events = events;
  supervisor_options.on_death = [](const std::string&, const std::string&) {};
  const SupervisorActor supervisor = spawn_supervisor(system, std::move(supervisor_options));

  check(keeper);
  check(assembler);
  check(owner);
  check(coordinator);
  check(ingress);
  check(admin);
  check(side_channel);
  check(gateway->actor);
  check(supervisor);
  CHECK(names == std::vector<std::string>{"keeper", "assembler.1", "owner.2", "coordinator", "ingress.0", "admin",
                                          "side_channel", "gateway", "supervisor"});
  CHECK(probe.status(coordinator)["warnings"] == nlohmann::json{"mind the gap"});

  gateway->server->stop();
  for (const auto& actor :
       {caf::actor_cast<caf::actor>(keeper), caf::actor_cast<caf::actor>(assembler), caf::actor_cast<caf::actor>(owner),
        caf::actor_cast<caf::actor>(coordinator), caf::actor_cast<caf::actor>(ingress),
        caf::actor_cast<caf::actor>(admin), caf::actor_cast<caf::actor>(side_channel),
        caf::actor_cast<caf::actor>(gateway->actor), caf::actor_cast<caf::actor>(supervisor)})
    probe.end(actor);
}

}  // namespace gradtap::actors
