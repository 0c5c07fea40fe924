// Two actor systems, bound to loopback, that reach each other only through the tunnels of two node links.
#include <atomic>
#include <memory>
#include <set>
#include <thread>

#include <caf/all.hpp>
#include <caf/io/all.hpp>
#include <doctest/doctest.h>

#include "actors/middleman.h"
#include "link/node_link.h"
#include "tests/unit/link/link_rig.h"

CAF_BEGIN_TYPE_ID_BLOCK(tunnel_test, caf::first_custom_type_id + 1000)
CAF_ADD_ATOM(tunnel_test, gradtap::tunnel_test, echo_atom, "echo")
CAF_ADD_ATOM(tunnel_test, gradtap::tunnel_test, watch_atom, "watch")
CAF_END_TYPE_ID_BLOCK(tunnel_test)

using namespace gradtap;
using namespace gradtap::tunnel_test;
using namespace std::chrono_literals;
using gradtap::actors::configure_middleman;
using gradtap::actors::dial_peer;
using gradtap::actors::publish_on_loopback;
using gradtap::link::testing::dial;
using gradtap::link::testing::LinkRig;
using gradtap::link::testing::Listener;
using gradtap::link::testing::refusing;
using gradtap::link::testing::Socket;
using gradtap::link::testing::started;

namespace {

using EchoActor = caf::typed_actor<caf::replies_to<echo_atom, std::string>::with<std::string>>;
using OtherActor = caf::typed_actor<caf::replies_to<watch_atom, std::uint64_t>::with<std::uint64_t>>;

EchoActor::behavior_type echo(EchoActor::pointer, std::string name) {
  return {[name](echo_atom, const std::string& text) { return name + ":" + text; }};
}

// One node: an actor system and a node link.
class System {
 public:
  System(LinkRig& rig, int member, std::chrono::milliseconds silence = 5s) : rig_(rig), member_(member) {
    configure_middleman(config_, 200ms, silence);
    config_.set("scheduler.max-threads", std::size_t{2});
    config_.set("scheduler.policy", caf::atom("sharing"));
    config_.add_message_types<caf::id_block::tunnel_test>();
    system_ = std::make_unique<caf::actor_system>(config_);
    echo_ = system_->spawn(echo, LinkRig::name(member));
    link_ = started(rig.options(member, refusing()));
    const auto port = publish_on_loopback(*system_, echo_);
    REQUIRE(port);
    link_->set_control_target(*port);
  }
  ~System() {
    if (system_) stop();
  }
  void stop() {
    link_->stop();
    caf::anon_send_exit(echo_, caf::exit_reason::user_shutdown);
    echo_ = EchoActor();
    system_.reset();
  }
  void stop_link() { link_->stop(); }

  caf::actor_system& system() { return *system_; }
  link::NodeLink& link() { return *link_; }
  std::uint16_t port_to(int member) { return link_->control_port(LinkRig::name(member)); }

  // Connects as membership does: again after a pause, because a heartbeat in the middle of dialling ends it.
  EchoActor reach(int member) {
    EchoActor found;
    for (int tries = 0; tries < 200 && !found; ++tries) {
      if (tries > 0) std::this_thread::sleep_for(20ms);
      found = dial_once(member);
    }
    return found;
  }
  template <class Handle = EchoActor>
  Handle dial_once(int member, std::string* why = nullptr) {
    caf::scoped_actor self(*system_);
    Handle found;
    dial_peer(self.operator->(), port_to(member), 10s)
        .receive(
            [&](const caf::node_id&, const caf::strong_actor_ptr& actor, const std::set<std::string>& types) {
              if (actor && system_->assignable(types, system_->message_types<Handle>()))
                found = caf::actor_cast<Handle>(actor);
              else if (why != nullptr)
                *why = "another interface";
            },
            [&](const caf::error& error) {
              if (why != nullptr) *why = system_->render(error);
            });
    return found;
  }

