#include "actors/supervisor.h"

#include <map>

#include <fmt/format.h>
#include <nlohmann/json.hpp>

#include "common/log.h"

namespace gradtap::actors {

namespace {

struct SupervisorState {
  static inline const char* name = "supervisor";
  SupervisorOptions options;
  std::map<caf::actor_addr, std::string> watched;
  std::uint64_t deaths = 0;
  std::string last_death;
};

using SupervisorPointer = SupervisorActor::stateful_pointer<SupervisorState>;

SupervisorActor::behavior_type supervisor(SupervisorPointer self, const SupervisorOptions& options) {
  self->state.options = options;
  self->set_down_handler([self](const caf::down_msg& down) {
    SupervisorState& state = self->state;
    const auto it = state.watched.find(down.source);
    if (it == state.watched.end()) return;
    const std::string who = it->second;
    state.watched.erase(it);
    if (down.reason == caf::exit_reason::user_shutdown) return;
    const std::string why = self->system().render(down.reason);
    ++state.deaths;
    state.last_death = who + ": " + why;
    state.options.events->add(LogLevel::kError, "an actor died", {{"actor", who}, {"reason", why}});
    state.options.on_death(who, why);
  });
  return {
      [self](watch_atom, const caf::strong_actor_ptr& actor, const std::string& who) {
        if (!actor) return;
        self->state.watched[caf::actor_cast<caf::actor_addr>(actor)] = who;
        self->monitor(caf::actor_cast<caf::actor>(actor));
      },
      [self](status_atom) {
        const SupervisorState& state = self->state;
        const nlohmann::json body = {
            {"watched", state.watched.size()}, {"deaths", state.deaths}, {"last_death", state.last_death}};
        return ActorStatus{SupervisorState::name, body.dump()};
      },
  };
}

}  // namespace

SupervisorActor spawn_supervisor(caf::actor_system& system, SupervisorOptions options) {
  return system.spawn(supervisor, std::move(options));
}

}  // namespace gradtap::actors
