#include "actors/assembler.h"

#include <map>
#include <memory>
#include <set>
#include <utility>

#include <nlohmann/json.hpp>

namespace gradtap::actors {

namespace {

struct AssemblerState {
  static inline const char* name = "assembler";
  AssemblerOptions options;
  std::unique_ptr<dataplane::OpWindow> window;
  WiringPtr wiring;
  std::uint64_t bursts = 0;
  std::uint64_t contributions = 0;
  std::string last_conflict;
  std::set<std::uint32_t> bound_comms;  // of the run that is followed
};

using AssemblerPointer = AssemblerActor::stateful_pointer<AssemblerState>;

// Tells the coordinator what changed, and the decoders where ops began.
void publish(AssemblerPointer self) {
  AssemblerState& state = self->state;
  if (auto proven = state.window->take_proven_flows(); !proven.empty()) {
    const auto message = std::make_shared<const std::vector<dataplane::ProvenFlow>>(std::move(proven));
    for (const IngressActor& ingress : state.wiring->ingress)
      self->send(ingress, closed_atom_v, ProvenFlowsPtr(message));
  }
  for (const auto& conflict : state.window->take_conflicts())
    state.last_conflict = "tag " + std::to_string(conflict.op.tag) + " bytes " + std::to_string(conflict.range.begin) +
                          ".." + std::to_string(conflict.range.end);
  (void)state.window->take_shed();         // the summaries carry the reason
  if (!state.wiring->coordinator) return;  // not attached yet: it asks for everything when it comes
  if (auto changed = state.window->summaries_changed(); !changed.empty())
    self->send(state.wiring->coordinator, ops_atom_v,
               OpSummariesPtr(std::make_shared<const std::vector<dataplane::OpSummary>>(std::move(changed))));
}

Outcome bind(AssemblerPointer self, const BindOrder& order) {
  AssemblerState& state = self->state;
  auto bytes = state.window->bind(order.op, order.op_bytes);
  if (!bytes) return {false, bytes.error()};
  state.bound_comms.insert(order.op.comm);
  std::map<ShardId, std::shared_ptr<Contribution>> per_shard;
  for (const replica::Slice& slice : *order.slices) {
    auto& contribution = per_shard[slice.shard];
    if (!contribution) {
      contribution = std::make_shared<Contribution>();
      contribution->step = order.step;
      contribution->bucket = order.bucket;
      contribution->shard = slice.shard;
      contribution->bytes = *bytes;
      contribution->lineage = order.lineage;
      contribution->order = order.number;
    }
    contribution->slices.push_back(slice);
  }
  for (auto& [shard, contribution] : per_shard) {
    if (shard >= state.wiring->owner_of.size())
      return {false, Error{ErrorCode::kLayoutInvalid,
                           "a slice names a shard that has no owner",
                           "shard " + std::to_string(shard),
                           std::to_string(state.wiring->owner_of.size()),
                           {},
                           {}}};
    ++state.contributions;
    const OwnerActor& owner = state.wiring->owner_of[shard];
    const bool leaving = shard < state.wiring->leaving.size() && state.wiring->leaving[shard];
    if (state.options.retention && (!owner || leaving)) state.options.retention->add(contribution);
    if (owner) self->send(owner, contrib_atom_v, ContributionPtr(std::move(contribution)));
  }
  publish(self);
  return {};
}

AssemblerActor::behavior_type assembler(AssemblerPointer self, const AssemblerOptions& options) {
  self->state.options = options;
  self->state.window = std::make_unique<dataplane::OpWindow>(options.window, options.schedule);
  self->state.wiring = std::make_shared<const Wiring>();
  return {
      [self](segments_atom, const SegmentBurstRef& lent) {
        AssemblerState& state = self->state;
        ++state.bursts;
        for (const dataplane::Segment& segment : lent.burst->segments) state.window->add(segment);
        self->send(state.wiring->ingress[lent.burst->home_queue], credit_atom_v, lent);
        publish(self);
      },
      [self](sizes_atom, const OpSizesPtr& sizes) {
        self->state.window->set_sizes(*sizes);
        publish(self);
      },
      [self](words_atom, const WordQuery& query) {
        const dataplane::OpWindow& window = *self->state.window;
        WordAnswer answer;
        answer.words.reserve(query.byte_offsets.size());
        for (const std::uint64_t offset : query.byte_offsets)
          answer.words.push_back(window.read(query.op, query.op_bytes, offset));
        answer.missing = window.missing(query.op, query.op_bytes);
        return answer;
      },
      [self](bind_atom, const BindOrder& order) { return bind(self, order); },
      [self](forget_atom, std::uint32_t comm, std::uint32_t tag) {
        self->state.window->abandon_below(comm, tag);
        publish(self);
      },
      [self](wire_atom, const WiringPtr& wiring) {
        AssemblerState& state = self->state;
        const bool new_coordinator = wiring->coordinator && wiring->coordinator != state.wiring->coordinator;
        // What is open of the run that ended would stand beside the new run's ops for ever. The new run has connections
        // of its own, and what it has sent before its first step tells the coordinator what those ops are not.
        // Runs that ended and were never followed count too: one that computed the same would fit as well.
        if (new_coordinator) {
          const std::uint32_t ended = state.options.directory ? state.options.directory->ended_comms() : 0;
          for (const dataplane::OpKey key : state.window->open_ops())
            if (key.comm < ended || state.bound_comms.contains(key.comm)) state.window->abandon(key);
          state.bound_comms.clear();
        }
        state.wiring = wiring;
        if (!new_coordinator) return;
        std::vector<dataplane::OpSummary> all;
        (void)state.window->summaries_changed();
        for (const dataplane::OpKey key : state.window->open_ops())
          if (const auto summary = state.window->summary(key)) all.push_back(*summary);
        self->send(wiring->coordinator, ops_atom_v,
                   OpSummariesPtr(std::make_shared<const std::vector<dataplane::OpSummary>>(std::move(all))));
      },
      [self](status_atom) {
        const AssemblerState& state = self->state;
        const auto& c = state.window->counters();
        const auto memory = state.window->memory();
        const nlohmann::json body = {{"bursts", state.bursts},
                                     {"contributions", state.contributions},
                                     {"open_ops", state.window->open_count()},
                                     {"segments", c.segments},
                                     {"bytes", c.bytes},
                                     {"placed_bytes", c.placed_bytes},
                                     {"partial_bytes", c.partial_bytes},
                                     {"duplicate_bytes", c.duplicate_bytes},
                                     {"limbo_bytes", c.limbo_bytes},
                                     {"limbo_placed_bytes", c.limbo_placed_bytes},
                                     {"limbo_used", state.window->limbo().used()},
                                     {"limbo_peak", state.window->limbo().peak()},
                                     {"limbo_refused", state.window->limbo().refused()},
                                     {"memory_in_use", memory.in_use_bytes},
                                     {"memory_limit", memory.limit_bytes},
                                     {"memory_refused", memory.refused},
                                     {"conflicts", c.conflicts},
                                     {"last_conflict", state.last_conflict},
                                     {"late_segments", c.late_segments},
                                     {"rejected_edge", c.rejected_edge},
                                     {"rejected_range", c.rejected_range},
                                     {"rejected_message", c.rejected_message},
                                     {"rejected_type", c.rejected_type},
                                     {"rejected_limit", c.rejected_limit},
                                     {"rejected_unproven", c.rejected_unproven},
                                     {"size_contradictions", c.size_contradictions},
                                     {"proven_flows", c.proven_flows},
                                     {"ops_opened", c.ops_opened},
                                     {"ops_bound", c.ops_bound},
                                     {"ops_abandoned", c.ops_abandoned},
                                     {"shed_window_ops", c.shed_window_ops},
                                     {"shed_window_bytes", c.shed_window_bytes},
                                     {"shed_limbo", c.shed_limbo},
                                     {"shed_fragments", c.shed_fragments}};
        return ActorStatus{"assembler." + std::to_string(state.options.index), body.dump()};
      },
  };
}

}  // namespace

AssemblerActor spawn_assembler(caf::actor_system& system, AssemblerOptions options) {
  // A thread of its own: behind owners that apply and digest, its credits would run out and frames be lost.
  return system.spawn<caf::detached>(assembler, std::move(options));
}

}  // namespace gradtap::actors