 private:
  LinkRig& rig_;
  int member_;
  caf::actor_system_config config_;
  std::unique_ptr<caf::actor_system> system_;
  EchoActor echo_;
  std::unique_ptr<link::NodeLink> link_;
};

// Stands at the second member's address, passes bytes on, and stops doing so while frozen; nothing is closed then.
class FreezingRelay {
 public:
  explicit FreezingRelay(std::uint16_t real_port) : listener_(LinkRig::address(1)), real_port_(real_port) {
    thread_ = std::thread([this] {
      for (;;) {
        Socket caller = listener_.accept();
        if (!caller.open()) return;
        relays_.emplace_back([this, from = std::move(caller)] { relay(from); });
      }
    });
  }
  ~FreezingRelay() {
    stopping_ = true;
    listener_.stop();
    thread_.join();
    for (std::thread& each : relays_) each.join();
  }
  [[nodiscard]] std::uint16_t port() const { return listener_.port(); }
  void freeze(bool frozen) { frozen_ = frozen; }

 private:
  void relay(const Socket& caller) const {
    const Socket real = dial(LinkRig::address(0), LinkRig::address(1), real_port_);
    std::array<char, 4096> buffer;
    while (real.open() && !stopping_) {
      if (frozen_) {
        std::this_thread::sleep_for(1ms);
        continue;
      }
      std::array<pollfd, 2> both{{{caller.fd(), POLLIN, 0}, {real.fd(), POLLIN, 0}}};
      if (::poll(both.data(), both.size(), 10) <= 0 || frozen_) continue;
      for (const int from : {0, 1}) {
        if (both[static_cast<std::size_t>(from)].revents == 0) continue;
        const Socket& source = from == 0 ? caller : real;
        const ssize_t got = ::recv(source.fd(), buffer.data(), buffer.size(), 0);
        if (got <= 0 || !(from == 0 ? real : caller).write(buffer.data(), static_cast<std::size_t>(got))) return;
      }
    }
  }

  Listener listener_;
  const std::uint16_t real_port_;
  std::atomic<bool> frozen_{false};
  std::atomic<bool> stopping_{false};
  std::vector<std::thread> relays_;
  std::thread thread_;
};

std::string ask(caf::scoped_actor& self, const EchoActor& actor, const std::string& text,
                std::chrono::seconds most = 10s) {
  std::string answer;
  self->request(actor, most, echo_atom_v, text)
      .receive([&](const std::string& got) { answer = got; },
               [&](const caf::error& error) { answer = self->system().render(error); });
  return answer;
}

// For a while after a death the middleman may answer from its cache, with a handle that is dead.
std::string ask_again(caf::scoped_actor& self, System& from, int member, const std::string& text) {
  std::string answer;
  for (int tries = 0; tries < 10 && !answer.ends_with(":" + text); ++tries)
    if (const EchoActor actor = from.reach(member)) answer = ask(self, actor, text, 1s);
  return answer;
}

bool goes_down(caf::scoped_actor& self, const EchoActor& actor) {
  bool down = false;
  self->receive([&](const caf::down_msg& message) { down = message.source == actor.address(); },
                caf::after(20s) >> [] {});
  return down;
}

}  // namespace

