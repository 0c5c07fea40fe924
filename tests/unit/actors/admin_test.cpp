// The admin actor with membership and peers of other actor systems, one of which never answers.
#include "actors/admin.h"

#include <chrono>
#include <thread>

#include <doctest/doctest.h>
#include <fmt/format.h>

#include "actors/cluster_answer.h"
#include "actors/membership.h"
#include "actors/middleman.h"
#include "tests/unit/actors/fake_actor.h"

namespace gradtap::actors {
namespace {

using namespace std::chrono_literals;
using nlohmann::json;
using Seconds = std::chrono::duration<double>;

struct AdminSystem {
  caf::actor_system_config config;
  std::unique_ptr<caf::actor_system> system;
  AdminSystem() {
    configure_middleman(config, 200ms, 30s);
    config.set("scheduler.max-threads", std::size_t{2});
    config.add_message_types<caf::id_block::gradtap>();
    system = std::make_unique<caf::actor_system>(config);
  }
};

enum class Manner : std::uint8_t { kAnswers, kSilent, kRefuses, kBabbles };

// A peer actor of a node that the test plays.
struct PlayedPeer {
  AdminSystem own;
  caf::actor actor;
  std::uint16_t port = 0;

  PlayedPeer(const std::string& name, Manner manner) {
    PeerHello hello;
    hello.node = name;
    hello.ready = true;
    actor = own.system->spawn([name, manner, text = encode_hello(hello)](caf::event_based_actor* self) {
      auto kept = std::make_shared<std::vector<caf::typed_response_promise<std::string>>>();
      return caf::behavior{
          [text](hello_atom, const std::string&) { return text; }, [](report_atom, const std::string&) {},
          [=](ask_atom, const std::string& what, const std::string& argument) -> caf::result<std::string> {
            auto promise = self->make_response_promise<std::string>();
            if (manner == Manner::kSilent) kept->push_back(promise);
            if (manner == Manner::kRefuses) promise.deliver(std::string(R"({"error":{"code":1}})"));
            if (manner == Manner::kBabbles) promise.deliver(std::string("}{"));
            if (manner == Manner::kAnswers)
              promise.deliver(json{
                  {"node", name},
                  {"epoch", 7},
                  {"lineage", 3},
                  {"asked", what + "?" + argument},
                  {"absent",
                   {"keeper"}}}.dump());
            return promise;
          }};
    });
    const auto published = publish_on_loopback(*own.system, caf::actor_cast<PeerActor>(actor));
    REQUIRE(published);
    port = *published;
  }
  ~PlayedPeer() {
    caf::anon_send_exit(actor, caf::exit_reason::user_shutdown);
    actor = nullptr;
    own.system.reset();
  }
};

struct AdminRig {
  AdminSystem own;
  std::vector<std::unique_ptr<PlayedPeer>> peers;
  std::shared_ptr<const Clock> clock = std::make_shared<const SystemClock>();
  std::shared_ptr<EventRing> events = std::make_shared<EventRing>(5000, *clock);
  std::shared_ptr<ClusterState> cluster;
  MembershipActor membership;
  AdminActor admin;
  caf::actor silent;

