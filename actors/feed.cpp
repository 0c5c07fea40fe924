#include "actors/feed.h"

#include <utility>

#include <nlohmann/json.hpp>

#include "actors/recovery.h"
#include "actors/side_channel.h"
#include "storage/key.h"

namespace gradtap::actors {

namespace {

constexpr std::chrono::milliseconds kKeeperDeadline{5000};

struct FeedState {
  static inline const char* name = "feed";
  FeedOptions options;
  JobId job{};
  JobPlanPtr plan;
  CoordinatorActor coordinator;
  SideChannelActor side_channel;
  std::uint64_t batches = 0;
  std::uint64_t steps = 0;
  std::uint64_t layouts = 0;
  std::uint64_t lineages = 0;
  std::uint64_t foreign = 0;
  std::uint64_t malformed = 0;
  std::uint64_t older_sessions = 0;
  std::string last_error;
};

using FeedPointer = FeedActor::stateful_pointer<FeedState>;

bool is_session(const storage::SideKey& key) {
  return key.kind == storage::SideKind::kOther && key.suffix == "session";
}

// Scans and pushes may cross: the session that has received more is the newer one.
bool older_session(const FeedState& state, const storage::SideEntry& entry) {
  const auto stored = state.options.store->get_side(entry.key);
  if (!stored) return false;
  const auto ours = decode_session(*stored);
  const auto theirs = decode_session(entry.bytes);
  return ours && theirs && ours->id == theirs->id && ours->received_seq > theirs->received_seq;
}

void wrong(FeedState& state, const Error& error) {
  ++state.malformed;
  state.last_error = error.text();
}

void tell(FeedPointer self, const storage::SideKey& key, const storage::SideEntry& entry) {
  FeedState& state = self->state;
  if (key.kind == storage::SideKind::kLineage) {
    const auto record = schema::decode_lineage(entry.bytes);
    if (!record) return wrong(state, record.error());
    if (record->recipe_id.empty()) return;  // its attach is not that far
    ++state.lineages;
    Launched launched = state.options.launch(*record);
    if (!launched.plan) return;
    state.plan = launched.plan;
    state.coordinator = launched.coordinator;
    // What came before the record lies in the store.
    const auto kept = read_feed(*state.options.store, *state.plan, state.plan->base_step);
    if (!kept) return wrong(state, kept.error());
    for (const LayoutPtr& layout : kept->layouts) self->send(state.coordinator, layout_atom_v, layout);
    for (const StepMessagePtr& message : kept->messages) self->send(state.coordinator, step_atom_v, message);
    return;
  }
  if (!state.plan || !state.coordinator || key.lineage != state.plan->lineage) return;
  if (key.kind == storage::SideKind::kLayout) {
    const auto layout = read_layout(*state.plan, entry.bytes);
    if (!layout) return wrong(state, layout.error());
    ++state.layouts;
    self->send(state.coordinator, layout_atom_v, *layout);
  } else if (key.kind == storage::SideKind::kStepMessage && key.rank == 0) {
    const auto message = read_message(*state.plan, entry.bytes);
    if (!message) return wrong(state, message.error());
    ++state.steps;
    self->send(state.coordinator, step_atom_v, *message);
  }
}

caf::result<Outcome> take(FeedPointer self, const SideEntriesPtr& entries) {
  FeedState& state = self->state;
  ++state.batches;
  auto kept = std::make_shared<SideEntries>();
  auto keys = std::make_shared<std::vector<storage::SideKey>>();
  for (const storage::SideEntry& entry : entries->entries) {
    const auto key = storage::parse_side_key(entry.key);
    if (!key || key->job != state.job) {
      ++state.foreign;
      continue;
    }
    if (is_session(*key) && older_session(state, entry)) {
      ++state.older_sessions;
      continue;
    }
    keys->push_back(*key);
    kept->entries.push_back(entry);
  }
  auto promise = self->make_response_promise<Outcome>();
  self->request(state.options.keeper, kKeeperDeadline, side_atom_v, SideEntriesPtr(kept))
      .then(
          [self, promise, kept, keys](const Outcome& outcome) mutable {
            if (outcome.ok) {
              auto sessions = std::make_shared<SideEntries>();
              for (std::size_t i = 0; i < keys->size(); ++i) {
                if (is_session((*keys)[i])) sessions->entries.push_back(kept->entries[i]);
                tell(self, (*keys)[i], kept->entries[i]);
              }
              if (!sessions->entries.empty() && self->state.side_channel)
                self->send(self->state.side_channel, side_atom_v, SideEntriesPtr(std::move(sessions)));
            }
            promise.deliver(outcome);
          },
          [self, promise](const caf::error&) mutable {
            promise.deliver(Outcome{
                false, {ErrorCode::kTimeout, "the store did not answer in time", {}, {}, {}, "see the node's log"}});
          });
  return promise;
}

FeedActor::behavior_type feed(FeedPointer self, const FeedOptions& options) {
  self->state.options = options;
  self->state.job = job_id(options.job_name);
  return {
      [self](side_atom, const SideEntriesPtr& entries) { return take(self, entries); },
      [self](wire_atom, const WiringPtr& wiring) {
        self->state.plan = wiring->plan;
        self->state.coordinator = wiring->coordinator;
        self->state.side_channel = wiring->side_channel;
      },
      [self](status_atom) {
        const FeedState& state = self->state;
        const nlohmann::json body = {{"batches", state.batches},       {"steps", state.steps},
                                     {"layouts", state.layouts},       {"lineages", state.lineages},
                                     {"foreign", state.foreign},       {"malformed", state.malformed},
                                     {"last_error", state.last_error}, {"older_sessions", state.older_sessions}};
        return ActorStatus{FeedState::name, body.dump(-1, ' ', false, nlohmann::json::error_handler_t::replace)};
      },
  };
}

}  // namespace

FeedActor spawn_feed(caf::actor_system& system, FeedOptions options) {
  return system.spawn(feed, std::move(options));
}

}  // namespace gradtap::actors
