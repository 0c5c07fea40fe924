#include "actors/admin.h"

#include <functional>
#include <memory>
#include <utility>
#include <vector>

#include <fmt/format.h>
#include <nlohmann/json.hpp>

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

AdminActor::behavior_type admin(AdminPointer self, const AdminOptions& options) {
  self->state.options = options;
  self->state.started_ns = options.clock->monotonic_ns();
  return {
      [self](status_atom, const std::string& job) -> caf::result<HttpAnswer> {
        auto promise = self->make_response_promise<HttpAnswer>();
        AdminState& state = self->state;
        ++state.questions;
        if (!state.wiring) {
          promise.deliver(http_error({ErrorCode::kNodeBusy, "the node is starting", {}, {}, {}, "ask again"}));
          return promise;
        }
        auto gathering = std::make_shared<Gathering>();
        gathering->open = 1;  // held until every question is out
        gathering->done = [self, promise, job](Gathering& all) mutable {
          const AdminState& s = self->state;
          json coordinator = answer_of(all, "coordinator");
          const json side_channel = answer_of(all, "side_channel");
          if (!coordinator.is_object()) coordinator = before_tracking(side_channel);
          coordinator["job"] = s.options.job;
          if (!coordinator.contains("lineage") && side_channel.is_object())
            coordinator["lineage"] = side_channel.value("lineage", 0);
          if (!job.empty()) {
            promise.deliver(HttpAnswer{200, coordinator.dump()});
            return;
          }
          json actors = json::object();
          for (const auto& [who, body] : all.answers)
            if (who != "coordinator") actors[who] = body;
          const json body = {
              {"node", s.options.node}, {"uptime_s", (s.options.clock->monotonic_ns() - s.started_ns) / 1'000'000'000},
              {"tap", s.options.tap},   {"jobs", json::array({coordinator})},
              {"actors", actors},       {"absent", all.absent}};
          promise.deliver(HttpAnswer{200, body.dump()});
        };
        ask_everybody(self, gathering);
        gathering->close_one();
        return promise;
      },
      [self](shards_atom) -> caf::result<HttpAnswer> {
        auto promise = self->make_response_promise<HttpAnswer>();
        ++self->state.questions;
        auto gathering = std::make_shared<Gathering>();
        gathering->open = 1;
        gathering->done = [promise](Gathering& all) mutable {
          json shards = json::array();
          for (auto& [who, body] : all.answers) shards.push_back(std::move(body));
          std::sort(shards.begin(), shards.end(),
                    [](const json& a, const json& b) { return a.value("shard", 0) < b.value("shard", 0); });
          promise.deliver(HttpAnswer{200, json{{"shards", shards}, {"absent", all.absent}}.dump()});
        };
        if (self->state.wiring)
          for (std::size_t i = 0; i < self->state.wiring->owners.size(); ++i)
            ask(self, gathering, self->state.wiring->owners[i], "owner." + std::to_string(i));
        gathering->close_one();
        return promise;
      },
      [self](digests_atom, std::uint64_t from, std::uint64_t to) -> caf::result<HttpAnswer> {
        auto promise = self->make_response_promise<HttpAnswer>();
        if (!self->state.wiring || !self->state.wiring->coordinator) {
          promise.deliver(HttpAnswer{200, R"({"digests":[]})"});
          return promise;
        }
        self->request(self->state.wiring->coordinator, kDeadline, digests_atom_v, from, to)
            .then([promise](const HttpAnswer& answer) mutable { promise.deliver(answer); },
                  [promise](const caf::error&) mutable {
                    promise.deliver(http_error({ErrorCode::kTimeout,
                                                "the coordinator did not answer within 1 s",
                                                "coordinator",
                                                {},
                                                {},
                                                "ask again; see gradtap status"}));
                  });
        return promise;
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