  explicit AdminRig(const std::vector<Manner>& manners) {
    ClusterConfig file;
    std::vector<std::uint16_t> ports = {0};
    for (std::size_t i = 0; i <= manners.size(); ++i) {
      MemberSection member;
      member.name = fmt::format("tap{}", i);
      file.members.push_back(member);
      if (i == 0) continue;
      peers.push_back(std::make_unique<PlayedPeer>(member.name, manners[i - 1]));
      ports.push_back(peers.back()->port);
    }
    file.down_after_ms = 60'000;  // a silent one stays connected
    cluster = std::make_shared<ClusterState>(file, 0);
    MembershipOptions members;
    members.cluster = cluster;
    members.clock = clock;
    members.events = events;
    members.control_ports = ports;
    members.hello = [] { return std::string("{}"); };
    membership = spawn_membership(*own.system, std::move(members));
    AdminOptions options;
    options.node = "tap0";
    options.job = "job";
    options.clock = clock;
    options.cluster = cluster;
    options.events = events;
    admin = spawn_admin(*own.system, std::move(options));
    silent = own.system->spawn([](caf::event_based_actor* self) -> caf::behavior {
      auto kept = std::make_shared<std::vector<caf::response_promise>>();
      return {[=](status_atom) {
        kept->push_back(self->make_response_promise());
        return kept->back();
      }};
    });
    auto wiring = std::make_shared<Wiring>();
    wiring->membership = membership;
    wiring->owners = {caf::actor_cast<OwnerActor>(silent)};
    wiring->owner_of = wiring->owners;
    caf::anon_send(admin, wire_atom_v, WiringPtr(wiring));
    for (int tries = 0; tries < 1000 && cluster->live_peers().size() < manners.size(); ++tries)
      std::this_thread::sleep_for(10ms);
    REQUIRE(cluster->live_peers().size() == manners.size());
  }
  ~AdminRig() {
    for (const caf::actor& actor :
         {caf::actor_cast<caf::actor>(membership), caf::actor_cast<caf::actor>(admin), silent})
      caf::anon_send_exit(actor, caf::exit_reason::user_shutdown);
    membership = nullptr;
    admin = nullptr;
    silent = nullptr;
    own.system.reset();
    peers.clear();
  }
};

const char* argument_of(const ClusterQuestion& question) {
  return question.numbers_min == 2 ? "0:5" : "";
}

bool lists(const json& body, const std::string& who) {
  const json& absent = body["absent"];
  return std::find(absent.begin(), absent.end(), who) != absent.end();
}

}  // namespace

TEST_CASE("every question is answered within 2 s, and whoever does not answer is listed") {
  AdminRig rig({Manner::kAnswers, Manner::kSilent, Manner::kRefuses, Manner::kBabbles});
  caf::scoped_actor self(*rig.own.system);
  const auto begun = std::chrono::steady_clock::now();
  std::map<std::string, json> answers;
  std::size_t open = 0;
  for (const ClusterQuestion& question : cluster_questions()) {
    if (!question.everywhere) continue;
    // Each from an actor of its own: all of them wait at the same time.
    ++open;
    rig.own.system->spawn([&, name = std::string(question.name), argument = std::string(argument_of(question)),
                           to = caf::actor_cast<caf::actor>(self)](caf::event_based_actor* asker) {
      asker->request(rig.admin, 20s, whole_atom_v, name, argument).then([=](const HttpAnswer& got) {
        asker->send(to, name, got.status, got.body);
      });
    });
  }
  for (; open > 0; --open)
    self->receive([&](const std::string& name, int status, const std::string& body) {
      CHECK(status == 200);
      answers[name] = json::parse(body);
    });
  CHECK(Seconds(std::chrono::steady_clock::now() - begun).count() < 2.0);
  for (const auto& [name, body] : answers) {
    CAPTURE(name);
    for (const char* who : {"tap2", "tap3", "tap4"}) CHECK(lists(body, who));
    CHECK_FALSE(lists(body, "tap1"));
    CHECK(lists(body, "tap1: keeper"));  // an actor of a node that answered
    CHECK(body["node"] == "tap0");
    CHECK(body["epoch"] == 7);
    CHECK(body["lineage"] == 3);
    CHECK(body["age_ms"].is_number_unsigned());
    CHECK(body["answered"].size() == 2);
  }
  CHECK(lists(answers["shards"], "owner.0"));
  CHECK(answers["status"]["nodes"][0]["asked"] == "status?");
  CHECK(answers.size() == cluster_questions().size() - 2);  // job and events_here are of one node
}

TEST_CASE("membership that does not answer costs the deadline and no more") {
  AdminRig rig({});
  test::Probe probe(*rig.own.system);
  auto wiring = std::make_shared<Wiring>();
  wiring->membership = probe.as<MembershipActor>();
  probe.self->send(rig.admin, wire_atom_v, WiringPtr(wiring));
  const auto begun = std::chrono::steady_clock::now();
  CHECK(json::parse(
            probe.ask<HttpAnswer>(rig.admin, whole_atom_v, std::string("epoch"), std::string()).body)["epoch"] == 0);
  CHECK(Seconds(std::chrono::steady_clock::now() - begun).count() < 2.0);
}

TEST_CASE("what is no question, or no argument of one, is refused by name") {
  AdminRig rig({});
  test::Probe probe(*rig.own.system);
  for (const auto& [what, argument] :
       std::vector<std::pair<std::string, std::string>>{{"", ""},
                                                        {"upload", "x"},
                                                        {std::string(100'000, 'x'), ""},
                                                        {"version", ""},
                                                        {"version", "1"},
                                                        {"version", "1:2:3"},
                                                        {"version", "1:"},
                                                        {"version", "-1:2"},
                                                        {"version", "01:2"},
                                                        {"status", "1"},
                                                        {"digests", "1:18446744073709551616"},
                                                        {"events", "1"},
                                                        {"events_here", "x"},
                                                        {"events_here", ""}}) {
    CAPTURE(argument);
    const auto whole = probe.ask<HttpAnswer>(rig.admin, whole_atom_v, what, argument);
    const auto own = probe.ask<HttpAnswer>(rig.admin, ask_atom_v, what, argument);
    CHECK(whole.status == 400);
    CHECK(own.status == 400);
    CHECK(whole.body.size() < 1000);
  }
}

TEST_CASE("events: the newest without a number, from a number on for whoever follows, bounded in bytes") {
  AdminRig rig({});
  test::Probe probe(*rig.own.system);
  const std::uint64_t before = rig.events->next_seq() - 1;
  for (int i = 0; i < 3000; ++i) rig.events->add(LogLevel::kInfo, fmt::format("event {}", i));
  const auto ask = [&](const std::string& from) {
    return json::parse(
        probe.ask<HttpAnswer>(rig.admin, whole_atom_v, std::string(from.empty() ? "events" : "events_here"), from)
            .body);
  };
  json body = ask("");
  REQUIRE(body["events"].size() == 1000);
  CHECK(body["events"].back()["text"] == "event 2999");
  CHECK(body["events"].back()["node"] == "tap0");
  CHECK(body["next"]["tap0"] == before + 3001);
  CHECK(ask("0")["events"] == body["events"]);
  std::size_t followed = 0;
  for (std::uint64_t from = before + 1; from < before + 3001;) {
    body = ask(std::to_string(from));
    REQUIRE(body["events"].size() > 0);
    CHECK(body["events"][0]["seq"] == from);
    followed += body["events"].size();
    from = body["next"]["tap0"].get<std::uint64_t>();
  }
  CHECK(followed == 3000);
  std::vector<LogField> long_fields;
  for (int i = 0; i < 16; ++i) long_fields.emplace_back("field", std::string(1000, 'x'));
  for (int i = 0; i < 1000; ++i) rig.events->add(LogLevel::kInfo, "long", long_fields);
  const auto cut = probe.ask<HttpAnswer>(rig.admin, whole_atom_v, std::string("events"), std::string());
  CHECK(cut.body.size() < 2'000'000);
  body = json::parse(cut.body);
  CHECK(body["events"].size() > 10);
  CHECK(body["events"].back()["seq"] == before + 4000);
}

}  // namespace gradtap::actors
