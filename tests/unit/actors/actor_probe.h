// Probe: plays any actor towards the one under test, and waits for what it says.
#pragma once

#include <chrono>
#include <optional>
#include <string>

#include <doctest/doctest.h>
#include <nlohmann/json.hpp>

#include "actors/interfaces.h"

namespace gradtap::actors::test {

using namespace std::chrono_literals;

struct Probe {
  explicit Probe(caf::actor_system& system) : self(system) {}

  template <class Handle>
  [[nodiscard]] Handle as() {
    return caf::actor_cast<Handle>(pointer());
  }
  [[nodiscard]] caf::strong_actor_ptr pointer() { return caf::actor_cast<caf::strong_actor_ptr>(self); }

  // The next message (atom, T); others stay where they are.
  template <class T, class Atom>
  [[nodiscard]] std::optional<T> next(Atom, std::chrono::milliseconds most = 20s) {
    std::optional<T> got;
    self->receive([&](Atom, const T& value) { got = value; }, caf::after(most) >> [] {});
    return got;
  }
  template <class T, class Atom>
  [[nodiscard]] T expect(Atom atom) {
    auto got = next<T>(atom);
    REQUIRE(got);
    return *got;
  }
  template <class T, class Atom>
  [[nodiscard]] bool silent(Atom atom) {
    return !next<T>(atom, 60ms);
  }
  // A record comes with its owner, who is to be told.
  [[nodiscard]] std::optional<ShardRecordPtr> next_record(std::chrono::milliseconds most = 20s) {
    std::optional<ShardRecordPtr> got;
    self->receive(
        [&](record_atom, const ShardRecordPtr& record, const caf::strong_actor_ptr& owner) {
          CHECK(owner != nullptr);
          got = record;
        },
        caf::after(most) >> [] {});
    return got;
  }
  [[nodiscard]] ShardRecordPtr expect_record() {
    auto got = next_record();
    REQUIRE(got);
    return *got;
  }
  // Asking also means: everything sent to it before has been dealt with.
  template <class Handle>
  [[nodiscard]] nlohmann::json status(const Handle& actor, std::string* name = nullptr) {
    nlohmann::json body;
    self->request(actor, 20s, status_atom_v)
        .receive(
            [&](const ActorStatus& status) {
              body = nlohmann::json::parse(status.json);
              if (name != nullptr) *name = status.name;
            },
            [&](const caf::error& error) { FAIL(self->system().render(error)); });
    return body;
  }
  template <class Answer, class Handle, class... Args>
  [[nodiscard]] Answer ask(const Handle& actor, const Args&... args) {
    Answer answer;
    self->request(actor, 20s, args...)
        .receive([&](const Answer& got) { answer = got; },
                 [&](const caf::error& error) { FAIL(self->system().render(error)); });
    return answer;
  }
  template <class Handle>
  void end(const Handle& actor) {
    self->send_exit(actor, caf::exit_reason::user_shutdown);
  }

  caf::scoped_actor self;
};

}  // namespace gradtap::actors::test