TEST_CASE("a typed actor of another node answers through the tunnel") {
  LinkRig rig;
  System a(rig, 0);
  System b(rig, 1);
  const EchoActor there = a.reach(1);
  REQUIRE(there);
  CHECK(there.node() != a.system().node());
  CHECK(there.node() == b.system().node());
  {
    caf::scoped_actor self(a.system());
    CHECK(ask(self, there, "hello") == "tap1:hello");
    const std::string large(200'000, 'x');  // frames of the control connection stay below 256 KiB
    CHECK(ask(self, there, large) == "tap1:" + large);
  }
  CHECK(rig.counted(0, "tunnels") == 1);
  // The other direction, by its own dialling.
  const EchoActor here = b.reach(0);
  REQUIRE(here);
  caf::scoped_actor self(b.system());
  CHECK(ask(self, here, "hello") == "tap0:hello");
  std::string why;
  CHECK_FALSE(a.dial_once<OtherActor>(1, &why));
  CHECK(why == "another interface");
}

TEST_CASE("a monitor hears of a peer that stops, and of a link that stops") {
  for (const bool only_link : {true, false}) {
    CAPTURE(only_link);
    LinkRig rig;
    // Nobody may wait for the heartbeats here: the connection itself says it.
    System a(rig, 0, 10min);
    System b(rig, 1, 10min);
    const EchoActor there = a.reach(1);
    REQUIRE(there);
    caf::scoped_actor self(a.system());
    CHECK(ask(self, there, "x") == "tap1:x");
    self->monitor(there);
    if (only_link)
      b.stop_link();
    else
      b.stop();
    CHECK(goes_down(self, there));
    // From its cache the middleman may answer once more.
    std::string why;
    for (int tries = 0; tries < 1000 && a.dial_once(1, &why); ++tries) std::this_thread::sleep_for(1ms);
    CHECK_FALSE(why.empty());
  }
}

TEST_CASE("an idle peer stays, a frozen one goes down after the silence, and is reached again when it thaws") {
  LinkRig rig;
  System b(rig, 1, 1500ms);
  FreezingRelay relay(rig.members[1].port);
  LinkRig seen_by_a;
  seen_by_a.members = rig.members;
  seen_by_a.members[1].port = relay.port();
  System a(seen_by_a, 0, 1500ms);
  const EchoActor there = a.reach(1);
  REQUIRE(there);
  caf::scoped_actor self(a.system());
  self->monitor(there);
  // Heartbeats keep an idle connection for many times the silence.
  std::this_thread::sleep_for(4s);
  CHECK(ask(self, there, "x") == "tap1:x");
  relay.freeze(true);
  CHECK(goes_down(self, there));
  relay.freeze(false);
  CHECK(ask_again(self, a, 1, "y") == "tap1:y");
}

TEST_CASE("a peer that was restarted on the same addresses is reached again, as another node") {
  LinkRig rig;
  System a(rig, 0);
  auto b = std::make_unique<System>(rig, 1);
  for (int round = 0; round < 3; ++round) {
    const EchoActor there = a.reach(1);
    REQUIRE(there);
    caf::scoped_actor self(a.system());
    CHECK(ask(self, there, "x") == "tap1:x");
    self->monitor(there);
    b.reset();
    CHECK(goes_down(self, there));
    b = std::make_unique<System>(rig, 1);
    CHECK(ask_again(self, a, 1, "y") == "tap1:y");
    const EchoActor again = a.reach(1);
    REQUIRE(again);
    CHECK(again.node() != there.node());
  }
}

// Dialling each other at the same moment makes CAF close both connections as redundant. So one of two nodes dials, and
// the other one does when it is called: over the connection that is there.
TEST_CASE("a node that dials back when it is called costs neither of the two its connection") {
  LinkRig rig;
  for (int round = 0; round < 20; ++round) {
    System a(rig, 0);
    System b(rig, 1);
    const EchoActor there = a.reach(1);
    REQUIRE(there);
    caf::scoped_actor at_a(a.system());
    CHECK(ask(at_a, there, "x") == "tap1:x");  // b was called
    at_a->monitor(there);
    const EchoActor here = b.reach(0);
    REQUIRE(here);
    caf::scoped_actor at_b(b.system());
    at_b->monitor(here);
    for (int i = 0; i < 3; ++i) {
      CHECK(ask(at_a, there, "x") == "tap1:x");
      CHECK(ask(at_b, here, "x") == "tap0:x");
    }
    // Closing the connection that was one too many is no death.
    for (caf::scoped_actor* const self : {&at_a, &at_b})
      (*self)->receive([](const caf::down_msg&) { FAIL_CHECK("went down"); }, caf::after(20ms) >> [] {});
  }
}
