#include "actors/store_catalog.h"

#include <algorithm>
#include <optional>
#include <utility>

#include <nlohmann/json.hpp>

namespace gradtap::actors {

namespace {

using nlohmann::json;

struct CatalogState {
  static inline const char* name = "store_catalog";
  std::shared_ptr<const storage::ShardStore> store;
  WiringPtr wiring;
  std::uint64_t questions = 0;
};

using CatalogPointer = CatalogActor::stateful_pointer<CatalogState>;

ActorStatus said(const json& body) {
  return {CatalogState::name, body.dump(-1, ' ', false, json::error_handler_t::replace)};
}

CatalogActor::behavior_type catalog(CatalogPointer self, const std::shared_ptr<const storage::ShardStore>& store) {
  self->state.store = store;
  return {
      [self](shards_atom) {
        ++self->state.questions;
        if (!self->state.wiring || !self->state.wiring->plan) return said({{"marks", json::array()}});
        return said(stored_shards(*self->state.store, *self->state.wiring->plan));
      },
      [self](version_atom, std::uint64_t shard, std::uint64_t step) {
        ++self->state.questions;
        const bool there =
            self->state.wiring && self->state.wiring->plan && shard < self->state.wiring->plan->shards.shards().size();
        if (!there) return said(json::object());
        return said(stored_version(*self->state.store, *self->state.wiring->plan, static_cast<ShardId>(shard), step));
      },
      [self](wire_atom, const WiringPtr& wiring) { self->state.wiring = wiring; },
      [self](status_atom) { return said({{"questions", self->state.questions}}); },
  };
}

}  // namespace

json stored_shards(const storage::ShardStore& store, const JobPlan& plan) {
  const auto marks = store.marks(plan.job, plan.lineage);
  if (!marks) return {{"marks", json::array()}, {"error", marks.error().text()}};
  json list = json::array();
  for (const storage::Mark& mark : *marks)
    list.push_back({{"shard", mark.shard},
                    {"durable", mark.version},
                    {"full", mark.full},
                    {"log_from", mark.log_from},
                    {"log_to", mark.log_to},
                    {"digest", to_hex(mark.state_digest)}});
  return {{"marks", std::move(list)}};
}

json stored_version(const storage::ShardStore& store, const JobPlan& plan, ShardId shard, StepNumber step) {
  json body = {{"digest", nullptr}, {"can_produce", false}, {"full", nullptr}, {"durable", nullptr}};
  const auto marks = store.marks(plan.job, plan.lineage);
  if (!marks) {
    body["error"] = marks.error().text();
    return body;
  }
  const auto mark = std::find_if(marks->begin(), marks->end(), [&](const auto& each) { return each.shard == shard; });
  if (mark == marks->end()) return body;
  body["durable"] = mark->version;
  const auto digest = store.state_digest(plan.job, plan.lineage, shard, step);
  if (digest) body["digest"] = to_hex(*digest);
  const auto fulls = store.full_steps(plan.job, plan.lineage, shard);
  if (!fulls) {
    body["error"] = fulls.error().text();
    return body;
  }
  std::optional<StepNumber> full;
  for (const StepNumber each : *fulls)
    if (each <= step && (!full || each > *full)) full = each;
  // From the full version to the step every log must be there; what is past the mark does not count.
  const bool whole =
      full && step <= mark->version && (*full == step || (mark->log_from <= *full + 1 && step <= mark->log_to));
  if (!whole) return body;
  body["full"] = *full;
  body["can_produce"] = digest.has_value();  // without its digest nobody could tell that it is right
  return body;
}

CatalogActor spawn_store_catalog(caf::actor_system& system, std::shared_ptr<const storage::ShardStore> store) {
  return system.spawn<caf::detached>(catalog, std::move(store));
}

}  // namespace gradtap::actors
