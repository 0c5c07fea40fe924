// What the admin actor says for its own node: the actors here are asked, each with a deadline.
#include <algorithm>
#include <map>
#include <memory>
#include <utility>

#include <fmt/format.h>

#include "actors/admin_state.h"
#include "actors/limit_table.h"
#include "actors/memory_report.h"
#include "capacity/node_json.h"

namespace gradtap::actors {

namespace {

using nlohmann::json;
using Answer = AdminAnswer;

constexpr std::size_t kEventsPerNode = 1000;
constexpr std::size_t kEventBytesPerNode = std::size_t{1} << 20;

// Collects answers until the last one is in or its deadline has passed.
struct OpenParts {
  std::size_t open = 0;
  std::vector<std::pair<std::string, json>> answers;  // in order of arrival
  std::vector<std::string> absent;
  std::function<void(OpenParts&)> done;

  void close_one() {
    if (--open == 0) done(*this);
  }
};
using PartsPtr = std::shared_ptr<OpenParts>;

// Held open until every question is out: whoever opens it closes one.
PartsPtr open_gathering(std::function<void(OpenParts&)> done) {
  auto gathering = std::make_shared<OpenParts>();
  gathering->open = 1;
  gathering->done = std::move(done);
  return gathering;
}

void miss(AdminPointer self, const PartsPtr& gathering, const std::string& who) {
  ++self->state.absences;
  gathering->absent.push_back(who);
  gathering->close_one();
}

template <class Handle, class... Question>
void ask_with(AdminPointer self, const PartsPtr& gathering, const Handle& target, const std::string& label,
              const Question&... question) {
  if (!target) return;
  ++gathering->open;
  self->request(target, self->state.options.deadlines.actor(), question...)
      .then(
          [gathering, label](const ActorStatus& status) {
            json body = json::parse(status.json, nullptr, false);
            gathering->answers.emplace_back(status.name.empty() ? label : status.name, std::move(body));
            gathering->close_one();
          },
          [self, gathering, label](const caf::error&) { miss(self, gathering, label); });
}

template <class Handle>
void ask(AdminPointer self, const PartsPtr& gathering, const Handle& target, const std::string& label) {
  ask_with(self, gathering, target, label, status_atom_v);
}

// Under "placement"; an answer is one also while no lineage is in force.
void ask_placement(AdminPointer self, const PartsPtr& gathering) {
  if (!self->state.wiring->coordinator) return;
  ++gathering->open;
  self->request(self->state.wiring->coordinator, self->state.options.deadlines.actor(), placement_atom_v)
      .then(
          [self, gathering](const PlacementViewPtr& view) {
            gathering->answers.emplace_back("placement", to_json(*view, self->state.options.cluster->names()));
            gathering->close_one();
          },
          [self, gathering](const caf::error&) { miss(self, gathering, "coordinator"); });
}

void ask_everybody(AdminPointer self, const PartsPtr& gathering) {
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
  ask(self, gathering, wiring.catalog, "store_catalog");
  for (std::size_t i = 0; i < wiring.replicators.size(); ++i)
    ask(self, gathering, wiring.replicators[i], "replicator." + std::to_string(i));
  for (std::size_t i = 0; i < wiring.ingress.size(); ++i)
    ask(self, gathering, wiring.ingress[i], "ingress." + std::to_string(i));
  for (std::size_t i = 0; i < wiring.assemblers.size(); ++i)
    ask(self, gathering, wiring.assemblers[i], "assembler." + std::to_string(i));
}

json answer_of(const OpenParts& gathering, const std::string& name) {
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

// A job that was admitted and turned out to ask for more than the nodes have.
void warn_of_capacity(json& job, const json& side_channel) {
  if (!side_channel.is_object() || !side_channel.contains("admission")) return;
  const json& admission = side_channel["admission"];
  if (admission.value("fits", true) || !admission.value("refusal", std::string()).empty()) return;
  job["warnings"].push_back("capacity: " + admission.value("verdict", std::string()));
}

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
  const auto gathering = open_gathering([self, answer = std::move(answer)](OpenParts& all) {
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
    body["absences"] = s.absences;
    if (s.options.memory) body["memory"] = memory_report(*s.options.memory);
    if (s.options.retention) {
      const RetentionCounters kept = s.options.retention->counters();
      body["retention"] = {{"bytes", kept.bytes},
                           {"steps", kept.steps},
                           {"evicted", kept.evicted},
                           {"served", kept.served},
                           {"not_held", kept.not_held}};
    }
    if (s.options.events) {
      const std::uint64_t dropped = s.options.events->dropped();
      body["events"] = {{"kept", s.options.events->next_seq() - 1 - dropped}, {"dropped", dropped}};
    }
    body["rates"] = own_rates(s);
    if (membership.is_object() && s.options.metrics != nullptr) {
      json link = json::object();
      for (const MetricValue& metric : s.options.metrics->snapshot()) link[metric.name] = metric.value;
      const std::string expiry =
          certificate_warning(link.value("link.certificate_expires_s", std::uint64_t{0}), s.options.clock->wall_ms());
      if (!expiry.empty()) body["warnings"].push_back(expiry);
      body["link"] = std::move(link);
    }
    if (membership.is_object()) {
      std::uint64_t downs = 0;
      for (const json& member : membership.value("members", json::array())) downs += member.value("downs", 0U);
      body["downs"] = downs;
    }
    if (membership.is_object())
      for (const char* key : {"members", "home", "security", "replicas", "epoch"})
        body[key] = membership.value(key, json());
    answer(std::move(body));
  });
  ask_everybody(self, gathering);
  gathering->close_one();
}

void own_limits(AdminPointer self, const Answer& answer) {
  // Owners are asked too: a status leaves them out.
  own_status(self, [self, answer](json status) {
    const auto gathering = open_gathering([self, answer, status = std::move(status)](OpenParts& all) mutable {
      for (auto& [who, body] : all.answers) status["actors"][who] = std::move(body);
      const AdminOptions& options = self->state.options;
      json body = {{"limits", limits_json(options.config, options.cluster_config, status)},
                   {"memory", status.value("memory", json())},
                   {"absent", status.value("absent", json::array())}};
      for (const std::string& who : all.absent) body["absent"].push_back(who);
      answer(std::move(body));
    });
    const Wiring& wiring = *self->state.wiring;
    for (std::size_t i = 0; i < wiring.owners.size(); ++i)
      ask(self, gathering, wiring.owners[i], "owner." + std::to_string(i));
    gathering->close_one();
  });
}

// Shards here: what their owners do, what the store has of them, and what the coordinator makes of both.
void own_shards(AdminPointer self, Answer answer) {
  const auto gathering = open_gathering([self, answer = std::move(answer)](OpenParts& all) {
    std::map<std::uint64_t, json> marks;
    if (const json catalog = answer_of(all, "store_catalog"); catalog.is_object())
      for (const json& mark : catalog.value("marks", json::array())) marks.emplace(mark.value("shard", 0U), mark);
    std::map<std::uint64_t, json> roles;
    if (const json placement = answer_of(all, "placement"); placement.is_object())
      for (const json& shard : placement.value("shards", json::array()))
        for (const json& holder : shard.value("holders", json::array()))
          if (holder.value("node", std::string()) == self->state.options.node)
            roles.emplace(shard.value("shard", 0U), holder);
    json shards = json::array();
    for (auto& [who, body] : all.answers) {
      if (!body.is_object() || !body.contains("shard")) continue;
      const auto id = body.value("shard", std::uint64_t{0});
      if (const auto mark = marks.find(id); mark != marks.end()) {
        for (const char* key : {"full", "log_from", "log_to"}) body[key] = mark->second[key];
        // The log follows on a full version: of the steps between, each can be produced.
        const auto from = mark->second.value("log_from", StepNumber{1});
        body["produces"] = {from > 0 ? from - 1 : 0, mark->second["durable"]};
      }
      if (const auto role = roles.find(id); role != roles.end()) {
        body["role"] = role->second["role"];
        body["waits_for"] = role->second.value("waits_for", std::string());
      }
      shards.push_back(std::move(body));
    }
    answer(json{{"shards", std::move(shards)}, {"absent", all.absent}});
  });
  const Wiring& wiring = *self->state.wiring;
  for (std::size_t i = 0; i < wiring.owners.size(); ++i)
    ask(self, gathering, wiring.owners[i], "owner." + std::to_string(i));
  ask_with(self, gathering, wiring.catalog, "store_catalog", shards_atom_v);
  ask_placement(self, gathering);
  gathering->close_one();
}

void own_digests(AdminPointer self, std::uint64_t from, std::uint64_t to, Answer answer) {
  if (!self->state.wiring->coordinator) return answer(json{{"digests", json::array()}});
  self->request(self->state.wiring->coordinator, self->state.options.deadlines.actor(), digests_atom_v, from, to)
      .then([answer](const HttpAnswer& got) { answer(json::parse(got.body, nullptr, false)); },
            [self, answer](const caf::error&) {
              ++self->state.absences;
              answer(json{{"digests", json::array()}, {"absent", json::array({"coordinator"})}});
            });
}

void own_placement(AdminPointer self, Answer answer) {
  const auto gathering = open_gathering([answer = std::move(answer)](OpenParts& all) {
    json body = answer_of(all, "placement");
    if (!body.is_object()) body = json{{"shards", json::array()}};
    body["absent"] = all.absent;
    answer(std::move(body));
  });
  ask_placement(self, gathering);
  gathering->close_one();
}

void own_version(AdminPointer self, std::uint64_t shard, std::uint64_t step, Answer answer) {
  const Wiring& wiring = *self->state.wiring;
  const auto gathering =
      open_gathering([shard, step, answer = std::move(answer), shards = wiring.owner_of.size()](OpenParts& all) {
        json body = answer_of(all, "store_catalog");
        if (!body.is_object()) body = json::object();
        body["shard"] = shard;
        body["step"] = step;
        body["shards"] = shards;
        // Applied, and not yet durable: known here, and nothing that could be handed out.
        for (const auto& [who, owner] : all.answers)
          if (owner.is_object() && owner.contains("digest") && owner.value("shard", ~std::uint64_t{0}) == shard &&
              owner.value("version", StepNumber{0}) == step && owner.value("state", std::string()) != "syncing" &&
              !body.value("digest", json()).is_string())
            body["digest"] = owner["digest"];
        body["absent"] = all.absent;
        answer(std::move(body));
      });
  ask_with(self, gathering, wiring.catalog, "store_catalog", version_atom_v, shard, step);
  if (shard < wiring.owner_of.size()) ask(self, gathering, wiring.owner_of[shard], "owner");
  gathering->close_one();
}

// What an epoch says of one of its members.
json facts_of(const schema::EpochMember& member) {
  return {{"name", member.name},     {"membership", member_state_name(member.state)},
          {"link", member.link},     {"http", member.http},
          {"domain", member.domain}, {"capacity", member.capacity}};
}

json members_here(const ClusterState& cluster, const json& membership) {
  json members = json::array();
  const json seen = membership.is_object() ? membership.value("members", json::array()) : json::array();
  for (MemberIndex member = 0; member < cluster.size(); ++member) {
    const schema::EpochMember facts = cluster.member(member);
    json age;
    for (const json& each : seen)
      if (each.value("name", std::string()) == facts.name) age = each.value("age_ms", json());
    members.push_back(facts_of(facts));
    members.back().update({{"tap", cluster.tap(member)}, {"age_ms", age}});
  }
  return members;
}

void own_nodes(AdminPointer self, Answer answer) {
  const auto gathering = open_gathering([self, answer = std::move(answer)](OpenParts& all) {
    const ClusterState& cluster = *self->state.options.cluster;
    const EpochPtr epoch = cluster.epoch();
    const auto home = cluster.home();
    const json epochs = answer_of(all, "epochs");
    json store_error;
    if (epochs.is_object() && epochs.value("failing", false)) store_error = epochs.value("last_error", std::string());
    if (std::find(all.absent.begin(), all.absent.end(), "epochs") != all.absent.end())
      store_error = "it has not answered yet";
    answer(json{{"ready", cluster.ready(cluster.self())},
                {"tap", cluster.tap(cluster.self())},
                {"home", home ? json(cluster.name(*home)) : json()},
                {"digest", to_hex(epoch->digest)},
                {"cause", epoch->record.cause},
                {"proposer", epoch->record.proposer},
                {"replicas", epoch->record.replicas},
                {"store_error", std::move(store_error)},
                {"members", members_here(cluster, answer_of(all, "membership"))},
                {"placement", answer_of(all, "placement")},
                {"absent", all.absent}});
  });
  ask(self, gathering, self->state.wiring->membership, "membership");
  ask(self, gathering, self->state.wiring->epochs, "epochs");
  ask_placement(self, gathering);
  gathering->close_one();
}

json own_epoch(const AdminState& state) {
  const EpochPtr epoch = state.options.cluster->epoch();
  const schema::EpochRecord& record = epoch->record;
  json members = json::array();
  for (const schema::EpochMember& member : record.members) {
    members.push_back(facts_of(member));
    members.back()["since_epoch"] = member.since_epoch;
  }
  json owners = json::array();
  for (const auto& shard : record.owners) {
    json names = json::array();
    for (const std::uint32_t owner : shard)
      if (owner < record.members.size()) names.push_back(record.members[owner].name);
    owners.push_back(std::move(names));
  }
  return {{"digest", to_hex(epoch->digest)},
          {"previous", to_hex(record.previous)},
          {"cause", record.cause},
          {"proposer", record.proposer},
          {"created_wall_ms", record.created_wall_ms},
          {"replicas", record.replicas},
          {"members", std::move(members)},
          {"owners", std::move(owners)}};
}

json event_json(const Event& event) {
  json fields = json::object();
  for (const LogField& field : event.fields) fields[field.key] = field.value;
  return {{"seq", event.seq},
          {"wall_ms", event.wall_ms},
          {"level", log_level_name(event.level)},
          {"text", event.text},
          {"fields", std::move(fields)}};
}

// From a number on the oldest, for whoever follows; otherwise the newest. `next` is where to go on.
json own_events(const AdminState& state, const std::vector<std::uint64_t>& from) {
  if (!state.options.events) return {{"events", json::array()}, {"next", 1}};
  const EventRing& ring = *state.options.events;
  const std::uint64_t next = ring.next_seq();
  const bool follows = !from.empty() && from[0] > 0;
  const std::uint64_t first = follows ? from[0] : next - std::min<std::uint64_t>(next - 1, kEventsPerNode);
  std::vector<Event> events = ring.since(first, kEventsPerNode);
  const auto bytes_of = [](const Event& event) {
    std::size_t bytes = event.text.size() + 100;
    for (const LogField& field : event.fields) bytes += field.key.size() + field.value.size() + 10;
    return bytes;
  };
  std::size_t bytes = 0;
  json list = json::array();
  std::uint64_t go_on = next;
  if (!follows) std::reverse(events.begin(), events.end());
  for (const Event& event : events) {
    bytes += bytes_of(event);
    if (bytes > kEventBytesPerNode) break;
    list.push_back(event_json(event));
    if (follows) go_on = event.seq + 1;
  }
  if (!follows) std::reverse(list.begin(), list.end());
  return {{"events", std::move(list)}, {"next", go_on}, {"dropped", ring.dropped()}};
}

}  // namespace

json own_rates(const AdminState& state) {
  if (!state.options.capacity) return nullptr;
  json body = capacity::to_json(state.options.capacity());
  body["measured"] = state.options.capacity_measured && state.options.capacity_measured();
  return body;
}

void own_part(AdminPointer self, const ClusterQuestion& question, const std::vector<std::uint64_t>& numbers,
              const Answer& answer) {
  const auto signed_answer = [self, answer](json body) {
    const AdminState& state = self->state;
    if (!body.is_object()) body = json::object();
    body["node"] = state.options.node;
    body["epoch"] = state.options.cluster->epoch_number();
    body["lineage"] = state.wiring->plan ? state.wiring->plan->lineage : 0;
    answer(std::move(body));
  };
  const std::string_view what = question.name;
  if (what == "status" || what == "job") return own_status(self, signed_answer);
  if (what == "shards") return own_shards(self, signed_answer);
  if (what == "digests") return own_digests(self, numbers[0], numbers[1], signed_answer);
  if (what == "placement") return own_placement(self, signed_answer);
  if (what == "version") return own_version(self, numbers[0], numbers[1], signed_answer);
  if (what == "nodes") return own_nodes(self, signed_answer);
  if (what == "limits") return own_limits(self, signed_answer);
  if (what == "epoch") return signed_answer(own_epoch(self->state));
  return signed_answer(own_events(self->state, numbers));
}

}  // namespace gradtap::actors
