#include "actors/membership.h"

#include <algorithm>
#include <map>
#include <set>
#include <utility>

#include <fmt/format.h>
#include <nlohmann/json.hpp>

#include "actors/middleman.h"
#include "common/json_text.h"

namespace gradtap::actors {

namespace {

using nlohmann::json;

constexpr std::chrono::milliseconds kTick{200};
constexpr std::chrono::milliseconds kConnectDeadline{3000};
constexpr std::chrono::milliseconds kHelloDeadline{2000};
constexpr std::chrono::milliseconds kUploadDeadline{60'000};
constexpr std::chrono::milliseconds kSyncDeadline{120'000};
constexpr std::size_t kAnswerBytesMax = std::size_t{16} << 20;  // of one member; what is longer is no answer
constexpr std::uint64_t kPauseMsMin = 100;
constexpr std::uint64_t kPauseMsMax = 1000;

struct Member {
  PeerActor peer;
  bool connecting = false;
  bool retry_scheduled = false;
  std::uint64_t pause_ms = kPauseMsMin;
  std::uint64_t heard_ns = 0;
  PeerHello hello;
  std::uint64_t connects = 0;
  std::uint64_t downs = 0;
  std::string last_error;
  std::uint64_t since_epoch = 0;  // of the life that is connected
};

// A question to one member that is still open: it ends with the member, not only at its deadline.
struct OpenAsk {
  MemberIndex member = 0;
  caf::typed_response_promise<HttpAnswer> promise;
};

struct MembershipState {
  static inline const char* name = "membership";
  MembershipOptions options;
  WiringPtr wiring;
  std::vector<Member> members;
  std::uint64_t started_ns = 0;
  bool syncing = false;
  bool was_home = false;
  bool taking_over = false;
  std::set<MemberIndex> synced;  // during a cold start
  std::map<std::uint64_t, OpenAsk> asks;
  std::uint64_t next_ask = 1;
};

using MembershipPointer = MembershipActor::stateful_pointer<MembershipState>;

void note(MembershipPointer self, LogLevel level, std::string text, MemberIndex member) {
  self->state.options.events->add(level, text, {{"member", self->state.options.cluster->name(member)}});
}

void settle_home(MembershipPointer self, bool home) {
  MembershipState& state = self->state;
  state.was_home = home;
  note(self, LogLevel::kInfo, home ? "this node is the home of the job" : "another node is the home of the job",
       state.options.cluster->home().value_or(state.options.cluster->self()));
  self->send(state.wiring->side_channel, home_atom_v, home);
  if (state.wiring->publisher) self->send(state.wiring->publisher, tick_atom_v);
}

// The last home called an entry durable once it and one peer had it, and that peer may have been another one: before
// this node acts as home it asks every live peer for what it lacks (PROTOCOLS 5.6).
void take_over(MembershipPointer self, std::vector<MemberIndex> peers) {
  MembershipState& state = self->state;
  if (peers.empty()) {
    state.taking_over = false;
    if (state.options.cluster->is_home()) settle_home(self, true);
    return;
  }
  const MemberIndex peer = peers.back();
  peers.pop_back();
  const auto next = [self, peers = std::move(peers)] { take_over(self, peers); };
  self->request(state.wiring->fetcher, kSyncDeadline, sync_atom_v, std::uint64_t{peer},
                std::uint64_t{state.options.stored_step()})
      .then(
          [self, peer, next](const Outcome& outcome) {
            if (!outcome.ok) self->state.members[peer].last_error = outcome.error.text();
            next();
          },
          [next](const caf::error&) { next(); });
}

void look_at_home(MembershipPointer self) {
  MembershipState& state = self->state;
  const bool home = state.options.cluster->is_home();
  if (home == state.was_home || state.taking_over || !state.wiring || !state.wiring->side_channel) return;
  if (!home || !state.wiring->fetcher) return settle_home(self, home);
  state.taking_over = true;
  take_over(self, state.options.cluster->live_peers());
}

void tell_live(MembershipPointer self, MemberIndex member, bool live) {
  MembershipState& state = self->state;
  if (state.options.cluster->live(member) == live) return;
  state.options.cluster->set_live(member, live);
  note(self, live ? LogLevel::kInfo : LogLevel::kWarn, live ? "a member is live" : "a member is down", member);
  if (state.wiring && state.wiring->coordinator)
    self->send(state.wiring->coordinator, live_atom_v, std::uint64_t{member}, live);
  look_at_home(self);
}

void retry(MembershipPointer self, MemberIndex member) {
  Member& entry = self->state.members[member];
  if (entry.retry_scheduled) return;
  entry.retry_scheduled = true;
  self->delayed_send(self, std::chrono::milliseconds(entry.pause_ms), connect_to_atom_v, std::uint64_t{member});
  entry.pause_ms = std::min(entry.pause_ms * 2, kPauseMsMax);
}

void lose(MembershipPointer self, MemberIndex member, const std::string& why) {
  Member& entry = self->state.members[member];
  if (entry.peer) self->demonitor(entry.peer->address());
  const bool was_connected = static_cast<bool>(entry.peer);
  entry.peer = PeerActor();
  entry.last_error = why;
  entry.downs += was_connected ? 1 : 0;
  auto& asks = self->state.asks;
  for (auto ask = asks.begin(); ask != asks.end();) {
    if (ask->second.member != member) {
      ++ask;
      continue;
    }
    ask->second.promise.deliver(
        http_error({ErrorCode::kPeerUnreachable, "the member went down", {}, {}, why, {}}, 503));
    ask = asks.erase(ask);
  }
  tell_live(self, member, false);
  entry.pause_ms = kPauseMsMin;
  if (!self->state.options.cluster->is_out(member)) retry(self, member);
}

void heard(MembershipPointer self, MemberIndex member, const std::string& text) {
  MembershipState& state = self->state;
  Member& entry = state.members[member];
  auto hello = decode_hello(text);
  if (!hello || hello->node != state.options.cluster->name(member) || hello->cluster != state.options.cluster_digest) {
    entry.last_error = hello ? "it answers as " + hello->node + " of another cluster" : hello.error().text();
    return lose(self, member, entry.last_error);
  }
  if (hello->epoch > state.options.cluster->epoch_number() && state.wiring && state.wiring->epochs)
    self->send(state.wiring->epochs, epoch_atom_v, std::uint64_t{hello->epoch});
  state.options.cluster->set_tap(member, hello->tap);
  entry.hello = std::move(*hello);
  entry.heard_ns = state.options.clock->monotonic_ns();
  state.options.cluster->set_store(member, {entry.hello.store_id, entry.hello.presence_key});
  tell_live(self, member, true);
  if (state.options.cluster->ready(member) != entry.hello.ready) {
    state.options.cluster->set_ready(member, entry.hello.ready);
    look_at_home(self);
  }
}

void greet(MembershipPointer self, MemberIndex member) {
  Member& entry = self->state.members[member];
  if (!entry.peer) return;
  self->request(entry.peer, kHelloDeadline, hello_atom_v, self->state.options.hello())
      .then(
          [self, member, asked = entry.peer](const std::string& text) {
            if (self->state.members[member].peer == asked) heard(self, member, text);
          },
          [](const caf::error&) {});  // silence counts by heard_ns
}

// Of two members the first in file order dials; the other one dials back when it is `called`. When both dial at the
// same moment, each middleman closes the other's connection as one too many, and both are lost.
void connect(MembershipPointer self, MemberIndex member, bool called = false) {
  MembershipState& state = self->state;
  Member& entry = state.members[member];
  entry.retry_scheduled = false;
  if (entry.connecting || entry.peer || member == state.options.cluster->self()) return;
  if (state.options.cluster->is_out(member) || state.options.control_ports[member] == 0) return;
  if (member < state.options.cluster->self() && !called) return;
  entry.connecting = true;
  dial_peer(self, state.options.control_ports[member], kConnectDeadline)
      .then(
          [self, member](const caf::node_id&, const caf::strong_actor_ptr& actor, const std::set<std::string>& types) {
            Member& found = self->state.members[member];
            found.connecting = false;
            if (!actor || !self->system().assignable(types, self->system().message_types<PeerActor>())) {
              found.last_error = "what answers there is no node of this version";
              return retry(self, member);
            }
            if (self->state.options.cluster->is_out(member)) return;
            found.peer = caf::actor_cast<PeerActor>(actor);
            ++found.connects;
            found.pause_ms = kPauseMsMin;
            found.heard_ns = self->state.options.clock->monotonic_ns();
            self->monitor(found.peer);
            greet(self, member);
          },
          [self, member](const caf::error& error) {
            Member& found = self->state.members[member];
            found.connecting = false;
            found.last_error = self->system().render(error);
            retry(self, member);
          });
}

// -- readiness -----------------------------------------------------------------------------------------------------

void become_ready(MembershipPointer self, const char* how) {
  MembershipState& state = self->state;
  const MemberIndex me = state.options.cluster->self();
  state.options.cluster->set_ready(me, true);
  note(self, LogLevel::kInfo, fmt::format("this node is ready: {}", how), me);
  for (MemberIndex member = 0; member < state.members.size(); ++member) greet(self, member);
  look_at_home(self);
}

void sync_from(MembershipPointer self, MemberIndex source, bool enough) {
  MembershipState& state = self->state;
  state.syncing = true;
  self->request(state.wiring->fetcher, kSyncDeadline, sync_atom_v, std::uint64_t{source},
                std::uint64_t{state.options.stored_step()})
      .then(
          [self, source, enough](const Outcome& outcome) {
            MembershipState& s = self->state;
            s.syncing = false;
            if (!outcome.ok) {
              s.members[source].last_error = outcome.error.text();
              return;  // the next tick tries again
            }
            s.synced.insert(source);
            if (enough) become_ready(self, "it has the side entries of a ready member");
          },
          [self](const caf::error&) { self->state.syncing = false; });
}

void look_at_readiness(MembershipPointer self) {
  MembershipState& state = self->state;
  ClusterState& cluster = *state.options.cluster;
  if (cluster.ready(cluster.self()) || state.syncing || !state.wiring || !state.wiring->feed) return;
  if (cluster.alone()) return become_ready(self, "it is alone");
  const std::vector<MemberIndex> live = cluster.live_peers();
  for (const MemberIndex peer : live)
    if (cluster.ready(peer)) return sync_from(self, peer, true);
  for (const MemberIndex peer : live)
    if (!state.synced.contains(peer)) return sync_from(self, peer, false);
  // What was called durable is on `copies` members: with all but copies-1 of them here, nothing can be missing.
  const std::size_t copies = std::min<std::size_t>(2, cluster.replicas());
  std::size_t members = 0;
  for (MemberIndex member = 0; member < cluster.size(); ++member) members += cluster.is_out(member) ? 0 : 1;
  if (live.size() + 1 + copies > members) return become_ready(self, "enough members compared their side entries");
  const std::uint64_t waited_ms = (state.options.clock->monotonic_ns() - state.started_ns) / 1'000'000;
  if (waited_ms > cluster.config().down_after_ms + 1000)
    return become_ready(self, "no other member came; what only they have is missing until they do");
}

// -- questions -----------------------------------------------------------------------------------------------------

struct Gathering {
  json answers = json::object();
  std::size_t open = 1;
};

caf::result<HttpAnswer> ask_all(MembershipPointer self, const std::string& what, const std::string& argument) {
  auto promise = self->make_response_promise<HttpAnswer>();
  auto gathering = std::make_shared<Gathering>();
  auto close_one = [gathering, promise]() mutable {
    if (--gathering->open == 0)
      promise.deliver(HttpAnswer{200, gathering->answers.dump(-1, ' ', false, json::error_handler_t::replace)});
  };
  for (MemberIndex member = 0; member < self->state.members.size(); ++member) {
    const Member& entry = self->state.members[member];
    if (!entry.peer || self->state.options.cluster->is_out(member)) continue;
    ++gathering->open;
    self->request(entry.peer, self->state.options.deadlines.member(), ask_atom_v, what, argument)
        .then(
            [gathering, close_one, name = self->state.options.cluster->name(member)](const std::string& text) mutable {
              json body = text.size() <= kAnswerBytesMax ? parse_json_text(text) : json();
              if (body.is_object() && !body.contains("error")) gathering->answers[name] = std::move(body);
              close_one();
            },
            [close_one](const caf::error&) mutable { close_one(); });
  }
  close_one();
  return promise;
}

caf::result<HttpAnswer> ask_one(MembershipPointer self, MemberIndex member, const std::string& what,
                                const std::string& argument) {
  auto promise = self->make_response_promise<HttpAnswer>();
  if (member >= self->state.members.size() || !self->state.members[member].peer) {
    promise.deliver(http_error({ErrorCode::kPeerUnreachable, "the member is down", {}, {}, {}, {}}, 503));
    return promise;
  }
  MembershipState& state = self->state;
  const std::uint64_t id = state.next_ask++;
  state.asks.emplace(id, OpenAsk{member, promise});
  const auto settle = [self, id](HttpAnswer answer) {
    const auto open = self->state.asks.find(id);
    if (open == self->state.asks.end()) return;
    open->second.promise.deliver(std::move(answer));
    self->state.asks.erase(open);
  };
  self->request(state.members[member].peer, what == "upload" ? kUploadDeadline : state.options.deadlines.member(),
                ask_atom_v, what, argument)
      .then([settle](const std::string& text) { settle(HttpAnswer{200, text}); },
            [settle, self](const caf::error& error) {
              settle(http_error(
                  {ErrorCode::kTimeout, "the member did not answer", {}, {}, self->system().render(error), {}}, 503));
            });
  return promise;
}

MembershipActor::behavior_type membership(MembershipPointer self, const MembershipOptions& options) {
  MembershipState& initial = self->state;
  initial.options = options;
  initial.members.resize(options.cluster->size());
  initial.options.control_ports.resize(options.cluster->size(), 0);
  for (MemberIndex member = 0; member < initial.members.size(); ++member)
    initial.members[member].since_epoch = options.cluster->member(member).since_epoch;
  initial.started_ns = options.clock->monotonic_ns();
  self->set_down_handler([self](const caf::down_msg& down) {
    for (MemberIndex member = 0; member < self->state.members.size(); ++member)
      if (const PeerActor& peer = self->state.members[member].peer; peer && peer->address() == down.source)
        return lose(self, member, self->system().render(down.reason));
  });
  self->send(self, tick_atom_v);
  return {
      [self](connect_to_atom, std::uint64_t member) {
        if (member < self->state.members.size()) connect(self, member);
      },
      [self](tick_atom) {
        MembershipState& state = self->state;
        const std::uint64_t now = state.options.clock->monotonic_ns();
        for (MemberIndex member = 0; member < state.members.size(); ++member) {
          if (member == state.options.cluster->self()) continue;
          Member& entry = state.members[member];
          if (entry.peer && now - entry.heard_ns > state.options.cluster->config().down_after_ms * 1'000'000)
            lose(self, member, "it was silent too long");
          if (entry.peer)
            greet(self, member);
          else if (!entry.connecting && !entry.retry_scheduled && !state.options.cluster->is_out(member))
            connect(self, member);
        }
        look_at_readiness(self);
        look_at_home(self);
        self->delayed_send(self, kTick, tick_atom_v);
      },
      [self](hello_atom, const std::string& text) {
        // Somebody called: if it is not connected from here yet, now is the time.
        const auto hello = decode_hello(text);
        if (!hello) return;
        const auto member = self->state.options.cluster->index_of(hello->node);
        if (!member || *member >= self->state.members.size() || *member == self->state.options.cluster->self()) return;
        if (self->state.options.cluster->is_out(*member)) return;
        if (self->state.members[*member].peer) return heard(self, *member, text);
        self->state.members[*member].pause_ms = kPauseMsMin;
        connect(self, *member, true);
      },
      [self](epoch_atom, const ControlPortsPtr& ports) {
        MembershipState& state = self->state;
        const ClusterState& cluster = *state.options.cluster;
        state.options.control_ports = *ports;
        state.options.control_ports.resize(std::max(ports->size(), cluster.size()), 0);
        state.members.resize(std::max(state.members.size(), cluster.size()));
        for (MemberIndex member = 0; member < cluster.size(); ++member) {
          Member& entry = state.members[member];
          const std::uint64_t since = cluster.member(member).since_epoch;
          const bool another = std::exchange(entry.since_epoch, since) != since;
          if (member == cluster.self()) continue;
          if (entry.peer && (another || cluster.is_out(member))) {
            // The epoch made it unknown to ClusterState already, so that nobody else would tell.
            if (state.wiring && state.wiring->coordinator)
              self->send(state.wiring->coordinator, live_atom_v, std::uint64_t{member}, false);
            lose(self, member, cluster.is_out(member) ? "it is no member any more" : "it was replaced");
          } else if (!entry.peer && !entry.retry_scheduled)
            connect(self, member);
        }
        look_at_home(self);
      },
      [self](report_atom, const std::string& text) {
        for (const Member& member : self->state.members)
          if (member.peer) self->send(member.peer, report_atom_v, text);
      },
      [self](ask_atom, const std::string& what, const std::string& argument) { return ask_all(self, what, argument); },
      [self](ask_atom, std::uint64_t member, const std::string& what, const std::string& argument) {
        return ask_one(self, member, what, argument);
      },
      [self](wire_atom, const WiringPtr& wiring) {
        MembershipState& state = self->state;
        const bool new_coordinator =
            wiring->coordinator && (!state.wiring || wiring->coordinator != state.wiring->coordinator);
        state.wiring = wiring;
        if (new_coordinator)
          for (const MemberIndex peer : state.options.cluster->live_peers())
            self->send(wiring->coordinator, live_atom_v, std::uint64_t{peer}, true);
        look_at_home(self);
      },
      [self](status_atom) {
        const MembershipState& state = self->state;
        const ClusterState& cluster = *state.options.cluster;
        const std::uint64_t now = state.options.clock->monotonic_ns();
        json members = json::array();
        for (MemberIndex member = 0; member < state.members.size(); ++member) {
          const Member& entry = state.members[member];
          const schema::EpochMember facts = cluster.member(member);
          members.push_back({{"name", facts.name},
                             {"domain", facts.domain},
                             {"http", facts.http},
                             {"capacity", facts.capacity},
                             {"tap", cluster.tap(member)},
                             {"membership", member_state_name(facts.state)},
                             {"state", cluster.ready(member)  ? "up"
                                       : cluster.live(member) ? "syncing"
                                                              : "down"},
                             {"self", member == cluster.self()},
                             {"age_ms", entry.heard_ns == 0 ? json() : json((now - entry.heard_ns) / 1'000'000)},
                             {"connects", entry.connects},
                             {"downs", entry.downs},
                             {"last_error", entry.last_error}});
        }
        const auto home = cluster.home();
        const json body = {{"members", members},
                           {"home", home ? json(cluster.name(*home)) : json(nullptr)},
                           {"security", cluster.config().security},
                           {"replicas", cluster.replicas()},
                           {"epoch", cluster.epoch_number()}};
        return ActorStatus{MembershipState::name, body.dump(-1, ' ', false, nlohmann::json::error_handler_t::replace)};
      },
  };
}

}  // namespace

MembershipActor spawn_membership(caf::actor_system& system, MembershipOptions options) {
  return system.spawn(membership, std::move(options));
}

}  // namespace gradtap::actors
