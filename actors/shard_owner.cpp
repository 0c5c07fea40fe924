#include "actors/shard_owner.h"

#include <algorithm>
#include <map>
#include <optional>
#include <utility>
#include <vector>

#include <fmt/format.h>
#include <nlohmann/json.hpp>

#include "common/charged.h"
#include "recovery/full_version.h"

namespace gradtap::actors {

namespace {

constexpr std::size_t kPendingStepsMax = 1024;  // not less than replica.apply_queue can be
constexpr std::chrono::milliseconds kFetchDeadline{15'000};
constexpr std::chrono::milliseconds kMemoryRetry{100};
constexpr std::size_t kZeroBytes = std::size_t{256} << 10;

struct PendingStep {
  GoPtr go;
  std::vector<ContributionPtr> contributions;
  PulledGradientPtr pulled;  // from a peer, instead of contributions
};

struct OwnerState {
  static inline const char* name = "shard_owner";
  ShardOwnerOptions options;
  WiringPtr wiring;
  std::optional<StepNumber> fetching;  // the step that a peer is being asked for
  bool fetching_version = false;
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
  std::uint64_t received_bytes = 0;  // of gradients, from this node's tap or a peer
  std::uint64_t applied_bytes = 0;
  std::uint64_t fetched = 0;
  std::uint64_t fetches_failed = 0;
  std::uint64_t jumps = 0;
  std::uint64_t waits_for_memory = 0;
  bool base_waits = false;     // for memory
  StepNumber full_wanted = 0;  // a peer asks for a full version that is no older than this
  bool released = false;
};

using OwnerPointer = OwnerActor::stateful_pointer<OwnerState>;

replica::Shard& shard_of(OwnerState& state) {
  return *state.options.shard;
}

const replica::ShardRange& range_of(const OwnerState& state) {
  return state.options.plan->shards.shards()[state.options.id];
}

// The piece's gradient, or null when no contribution brought it.
std::vector<const float*> gather(const OwnerState& state, const PendingStep& step) {
  if (step.pulled && !step.pulled->bytes.empty())
    return replica::contiguous_pieces(range_of(state), reinterpret_cast<const float*>(step.pulled->bytes.data()));
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
  if (state.full_wanted > state.full && step >= state.full_wanted) return true;
  const std::uint64_t every = state.options.full_every_steps;
  return every > 0 && step % every == state.options.shard->range().id % every;
}

// A copy that the keeper writes while the owner goes on; nothing: no memory is left for it now.
std::shared_ptr<const recovery::FullVersion> copy_version(OwnerState& state) {
  auto lease = state.options.memory->lease(MemoryAccount::kVersions,
                                           recovery::state_bytes(*state.options.plan, state.options.id),
                                           "a full version on its way to the disk");
  if (lease) return charged(recovery::FullVersion(shard_of(state)), std::move(*lease));
  ++state.waits_for_memory;
  state.last_error = lease.error().text();
  return nullptr;
}

// `full` may be empty.
void make_durable(OwnerPointer self, StepNumber step, bool with_log, std::vector<ByteSpan> log,
                  std::shared_ptr<const recovery::FullVersion> full,
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
  if (full) {
    record->commit.full = full->parts();
    record->keep_alive.push_back(std::move(full));
    state.full = step;
  }
  self->send(state.wiring->keeper, record_atom_v, ShardRecordPtr(std::move(record)),
             caf::actor_cast<caf::strong_actor_ptr>(self));
}

// The version that everything later is applied to.
void make_base_durable(OwnerPointer self) {
  OwnerState& state = self->state;
  auto full = copy_version(state);
  state.base_waits = !full;
  if (full)
    make_durable(self, shard_of(state).version(), false, {}, std::move(full), {});
  else
    self->delayed_send(self, kMemoryRetry, flush_atom_v);
}

void report(OwnerPointer self, StepNumber step, Outcome outcome) {
  const OwnerState& state = self->state;
  if (state.wiring->coordinator)
    self->send(state.wiring->coordinator, applied_atom_v,
               Applied{state.options.id, step, state.digest, std::move(outcome)});
}

// The owner stops where it is; a peer that disagrees is an alarm, and neither is believed.
void stop_with(OwnerPointer self, StepNumber step, const Error& error) {
  self->state.failed = true;
  self->state.last_error = error.text();
  report(self, step, {false, error});
}

void apply_ready(OwnerPointer self) {
  OwnerState& state = self->state;
  if (!state.options.shard || state.released) return;
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
    if (const Status done = shard.apply(scalars, replica::GradientView{pieces}); !done)
      return stop_with(self, step, done.error());
    ++state.applied;
    if (!skipped) state.applied_bytes += shard.range().elements * sizeof(float);
    state.digest = shard.digest().sha;
    const PulledGradientPtr pulled = it->second.pulled;
    if (pulled && pulled->digest && *pulled->digest != state.digest)
      return stop_with(
          self, step,
          {ErrorCode::kDigestMismatch, "the same gradient gave another state than at the co-owner",
           fmt::format("shard {} step {}, gradient of {}", shard.range().id, step, pulled->source),
           to_hex(*pulled->digest), to_hex(state.digest), "look at both nodes' disks and memory; publishing stops"});
    std::vector<std::shared_ptr<const void>> keep_alive;
    if (pulled) keep_alive.push_back(pulled);
    for (const ContributionPtr& contribution : it->second.contributions) keep_alive.push_back(contribution);
    std::shared_ptr<const recovery::FullVersion> full;
    if (full_due(state, step)) {
      full = copy_version(state);
      if (!full) state.full_wanted = step + 1;
    }
    make_durable(self, step, true, skipped ? std::vector<ByteSpan>{} : log_spans(state, pieces), std::move(full),
                 std::move(keep_alive));
    state.pending.erase(state.pending.begin(), std::next(it));
    report(self, step, {});
  }
}

void ask_for_version(OwnerPointer self, StepNumber at_least);

// Takes a whole version over: it must be in the store before anything is applied to it.
void jump_to(OwnerPointer self, const std::shared_ptr<replica::Shard>& shard) {
  OwnerState& state = self->state;
  if (state.options.kill_points != nullptr) state.options.kill_points->reached(storage::kHandoffAfterVersion);
  state.options.shard = shard;
  state.digest = shard->digest().sha;
  state.failed = false;
  ++state.jumps;
  state.pending.erase(state.pending.begin(), state.pending.upper_bound(shard->version()));
  state.any_durable = false;
  if (state.wiring->coordinator)
    self->send(state.wiring->coordinator, version_atom_v, std::uint32_t{state.options.id},
               std::uint64_t{shard->version()});
  make_base_durable(self);
  report(self, shard->version(), {});
  apply_ready(self);
}

void ask_for_version(OwnerPointer self, StepNumber at_least) {
  OwnerState& state = self->state;
  if (state.fetching_version || state.released || !state.wiring || !state.wiring->fetcher) return;
  state.fetching_version = true;
  const StepNumber own = state.options.shard ? state.options.shard->version() + 1 : state.options.plan->base_step;
  const StepNumber wanted = std::max(own, at_least);
  self->request(state.wiring->fetcher, kFetchDeadline, version_atom_v, std::uint32_t{state.options.id},
                std::uint64_t{wanted})
      .then(
          [self](const PulledVersionPtr& pulled) {
            OwnerState& s = self->state;
            s.fetching_version = false;
            if (s.released) return;
            const bool newer =
                pulled->shard && (!s.options.shard || pulled->shard->version() > s.options.shard->version());
            if (pulled->outcome.ok && newer) return jump_to(self, pulled->shard);
            ++s.fetches_failed;
            s.last_error = pulled->outcome.error.text();  // the coordinator asks again
          },
          [self](const caf::error&) { self->state.fetching_version = false; });
}

void fetch_gradient(OwnerPointer self, const GoPtr& go) {
  OwnerState& state = self->state;
  const StepNumber step = go->scalars.step;
  if (!state.options.shard) return ask_for_version(self, step);  // there is nothing to apply it to
  if (state.failed || state.released || !state.wiring || !state.wiring->fetcher || state.fetching ||
      step != shard_of(state).version() + 1)
    return;
  state.fetching = step;
  self->request(state.wiring->fetcher, kFetchDeadline, pull_atom_v, std::uint32_t{state.options.plan->lineage},
                std::uint32_t{state.options.id}, std::uint64_t{step})
      .then(
          [self, go, step](const PulledGradientPtr& pulled) {
            OwnerState& s = self->state;
            s.fetching.reset();
            if (!s.options.shard || s.released || step != shard_of(s).version() + 1) return;  // its own tap was faster
            if (!pulled->outcome.ok) {
              ++s.fetches_failed;
              s.last_error = pulled->outcome.error.text();
              // Nobody keeps this step any more: a whole newer version, if there is one, takes its place.
              if (pulled->outcome.error.code == ErrorCode::kStepUnavailable) ask_for_version(self, 0);
              return;
            }
            const bool skipped = go->scalars.verdict == replica::Verdict::kSkipped;
            const std::uint64_t wanted = skipped ? 0 : range_of(s).elements * sizeof(float);
            if (pulled->bytes.size() != wanted) {
              ++s.fetches_failed;
              s.last_error = fmt::format("{} sent {} bytes of step {} instead of {}", pulled->source,
                                         pulled->bytes.size(), step, wanted);
              return;
            }
            ++s.fetched;
            s.received_bytes += pulled->bytes.size();
            PendingStep& pending = s.pending[step];
            pending.go = go;
            pending.contributions.clear();
            pending.pulled = pulled;
            apply_ready(self);
          },
          [self](const caf::error&) {
            self->state.fetching.reset();
            ++self->state.fetches_failed;
          });
}

OwnerActor::behavior_type owner(OwnerPointer self, const ShardOwnerOptions& options) {
  OwnerState& initial = self->state;
  initial.options = options;
  if (options.shard) {
    initial.options.id = options.shard->range().id;
    initial.digest = options.shard->digest().sha;
  }
  if (options.shard && options.durable) {
    initial.durable = options.shard->version();
    initial.any_durable = true;
  }
  return {
      [self](contrib_atom, const ContributionPtr& contribution) {
        OwnerState& state = self->state;
        const StepNumber version = state.options.shard ? state.options.shard->version() : 0;
        // An owner without a version, or far behind, is brought up from logs: what it kept would only fill memory.
        const std::uint64_t hold_steps = state.options.shard ? state.options.hold_steps : 0;
        const bool wanted = contribution->lineage == state.options.plan->lineage && contribution->step > version &&
                            contribution->step <= version + hold_steps && !state.released;
        if (!wanted) {
          ++state.dropped_contributions;
          if (state.options.retention && (!state.options.shard || contribution->step > version))
            state.options.retention->add(contribution);
          return;
        }
        for (const replica::Slice& slice : contribution->slices) state.received_bytes += slice.elements * sizeof(float);
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
        const StepNumber version = state.options.shard ? state.options.shard->version() : 0;
        if (state.released || step <= version || step > version + kPendingStepsMax) return;
        state.pending[step].go = go;
        apply_ready(self);
      },
      [self](fetch_atom, const GoPtr& go) { fetch_gradient(self, go); },
      [self](version_atom, std::uint64_t at_least) { ask_for_version(self, at_least); },
      [self](full_atom, std::uint64_t at_least) {
        OwnerState& state = self->state;
        if (!state.options.shard) return;
        state.full_wanted = std::max(state.full_wanted, std::min(at_least, shard_of(state).version() + 1));
      },
      [self](release_atom) {
        OwnerState& state = self->state;
        if (state.released || !state.wiring) return;
        if (state.options.kill_points != nullptr) state.options.kill_points->reached(storage::kHandoffBeforeRelease);
        state.released = true;
        // What it has not applied, the new owners may not have either.
        if (state.options.retention)
          for (const auto& [step, pending] : state.pending)
            for (const ContributionPtr& contribution : pending.contributions)
              state.options.retention->add(contribution);
        state.pending.clear();
        self->send(state.wiring->keeper, release_atom_v, std::uint32_t{state.options.plan->lineage},
                   std::uint32_t{state.options.id});
        if (state.options.on_released) state.options.on_released(state.options.id);
      },
      [self](durable_atom, const Durable& durable) {
        OwnerState& state = self->state;
        if (!durable.outcome.ok) return;
        state.durable = std::max(state.durable, durable.step);
        state.any_durable = true;
        apply_ready(self);
      },
      [self](flush_atom) {
        const OwnerState& state = self->state;
        if (state.base_waits && state.options.shard && !state.released) make_base_durable(self);
      },
      [self](wire_atom, const WiringPtr& wiring) {
        OwnerState& state = self->state;
        const bool first = !state.wiring;
        state.wiring = wiring;
        if (!first) return;
        if (!state.options.shard) return;
        if (!state.any_durable)
          make_base_durable(self);
        else if (wiring->coordinator)
          self->send(wiring->coordinator, durable_atom_v, Durable{shard_of(state).range().id, state.durable, {}});
        report(self, shard_of(state).version(), {});
      },
      [self](status_atom) {
        const OwnerState& state = self->state;
        const StepNumber version = state.options.shard ? state.options.shard->version() : 0;
        const char* word = state.released         ? "released"
                           : state.failed         ? "failed"
                           : !state.options.shard ? "syncing"
                           : !state.any_durable   ? "baseline"
                                                  : "in_sync";
        std::uint64_t held = 0;
        for (const auto& [step, pending] : state.pending) {
          for (const ContributionPtr& contribution : pending.contributions)
            for (const replica::Slice& slice : contribution->slices) held += slice.elements * sizeof(float);
          if (pending.pulled) held += pending.pulled->bytes.size();
        }
        const nlohmann::json body = {{"shard", state.options.id},
                                     {"elements", range_of(state).elements},
                                     {"version", version},
                                     {"durable", state.durable},
                                     {"full", state.full},
                                     {"log_from", state.full + 1},
                                     {"digest", to_hex(state.digest)},
                                     {"state", word},
                                     {"pending", state.pending.size()},
                                     {"held_bytes", held},
                                     {"applied", state.applied},
                                     {"applied_bytes", state.applied_bytes},
                                     {"received_bytes", state.received_bytes},
                                     {"waits_for_flush", state.waits_for_flush},
                                     {"dropped_contributions", state.dropped_contributions},
                                     {"fetched", state.fetched},
                                     {"fetches_failed", state.fetches_failed},
                                     {"jumps", state.jumps},
                                     {"waits_for_memory", state.waits_for_memory},
                                     {"error", state.last_error}};
        return ActorStatus{fmt::format("owner.{}", state.options.id),
                           body.dump(-1, ' ', false, nlohmann::json::error_handler_t::replace)};
      },
  };
}

}  // namespace

OwnerActor spawn_shard_owner(caf::actor_system& system, ShardOwnerOptions options) {
  return system.spawn(owner, std::move(options));
}

}  // namespace gradtap::actors
