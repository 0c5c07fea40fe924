#include "actors/admin.h"

#include <memory>
#include <optional>
#include <string_view>
#include <utility>
#include <vector>

#include <nlohmann/json.hpp>

#include "actors/admin_state.h"
#include "actors/cluster_answer.h"
#include "common/number_text.h"

namespace gradtap::actors {

namespace {

using nlohmann::json;

std::string answer_text(const json& body) {
  return body.dump(-1, ' ', false, json::error_handler_t::replace);
}

// Its numbers, separated by colons; nothing: it is no argument of this question.
std::optional<std::vector<std::uint64_t>> numbers_of(const ClusterQuestion& question, std::string_view argument) {
  std::vector<std::uint64_t> numbers;
  while (!argument.empty()) {
    const std::size_t colon = argument.find(':');
    const auto number = parse_integer<std::uint64_t>(argument.substr(0, colon));
    if (!number || numbers.size() == question.numbers_max) return std::nullopt;
    numbers.push_back(*number);
    argument.remove_prefix(colon == std::string_view::npos ? argument.size() : colon + 1);
  }
  return numbers.size() < question.numbers_min ? std::nullopt : std::optional(numbers);
}

// What every live peer answers, by member name; of the others the names.
void ask_peers(AdminPointer self, const std::string& what, const std::string& argument,
               const std::function<void(json answers, std::vector<std::string> absent)>& answer) {
  const AdminState& state = self->state;
  if (!state.wiring->membership) return answer(json::object(), {});
  const auto deliver = [self, answer](json answers) {
    const ClusterState& cluster = *self->state.options.cluster;
    if (!answers.is_object()) answers = json::object();
    std::vector<std::string> absent;
    for (MemberIndex member = 0; member < cluster.size(); ++member)
      if (member != cluster.self() && !cluster.is_out(member) && !answers.contains(cluster.name(member)))
        absent.push_back(cluster.name(member));
    self->state.absences += absent.size();
    answer(std::move(answers), std::move(absent));
  };
  self->request(state.wiring->membership, self->state.options.deadlines.whole(), ask_atom_v, what, argument)
      .then([deliver](const HttpAnswer& got) { deliver(json::parse(got.body, nullptr, false)); },
            [deliver](const caf::error&) { deliver(json::object()); });
}

HttpAnswer unknown_question(const std::string& what, const std::string& argument) {
  return http_error({ErrorCode::kRequestMalformed,
                     "nobody here answers that",
                     what.substr(0, 32) + " " + argument.substr(0, 64),
                     "a question of docs/side-channel.md, Reading",
                     {},
                     {}});
}

// One question on its way: to this node's own actors and to the peers.
struct Whole {
  const ClusterQuestion* question = nullptr;
  caf::typed_response_promise<HttpAnswer> promise;
  ClusterParts parts;
  std::uint64_t asked_ns = 0;
  int open = 2;

  void close_one(const Clock& clock) {
    if (--open > 0) return;
    parts.age_ms = (clock.monotonic_ns() - asked_ns) / 1'000'000;
    promise.deliver(HttpAnswer{200, answer_text(merge_answer(*question, parts))});
  }
};

caf::result<HttpAnswer> whole_answer(AdminPointer self, const std::string& what, const std::string& argument) {
  const auto whole = std::make_shared<Whole>();
  whole->promise = self->make_response_promise<HttpAnswer>();
  whole->question = cluster_question(what);
  const auto numbers = whole->question != nullptr ? numbers_of(*whole->question, argument) : std::nullopt;
  if (!numbers) {
    whole->promise.deliver(unknown_question(what, argument));
    return whole->promise;
  }
  whole->parts.asked = self->state.options.node;
  whole->asked_ns = self->state.options.clock->monotonic_ns();
  const auto promise = whole->promise;
  own_part(self, *whole->question, *numbers, [self, whole](json body) {
    whole->parts.parts.insert_or_assign(whole->parts.asked, std::move(body));
    whole->close_one(*self->state.options.clock);
  });
  if (!whole->question->everywhere) {
    whole->close_one(*self->state.options.clock);
    return promise;
  }
  ask_peers(self, what, argument, [self, whole](json answers, std::vector<std::string> absent) {
    for (auto& [name, body] : answers.items()) whole->parts.parts.emplace(name, std::move(body));
    whole->parts.absent = std::move(absent);
    whole->close_one(*self->state.options.clock);
  });
  return promise;
}

caf::result<HttpAnswer> own_answer(AdminPointer self, const std::string& what, const std::string& argument) {
  auto promise = self->make_response_promise<HttpAnswer>();
  if (what == "capacity") {
    promise.deliver(HttpAnswer{200, answer_text(own_rates(self->state))});
    return promise;
  }
  const ClusterQuestion* question = cluster_question(what);
  const auto numbers = question != nullptr ? numbers_of(*question, argument) : std::nullopt;
  if (!numbers)
    promise.deliver(unknown_question(what, argument));
  else
    own_part(self, *question, *numbers,
             [promise](const json& body) mutable { promise.deliver(HttpAnswer{200, answer_text(body)}); });
  return promise;
}

caf::result<HttpAnswer> starting(AdminPointer self) {
  auto promise = self->make_response_promise<HttpAnswer>();
  promise.deliver(http_error({ErrorCode::kNodeBusy, "the node is starting", {}, {}, {}, "ask again"}));
  return promise;
}

AdminActor::behavior_type admin(AdminPointer self, const AdminOptions& options) {
  self->state.options = options;
  self->state.started_ns = options.clock->monotonic_ns();
  return {
      [self](whole_atom, const std::string& what, const std::string& argument) -> caf::result<HttpAnswer> {
        ++self->state.questions;
        return self->state.wiring ? whole_answer(self, what, argument) : starting(self);
      },
      [self](ask_atom, const std::string& what, const std::string& argument) -> caf::result<HttpAnswer> {
        ++self->state.questions;
        return self->state.wiring ? own_answer(self, what, argument) : starting(self);
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
