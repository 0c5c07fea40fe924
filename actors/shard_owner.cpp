#include "actors/shard_owner.h"

#include <algorithm>
#include <map>
#include <utility>
#include <vector>

#include <fmt/format.h>
#include <nlohmann/json.hpp>

#include "recovery/full_version.h"

namespace gradtap::actors {

namespace {

constexpr std::size_t kPendingStepsMax = 1024;  // not less than replica.apply_queue can be
constexpr std::size_t kZeroBytes = std::size_t{256} << 10;

struct PendingStep {
  GoPtr go;
  std::vector<ContributionPtr> contributions;
};

struct OwnerState {
  static inline const char* name = "shard_owner";
  ShardOwnerOptions options;
  WiringPtr wiring;
  std::map<StepNumber, PendingStep> pending;
  StepNumber durable = 0;
  bool any_durable = false;
  StepNumber full = 0;
  Sha256 digest{};
  bool failed = false;
  std::string last_error;
  std::uint64_t applied = 0;
  std::uint64_t waits_for_flush = 0;
  std::uint64_t dropped_contributions = 0;
};

using OwnerPointer = OwnerActor::stateful_pointer<OwnerState>;

replica::Shard& shard_of(OwnerState& state) {
  return *state.options.shard;
}

// The piece's gradient, or null when no contribution brought it.
std::vector<const float*> gather(const OwnerState& state, const PendingStep& step) {
  std::vector<const float*> pieces(state.options.shard->range().pieces.size(), nullptr);
  for (const ContributionPtr& contribution : step.contributions) {
    if (step.go && contribution->order < step.go->first_order) continue;
    for (const replica::Slice& slice : contribution->slices) {
      if (slice.piece >= pieces.size() || slice.piece_offset != 0) continue;
      if (slice.elements != state.options.shard->range().pieces[slice.piece].count) continue;
      pieces[slice.piece] =
          reinterpret_cast<const float*>(contribution->bytes->data() + slice.bucket_offset * sizeof(float));
    }
  }
  return pieces;
}

// The log record: the shard's gradient in shard order; pieces that carry none are zeros.
std::vector<ByteSpan> log_spans(const OwnerState& state, const std::vector<const float*>& pieces) {
  static const std::vector<std::uint8_t> zeros(kZeroBytes, 0);
  std::vector<ByteSpan> spans;
  for (std::size_t i = 0; i < pieces.size(); ++i) {
    std::uint64_t bytes = state.options.shard->range().pieces[i].count * sizeof(float);
    if (pieces[i] != nullptr) {
      spans.emplace_back(reinterpret_cast<const std::uint8_t*>(pieces[i]), bytes);
      continue;
    }
    while (bytes > 0) {
      const std::uint64_t part = std::min<std::uint64_t>(bytes, zeros.size());
      spans.emplace_back(zeros.data(), part);
      bytes -= part;
    }
  }
  return spans;
}

bool full_due(const OwnerState& state, StepNumber step) {
  const std::uint64_t every = state.options.full_every_steps;
  return every > 0 && step % every == state.options.shard->range().id % every;
}

void make_durable(OwnerPointer self, StepNumber step, bool with_log, std::vector<ByteSpan> log, bool with_full,
                  std::vector<std::shared_ptr<const void>> keep_alive) {
  OwnerState& state = self->state;
  auto record = std::make_shared<ShardRecord>();
  record->lineage = state.options.plan->lineage;
  record->step = step;
  record->commit.shard = shard_of(state).range().id;
  record->commit.has_log = with_log;
  record->commit.log = std::move(log);
  record->commit.state_digest = state.digest;
  record->keep_alive = std::move(keep_alive);
  if (with_full) {
    auto full = std::make_shared<const recovery::FullVersion>(shard_of(state));
    record->commit.full = full->parts();
    record->keep_alive.push_back(full);
    state.full = step;
  }
  self->send(state.wiring->keeper, record_atom_v, ShardRecordPtr(std::move(record)),
             caf::actor_cast<caf::strong_actor_ptr>(self));
}

void report(OwnerPointer self, StepNumber step, Outcome outcome) {
  const OwnerState& state = self->state;
  if (state.wiring->coordinator)
    self->send(state.wiring->coordinator, applied_atom_v,
               Applied{state.options.shard->range().id, step, state.digest, std::move(outcome)});
}

void apply_ready(OwnerPointer self) {
  OwnerState& state = self->state;
  replica::Shard& shard = shard_of(state);
  while (!state.failed && state.wiring) {
    const StepNumber step = shard.version() + 1;
    const auto it = state.pending.find(step);
    if (it == state.pending.end() || !it->second.go) return;
    if (!state.any_durable || shard.version() - state.durable >= state.options.flush_queue_steps) {
      ++state.waits_for_flush;
      return;  // the keeper's `durable` brings us back
    }
    const replica::StepScalars& scalars = it->second.go->scalars;
    const bool skipped = scalars.verdict == replica::Verdict::kSkipped;
    std::vector<const float*> pieces = gather(state, it->second);
    if (!skipped) {
      // Contributions may still be on their way: wait for all of them before trying.
      for (std::size_t i = 0; i < pieces.size(); ++i)
        if (pieces[i] == nullptr &&
            state.options.plan->schema.parameters[shard.range().pieces[i].parameter].has_gradient())
          return;
    }
    if (const Status done = shard.apply(scalars, replica::GradientView{pieces}); !done) {
      state.failed = true;
      state.last_error = done.error().text();
      report(self, step, {false, done.error()});
      return;
    }
    ++state.applied;
    state.digest = shard.digest().sha;
    std::vector<std::shared_ptr<const void>> keep_alive;
    for (const ContributionPtr& contribution : it->second.contributions) keep_alive.push_back(contribution);
    make_durable(self, step, true, skipped ? std::vector<ByteSpan>{} : log_spans(state, pieces), full_due(state, step),
                 std::move(keep_alive));
    state.pending.erase(state.pending.begin(), std::next(it));
    report(self, step, {});
  }
}

OwnerActor::behavior_type owner(OwnerPointer self, const ShardOwnerOptions& options) {
  OwnerState& initial = self->state;
  initial.options = options;
  initial.digest = options.shard->digest().sha;
  if (options.durable) {
    initial.durable = options.shard->version();
    initial.any_durable = true;
  }
  return {
      [self](contrib_atom, const ContributionPtr& contribution) {
        OwnerState& state = self->state;
        const bool wanted = contribution->lineage == state.options.plan->lineage &&
                            contribution->step > shard_of(state).version() &&
                            contribution->step <= shard_of(state).version() + kPendingStepsMax;
        if (!wanted) {
          ++state.dropped_contributions;
          return;
        }
        // An order that was given again replaces what it brought before.
        auto& list = state.pending[contribution->step].contributions;
        const auto same = std::find_if(list.begin(), list.end(), [&](const ContributionPtr& known) {
          return known->bucket == contribution->bucket;
        });
        if (same == list.end())
          list.push_back(contribution);
        else if ((*same)->order <= contribution->order)
          *same = contribution;
        apply_ready(self);
      },
      [self](go_atom, const GoPtr& go) {
        OwnerState& state = self->state;
        const StepNumber step = go->scalars.step;
        if (step <= shard_of(state).version() || step > shard_of(state).version() + kPendingStepsMax) return;
        state.pending[step].go = go;
        apply_ready(self);
      },
      [self](durable_atom, const Durable& durable) {
        OwnerState& state = self->state;
        if (!durable.outcome.ok) return;
        state.durable = std::max(state.durable, durable.step);
        state.any_durable = true;
        apply_ready(self);
      },
      [self](wire_atom, const WiringPtr& wiring) {
        OwnerState& state = self->state;
        const bool first = !state.wiring;
        state.wiring = wiring;
        if (!first) return;
        if (!state.any_durable)
          make_durable(self, shard_of(state).version(), false, {}, true, {});
        else if (wiring->coordinator)
          self->send(wiring->coordinator, durable_atom_v, Durable{shard_of(state).range().id, state.durable, {}});
        report(self, shard_of(state).version(), {});
      },
      [self](status_atom) {
        const OwnerState& state = self->state;
        const replica::Shard& shard = *state.options.shard;
        const char* word = state.failed ? "failed" : !state.any_durable ? "baseline" : "in_sync";
        const nlohmann::json body = {{"shard", shard.range().id},
                                     {"elements", shard.range().elements},
                                     {"version", shard.version()},
                                     {"durable", state.durable},
                                     {"full", state.full},
                                     {"log_from", state.full + 1},
                                     {"digest", to_hex(state.digest)},
                                     {"state", word},
                                     {"pending", state.pending.size()},
                                     {"applied", state.applied},
                                     {"waits_for_flush", state.waits_for_flush},
                                     {"dropped_contributions", state.dropped_contributions},
                                     {"error", state.last_error}};
        return ActorStatus{fmt::format("owner.{}", shard.range().id), body.dump()};
      },
  };
}

}  // namespace

OwnerActor spawn_shard_owner(caf::actor_system& system, ShardOwnerOptions options) {
  return system.spawn(owner, std::move(options));
}

}  // namespace gradtap::actors
