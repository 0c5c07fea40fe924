#include "actors/replicator.h"

#include <utility>

#include <nlohmann/json.hpp>

#include "actors/side_batch.h"

namespace gradtap::actors {

namespace {

struct ReplicatorState {
  static inline const char* name = "replicator";
  ReplicatorOptions options;
  std::uint64_t batches = 0;
  std::uint64_t bytes = 0;
  std::uint64_t absent = 0;
  std::uint64_t failures = 0;
  std::string last_error;
};

using ReplicatorPointer = ReplicatorActor::stateful_pointer<ReplicatorState>;

Outcome put(ReplicatorState& state, const SideEntries& entries) {
  const std::string& peer = state.options.cluster->name(state.options.peer);
  if (!state.options.cluster->live(state.options.peer)) {
    ++state.absent;
    return {false, {ErrorCode::kPeerUnreachable, "the member is down", peer, {}, {}, {}}};
  }
  link::BulkRequest request;
  request.kind = link::BulkKind::kSidePut;
  request.job = state.options.job;
  request.body = encode_side_batch(entries.entries);
  state.bytes += request.body.size();
  const auto answer = state.options.link->call(peer, request, state.options.call_timeout_ms);
  if (answer) {
    ++state.batches;
    return {};
  }
  ++state.failures;
  state.last_error = answer.error().text();
  return {false, answer.error()};
}

ReplicatorActor::behavior_type replicator(ReplicatorPointer self, const ReplicatorOptions& options) {
  self->state.options = options;
  return {
      [self](side_atom, const SideEntriesPtr& entries) { return put(self->state, *entries); },
      [self](status_atom) {
        const ReplicatorState& state = self->state;
        const nlohmann::json body = {{"batches", state.batches},
                                     {"bytes", state.bytes},
                                     {"absent", state.absent},
                                     {"failures", state.failures},
                                     {"last_error", state.last_error}};
        return ActorStatus{"replicator." + state.options.cluster->name(state.options.peer),
                           body.dump(-1, ' ', false, nlohmann::json::error_handler_t::replace)};
      },
  };
}

}  // namespace

ReplicatorActor spawn_replicator(caf::actor_system& system, ReplicatorOptions options) {
  return system.spawn<caf::detached>(replicator, std::move(options));
}

}  // namespace gradtap::actors
