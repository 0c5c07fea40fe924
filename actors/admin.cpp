#include "actors/admin.h"

#include <algorithm>
#include <functional>
#include <map>
#include <memory>
#include <string_view>
#include <utility>
#include <vector>

#include <fmt/format.h>
#include <nlohmann/json.hpp>

#include "capacity/node_json.h"
#include "common/number_text.h"

namespace gradtap::actors {

namespace {

using nlohmann::json;

constexpr std::chrono::milliseconds kDeadline{1000};

struct AdminState {
  static inline const char* name = "admin";
  AdminOptions options;
  WiringPtr wiring;
  std::uint64_t started_ns = 0;
  std::uint64_t questions = 0;
  std::uint64_t absences = 0;
};

using AdminPointer = AdminActor::stateful_pointer<AdminState>;

// Collects answers until the last one is in or its deadline has passed.
struct Gathering {
  std::size_t open = 0;
  std::vector<std::pair<std::string, json>> answers;  // in order of arrival
  std::vector<std::string> absent;
  std::function<void(Gathering&)> done;

  void close_one() {
    if (--open == 0) done(*this);
  }
};
using GatheringPtr = std::shared_ptr<Gathering>;

template <class Handle>
void ask(AdminPointer self, const GatheringPtr& gathering, const Handle& target, const std::string& label) {
  if (!target) return;
  ++gathering->open;
  self->request(target, kDeadline, status_atom_v)
      .then(
          [gathering, label](const ActorStatus& status) {
            json body = json::parse(status.json, nullptr, false);
            gathering->answers.emplace_back(status.name.empty() ? label : status.name, std::move(body));
            gathering->close_one();
          },
          [self, gathering, label](const caf::error&) {
            ++self->state.absences;
            gathering->absent.push_back(label);
            gathering->close_one();
          });
}

void ask_everybody(AdminPointer self, const GatheringPtr& gathering) {
  const Wiring& wiring = *self->state.wiring;
  ask(self, gathering, wiring.coordinator, "coordinator");
  ask(self, gathering, wiring.side_channel, "side_channel");
  ask(self, gathering, wiring.keeper, "keeper");
  ask(self, gathering, wiring.gateway, "gateway");
  ask(self, gathering, wiring.supervisor, "supervisor");
  ask(self, gathering, wiring.feed, "feed");
  ask(self, gathering, wiring.fetcher, "fetcher");
  ask(self, gathering, wiring.membership, "membership");
  ask(self, gathering, wiring.publisher, "publisher");
  ask(self, gathering, wiring.epochs, "epochs");
  for (std::size_t i = 0; i < wiring.replicators.size(); ++i)
    ask(self, gathering, wiring.replicators[i], "replicator." + std::to_string(i));
  for (std::size_t i = 0; i < wiring.ingress.size(); ++i)
    ask(self, gathering, wiring.ingress[i], "ingress." + std::to_string(i));
  for (std::size_t i = 0; i < wiring.assemblers.size(); ++i)
    ask(self, gathering, wiring.assemblers[i], "assembler." + std::to_string(i));
}

json answer_of(const Gathering& gathering, const std::string& name) {
  for (const auto& [who, body] : gathering.answers)
    if (who == name) return body;
  return nullptr;
}

// The job while no coordinator exists: nothing is replicated yet, and the side channel knows why.
json before_tracking(const json& side_channel) {
  const auto text = [&](const char* key) {
    return side_channel.is_object() ? side_channel.value(key, std::string()) : std::string();
  };
  json job = {{"training", 0}, {"verified", 0}, {"durable", 0}, {"published", 0}, {"gaps", json::array()}};
  job["state"] = side_channel.is_object() ? text("state") : std::string("unattached");
  const auto gap = [&](GapReason reason, const std::string& evidence, const char* action) {
    job["gaps"].push_back({{"reason", static_cast<unsigned>(reason)},
                           {"name", gap_reason_name(reason)},
                           {"since_step", 0},
                           {"evidence", evidence},
                           {"action", action}});
  };
  if (const std::string refusal = text("refusal"); !refusal.empty())
    gap(GapReason::kUnsupported, refusal, "the job trains untapped");
  else if (text("state") == "probe_pending" || text("state") == "baseline_pending")
    gap(GapReason::kBaselinePending,
        fmt::format("{}: {} of {} chunks", text("state"), side_channel.value("chunks", 0),
                    side_channel.value("chunks_total", 0)),
        "the trainer uploads the state of its first step");
  return job;
}

json own_rates(const AdminState& state) {
  if (!state.options.capacity) return nullptr;
  json body = capacity::to_json(state.options.capacity());
  body["measured"] = state.options.capacity_measured && state.options.capacity_measured();
  return body;
}

// A job that was admitted and turned out to ask for more than the nodes have.
void warn_of_capacity(json& job, const json& side_channel) {
  if (!side_channel.is_object() || !side_channel.contains("admission")) return;
  const json& admission = side_channel["admission"];
  if (admission.value("fits", true) || !admission.value("refusal", std::string()).empty()) return;
  job["warnings"].push_back("capacity: " + admission.value("verdict", std::string()));
}

using Answer = std::function<void(json)>;

// While there is time to do something about it.
constexpr std::int64_t kCertificateWarningDays = 30;

std::string certificate_warning(std::uint64_t expires_s, std::uint64_t now_ms) {
  const auto left = static_cast<std::int64_t>(expires_s) - static_cast<std::int64_t>(now_ms / 1000);
  const std::int64_t days = left / 86400;
  if (expires_s == 0 || days >= kCertificateWarningDays) return {};
  if (left <= 0) return "this node's certificate has expired: no new connection with a peer can be made";
  return fmt::format("this node's certificate expires in {}: gradtap ca rotate",
                     days > 0 ? fmt::format("{} days", days) : fmt::format("{} hours", left / 3600));
}

void own_status(AdminPointer self, Answer answer) {
  auto gathering = std::make_shared<Gathering>();
  gathering->open = 1;  // held until every question is out
  gathering->done = [self, answer = std::move(answer)](Gathering& all) {
    const AdminState& s = self->state;
    json coordinator = answer_of(all, "coordinator");
    const json side_channel = answer_of(all, "side_channel");
    const json membership = answer_of(all, "membership");
    if (!coordinator.is_object()) coordinator = before_tracking(side_channel);
    warn_of_capacity(coordinator, side_channel);
    coordinator["job"] = s.options.job;
    if (!coordinator.contains("lineage") && side_channel.is_object())
      coordinator["lineage"] = side_channel.value("lineage", 0);
    json actors = json::object();
    for (const auto& [who, body] : all.answers)
      if (who != "coordinator" && who != "membership") actors[who] = body;
    json body = {
        {"node", s.options.node}, {"uptime_s", (s.options.clock->monotonic_ns() - s.started_ns) / 1'000'000'000},
        {"tap", s.options.tap},   {"jobs", json::array({coordinator})},
        {"actors", actors},       {"absent", all.absent}};
    body["warnings"] = s.options.warnings;
    body["rates"] = own_rates(s);
    if (membership.is_object() && s.options.metrics != nullptr) {
      json link = json::object();
      for (const MetricValue& metric : s.options.metrics->snapshot()) link[metric.name] = metric.value;
      const std::string expiry =
          certificate_warning(link.value("link.certificate_expires_s", std::uint64_t{0}), s.options.clock->wall_ms());
      if (!expiry.empty()) body["warnings"].push_back(expiry);
      body["link"] = std::move(link);
    }
    if (membership.is_object())
      for (const char* key : {"members", "home", "security", "replicas", "epoch"})
        body[key] = membership.value(key, json());
    answer(std::move(body));
  };
  ask_everybody(self, gathering);
  gathering->close_one();
}

void own_shards(AdminPointer self, Answer answer) {
  auto gathering = std::make_shared<Gathering>();
  gathering->open = 1;
  gathering->done = [self, answer = std::move(answer)](Gathering& all) {
    json shards = json::array();
    for (auto& [who, body] : all.answers) {
      body["node"] = self->state.options.node;
      shards.push_back(std::move(body));
    }
    answer(json{{"shards", shards}, {"absent", all.absent}});
  };
  const Wiring& wiring = *self->state.wiring;
  for (std::size_t i = 0; i < wiring.owners.size(); ++i)
    ask(self, gathering, wiring.owners[i], "owner." + std::to_string(i));
  gathering->close_one();
}

void own_digests(AdminPointer self, std::uint64_t from, std::uint64_t to, Answer answer) {
  if (!self->state.wiring->coordinator) return answer(json{{"digests", json::array()}});
  self->request(self->state.wiring->coordinator, kDeadline, digests_atom_v, from, to)
      .then([answer](const HttpAnswer& got) { answer(json::parse(got.body, nullptr, false)); },
            [answer](const caf::error&) {
              answer(json{{"digests", json::array()}, {"absent", json::array({"coordinator"})}});
            });
}

// What every live peer answers, by member name; the names of those that do not.
void ask_peers(AdminPointer self, const std::string& what, const std::string& argument,
               const std::function<void(json answers, std::vector<std::string> absent)>& answer) {
  const AdminState& state = self->state;
  if (!state.wiring->membership) return answer(json::object(), {});
  const auto missing = [cluster = state.options.cluster](const json& answers) {
    std::vector<std::string> absent;
    for (MemberIndex member = 0; member < cluster->size(); ++member)
      if (member != cluster->self() && !answers.contains(cluster->name(member)))
        absent.push_back(cluster->name(member));
    return absent;
  };
  self->request(state.wiring->membership, kDeadline, ask_atom_v, what, argument)
      .then(
          [answer, missing](const HttpAnswer& got) {
            json answers = json::parse(got.body, nullptr, false);
            if (!answers.is_object()) answers = json::object();
            auto absent = missing(answers);
            answer(std::move(answers), std::move(absent));
          },
          [answer, missing](const caf::error&) { answer(json::object(), missing(json::object())); });
}

// Two parts of an answer, whichever comes first.
struct Pair {
  json own;
  json peers;
  std::vector<std::string> absent;
  int open = 2;
  std::function<void(Pair&)> done;
  void close_one() {
    if (--open == 0) done(*this);
  }
};

void whole(AdminPointer self, const std::string& what, const std::string& argument,
           const std::function<void(Answer)>& own, std::function<void(Pair&)> done) {
  auto pair = std::make_shared<Pair>();
  pair->done = std::move(done);
  own([pair](json body) {
    pair->own = std::move(body);
    pair->close_one();
  });
  ask_peers(self, what, argument, [pair](json answers, std::vector<std::string> absent) {
    pair->peers = std::move(answers);
    pair->absent = std::move(absent);
    pair->close_one();
  });
}

std::string text_of(const json& body) {
  return body.dump(-1, ' ', false, json::error_handler_t::replace);
}

caf::result<HttpAnswer> starting(AdminPointer self) {
  auto promise = self->make_response_promise<HttpAnswer>();
  promise.deliver(http_error({ErrorCode::kNodeBusy, "the node is starting", {}, {}, {}, "ask again"}));
  return promise;
}

caf::result<HttpAnswer> status(AdminPointer self, const std::string& job) {
  auto promise = self->make_response_promise<HttpAnswer>();
  whole(
      self, "status", {}, [self](Answer answer) { own_status(self, std::move(answer)); },
      [promise, job](Pair& pair) mutable {
        if (!job.empty()) {
          promise.deliver(HttpAnswer{200, text_of(pair.own["jobs"][0])});
          return;
        }
        json nodes = json::array();
        for (auto& [name, body] : pair.peers.items())
          if (body.is_object()) nodes.push_back(std::move(body));
        pair.own["nodes"] = std::move(nodes);
        for (const std::string& name : pair.absent) pair.own["absent"].push_back(name);
        promise.deliver(HttpAnswer{200, text_of(pair.own)});
      });
  return promise;
}

caf::result<HttpAnswer> shards(AdminPointer self) {
  auto promise = self->make_response_promise<HttpAnswer>();
  whole(
      self, "shards", {}, [self](Answer answer) { own_shards(self, std::move(answer)); },
      [promise](Pair& pair) mutable {
        json list = std::move(pair.own["shards"]);
        for (const auto& [name, body] : pair.peers.items())
          if (body.is_object() && body.contains("shards") && body["shards"].is_array())
            for (const json& shard : body["shards"])
              if (shard.is_object()) list.push_back(shard);
        std::sort(list.begin(), list.end(), [](const json& a, const json& b) {
          const auto key = [](const json& x) { return std::pair(x.value("shard", 0), x.value("node", std::string())); };
          return key(a) < key(b);
        });
        for (const std::string& name : pair.absent) pair.own["absent"].push_back(name);
        promise.deliver(HttpAnswer{200, text_of({{"shards", list}, {"absent", pair.own["absent"]}})});
      });
  return promise;
}

caf::result<HttpAnswer> digests(AdminPointer self, std::uint64_t from, std::uint64_t to) {
  auto promise = self->make_response_promise<HttpAnswer>();
  whole(
      self, "digests", fmt::format("{}:{}", from, to),
      [self, from, to](Answer answer) { own_digests(self, from, to, std::move(answer)); },
      [promise](Pair& pair) mutable {
        std::map<std::uint64_t, std::string> roots;
        const auto take = [&](const json& body) {
          if (!body.is_object() || !body.contains("digests") || !body["digests"].is_array()) return;
          for (const json& entry : body["digests"])
            if (entry.is_object() && entry.contains("step") && entry["step"].is_number_unsigned() &&
                entry.contains("root") && entry["root"].is_string())
              roots.emplace(entry["step"].get<std::uint64_t>(), entry["root"].get<std::string>());
        };
        take(pair.own);
        for (const auto& [name, body] : pair.peers.items()) take(body);
        json list = json::array();
        for (const auto& [step, root] : roots) list.push_back({{"step", step}, {"root", root}});
        promise.deliver(HttpAnswer{200, text_of({{"digests", list}, {"absent", pair.absent}})});
      });
  return promise;
}

caf::result<HttpAnswer> own_part(AdminPointer self, const std::string& what, const std::string& argument) {
  auto promise = self->make_response_promise<HttpAnswer>();
  const Answer answer = [promise](const json& body) mutable { promise.deliver(HttpAnswer{200, text_of(body)}); };
  if (what == "status") {
    own_status(self, answer);
  } else if (what == "shards") {
    own_shards(self, answer);
  } else if (what == "capacity") {
    answer(own_rates(self->state));
  } else {
    const std::string_view text = argument;
    const std::size_t colon = text.find(':');
    const auto from = parse_integer<std::uint64_t>(text.substr(0, colon));
    const auto to = parse_integer<std::uint64_t>(colon == std::string_view::npos ? "" : text.substr(colon + 1));
    own_digests(self, from.value_or(0), to.value_or(0), answer);
  }
  return promise;
}

AdminActor::behavior_type admin(AdminPointer self, const AdminOptions& options) {
  self->state.options = options;
  self->state.started_ns = options.clock->monotonic_ns();
  return {
      [self](status_atom, const std::string& job) -> caf::result<HttpAnswer> {
        ++self->state.questions;
        return self->state.wiring ? status(self, job) : starting(self);
      },
      [self](shards_atom) -> caf::result<HttpAnswer> {
        ++self->state.questions;
        return self->state.wiring ? shards(self) : starting(self);
      },
      [self](digests_atom, std::uint64_t from, std::uint64_t to) -> caf::result<HttpAnswer> {
        ++self->state.questions;
        return self->state.wiring ? digests(self, from, to) : starting(self);
      },
      [self](ask_atom, const std::string& what, const std::string& argument) -> caf::result<HttpAnswer> {
        ++self->state.questions;
        return self->state.wiring ? own_part(self, what, argument) : starting(self);
      },
      [self](wire_atom, const WiringPtr& wiring) { self->state.wiring = wiring; },
      [self](status_atom) {
        const json body = {{"questions", self->state.questions}, {"absences", self->state.absences}};
        return ActorStatus{AdminState::name, body.dump()};
      },
  };
}

}  // namespace

AdminActor spawn_admin(caf::actor_system& system, AdminOptions options) {
  return system.spawn(admin, std::move(options));
}

}  // namespace gradtap::actors
