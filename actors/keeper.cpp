#include "actors/keeper.h"

#include <algorithm>
#include <deque>
#include <map>

#include <nlohmann/json.hpp>

#include "actors/blob_sweep.h"
#include "storage/lineage_registry.h"

namespace gradtap::actors {

namespace {

constexpr std::uint64_t kGroupBytesMax = std::uint64_t{256} << 20;

struct Queued {
  ShardRecordPtr record;
  OwnerActor owner;
};

struct KeeperState {
  static inline const char* name = "keeper";
  KeeperOptions options;
  LineageId lineage = 0;
  std::deque<Queued> queue;
  bool flush_scheduled = false;
  std::uint64_t retry_ms = 0;
  CoordinatorActor coordinator;
  std::map<ShardId, StepNumber> durable;
  StepNumber needed_after = 0;  // co-owners and the next recovery point go on from here
  BlobSweep blobs;
  // counters
  std::uint64_t blobs_dropped = 0;
  std::uint64_t commits = 0;
  std::uint64_t shard_records = 0;
  std::uint64_t log_bytes = 0;
  std::uint64_t full_bytes = 0;
  std::uint64_t side_batches = 0;
  std::uint64_t failures = 0;
  std::uint64_t stale_records = 0;
  std::uint64_t shards_released = 0;
  std::string last_error;
};

using KeeperPointer = KeeperActor::stateful_pointer<KeeperState>;

void schedule_flush(KeeperPointer self) {
  KeeperState& state = self->state;
  if (state.flush_scheduled) return;
  state.flush_scheduled = true;
  if (state.retry_ms == 0)
    self->send(self, flush_atom_v);
  else
    self->delayed_send(self, std::chrono::milliseconds(state.retry_ms), flush_atom_v);
}

// The marks say what is durable already: after a restart shards may be durable at different steps.
Status adopt(KeeperState& state, LineageId lineage) {
  auto marks = state.options.store->marks(state.options.job, lineage);
  if (!marks) return std::unexpected(marks.error());
  state.lineage = lineage;
  state.needed_after = 0;
  state.durable.clear();
  for (const storage::Mark& mark : *marks) state.durable[mark.shard] = mark.version;
  // Records of the superseded lineage will not be asked for again.
  std::erase_if(state.queue, [&](const Queued& queued) { return queued.record->lineage != lineage; });
  return {};
}

// A shard that was durable beyond the others before a restart goes through the same steps again: they are in the store.
Result<bool> durable_already(const KeeperState& state, const ShardRecord& record) {
  const auto known = state.durable.find(record.commit.shard);
  if (known == state.durable.end() || record.step >= known->second) return false;
  const auto digest =
      state.options.store->state_digest(state.options.job, state.lineage, record.commit.shard, record.step);
  if (!digest) return std::unexpected(digest.error());
  if (*digest == record.commit.state_digest) return true;
  return fail(ErrorCode::kDigestMismatch, "a step that is durable was applied again with another result",
              "shard " + std::to_string(record.commit.shard) + " step " + std::to_string(record.step), to_hex(*digest),
              to_hex(record.commit.state_digest), "keep the data directory and report this");
}

std::uint64_t bytes_of(const storage::ShardCommit& commit) {
  std::uint64_t bytes = 0;
  for (const ByteSpan& span : commit.log) bytes += span.size();
  for (const auto& part : commit.full)
    for (const ByteSpan& span : part.bytes) bytes += span.size();
  return bytes;
}

// All shards have a base version only once each of them was committed; retention waits for that.
StepNumber lowest_durable(const KeeperState& state) {
  StepNumber lowest = ~StepNumber{0};
  for (const auto& [shard, step] : state.durable) lowest = std::min(lowest, step);
  return lowest;
}

void retain(KeeperState& state) {
  const StepNumber durable = lowest_durable(state);
  const StepNumber oldest = durable > state.options.catch_up_steps_max ? durable - state.options.catch_up_steps_max : 0;
  const StepNumber floor = std::min(durable, std::max(state.needed_after, oldest));
  const auto report = state.options.store->retain(state.options.job, state.lineage, floor, state.options.keep_fulls);
  Status done;
  if (!report) done = std::unexpected(report.error());
  if (done) {
    const auto unnamed = state.blobs.sweep(*state.options.store, state.options.job, state.lineage);
    if (!unnamed)
      done = std::unexpected(unnamed.error());
    else if (!unnamed->empty()) {
      done = state.options.store->remove_side(*unnamed);
      state.blobs_dropped += unnamed->size();
    }
  }
  if (done) return;
  ++state.failures;
  state.last_error = done.error().text();
}

Status commit_group(KeeperPointer self) {
  KeeperState& state = self->state;
  storage::StepCommit commit;
  commit.job = state.options.job;
  commit.lineage = state.lineage;
  // The lowest step first: a fast owner's next step may stand before a slow owner's last one, and a shard's steps must
  // reach the store in order.
  commit.step = std::min_element(state.queue.begin(), state.queue.end(), [](const Queued& a, const Queued& b) {
                  return a.record->step < b.record->step;
                })->record->step;
  bool with_full = false;
  std::vector<Queued> group;
  std::uint64_t group_bytes = 0;
  Status done;
  for (const Queued& queued : state.queue) {
    if (queued.record->step != commit.step) continue;
    const std::uint64_t bytes = bytes_of(queued.record->commit);
    // Side values wait behind a group, so it is not of any size.
    if (!group.empty() && group_bytes + bytes > kGroupBytesMax) break;
    group_bytes += bytes;
    group.push_back(queued);
    const auto known = durable_already(state, *queued.record);
    if (!known) {
      done = std::unexpected(known.error());
      break;
    }
    if (*known) continue;
    commit.shards.push_back(queued.record->commit);
    with_full = with_full || !queued.record->commit.full.empty();
  }
  if (done && !commit.shards.empty()) done = state.options.store->commit(commit);
  if (!done) {
    ++state.failures;
    state.last_error = done.error().text();
    state.retry_ms = std::min(state.options.retry_ms_max, std::max<std::uint64_t>(200, state.retry_ms * 2));
    if (state.coordinator)
      self->send(state.coordinator, durable_atom_v,
                 Durable{group.front().record->commit.shard, commit.step, Outcome{false, done.error()}});
    return done;
  }
  state.retry_ms = 0;
  ++state.commits;
  for (const Queued& queued : group) {
    ++state.shard_records;
    for (const ByteSpan& span : queued.record->commit.log) state.log_bytes += span.size();
    for (const auto& part : queued.record->commit.full)
      for (const ByteSpan& span : part.bytes) state.full_bytes += span.size();
    const ShardId shard = queued.record->commit.shard;
    state.durable[shard] = std::max(state.durable[shard], commit.step);
    const Durable message{shard, commit.step, {}};
    self->send(queued.owner, durable_atom_v, message);
    if (state.coordinator) self->send(state.coordinator, durable_atom_v, message);
  }
  std::erase_if(state.queue, [&](const Queued& queued) {
    return std::any_of(group.begin(), group.end(), [&](const Queued& done) { return done.record == queued.record; });
  });
  if (with_full) retain(state);
  return {};
}

// The register of the cluster gives the number; without one this node does.
Result<storage::Lineage> open_lineage(KeeperState& state, const schema::LineageRecord& asked) {
  schema::LineageRecord record = asked;
  if (state.options.objects) {
    const auto known = state.options.store->lineages(state.options.job);
    if (!known) return std::unexpected(known.error());
    storage::LineageRequest request;
    request.job_name = record.job_name;
    request.run_nonce = record.run_nonce;
    request.parent_lineage = record.parent_lineage;
    request.parent_step = record.parent_step;
    request.base_step = record.base_step;
    request.node = state.options.node_name;
    request.wall_ms = state.options.clock ? state.options.clock->wall_ms() : 0;
    for (const schema::LineageRecord& each : *known) {
      if (each.run_nonce == record.run_nonce) continue;
      request.at_least = std::max(request.at_least, each.lineage + 1);
    }
    const auto granted = storage::claim_lineage(*state.options.objects, request);
    if (!granted) return std::unexpected(granted.error());
    if (granted->superseded) return storage::Lineage{granted->claim.lineage, false, true};
    record.lineage = granted->claim.lineage;
  }
  return state.options.store->open_lineage(record);
}

KeeperActor::behavior_type keeper(KeeperPointer self, const KeeperOptions& options) {
  self->state.options = options;
  return {
      [self](record_atom, const ShardRecordPtr& record, const caf::strong_actor_ptr& owner) {
        if (record->lineage != self->state.lineage) {  // its owner is of a superseded lineage and about to end
          ++self->state.stale_records;
          return;
        }
        self->state.queue.push_back({record, caf::actor_cast<OwnerActor>(owner)});
        schedule_flush(self);
      },
      [self](flush_atom) {
        self->state.flush_scheduled = false;
        if (self->state.queue.empty()) return;
        (void)commit_group(self);  // what failed is tried again
        if (!self->state.queue.empty()) schedule_flush(self);
      },
      [self](drain_atom) -> Outcome {
        while (!self->state.queue.empty())
          if (const Status done = commit_group(self); !done) return {false, done.error()};
        return {};
      },
      [self](side_atom, const SideEntriesPtr& entries) -> Outcome {
        const Status done = self->state.options.store->put_side(entries->entries, true);
        if (!done) {
          ++self->state.failures;
          self->state.last_error = done.error().text();
          return {false, done.error()};
        }
        ++self->state.side_batches;
        return {};
      },
      [self](lineage_atom, const LineageRecordPtr& record) -> LineageAnswer {
        auto lineage = open_lineage(self->state, *record);
        if (!lineage) return {{false, lineage.error()}, {}};
        return {{}, *lineage};
      },
      [self](record_atom, const LineageRecordPtr& record) -> Outcome {
        const Status done = self->state.options.store->put_lineage(*record);
        if (!done) return {false, done.error()};
        return {};
      },
      [self](release_atom, std::uint32_t lineage, std::uint32_t shard) {
        KeeperState& state = self->state;
        if (lineage != state.lineage) return;
        // Its owner sent nothing after this; what is queued of it needs no place any more.
        std::erase_if(state.queue, [&](const Queued& queued) { return queued.record->commit.shard == shard; });
        state.durable.erase(shard);
        const Status done = state.options.store->drop_shard(state.options.job, lineage, shard);
        ++state.shards_released;
        if (state.options.kill_points != nullptr) state.options.kill_points->reached(storage::kHandoffAfterRelease);
        if (done) return;
        ++state.failures;
        state.last_error = done.error().text();
      },
      [self](retain_atom, std::uint64_t step) { self->state.needed_after = step; },
      [self](wire_atom, const WiringPtr& wiring) {
        KeeperState& state = self->state;
        state.coordinator = wiring->coordinator;
        if (!wiring->plan || wiring->plan->lineage == state.lineage) return;
        // The new lineage's owners are told after this actor: none of their records can be here before.
        if (const Status done = adopt(state, wiring->plan->lineage); !done) {
          ++state.failures;
          state.last_error = done.error().text();
        }
      },
      [self](status_atom) {
        const KeeperState& state = self->state;
        const auto free_bytes = state.options.store->free_bytes();
        const nlohmann::json body = {{"lineage", state.lineage},
                                     {"queue", state.queue.size()},
                                     {"commits", state.commits},
                                     {"shard_records", state.shard_records},
                                     {"log_bytes", state.log_bytes},
                                     {"full_bytes", state.full_bytes},
                                     {"side_batches", state.side_batches},
                                     {"blobs_dropped", state.blobs_dropped},
                                     {"needed_after", state.needed_after},
                                     {"failures", state.failures},
                                     {"stale_records", state.stale_records},
                                     {"shards_released", state.shards_released},
                                     {"retry_ms", state.retry_ms},
                                     {"last_error", state.last_error},
                                     {"free_bytes", free_bytes ? *free_bytes : 0}};
        return ActorStatus{KeeperState::name, body.dump(-1, ' ', false, nlohmann::json::error_handler_t::replace)};
      },
  };
}

}  // namespace

KeeperActor spawn_keeper(caf::actor_system& system, KeeperOptions options) {
  return system.spawn<caf::detached>(keeper, std::move(options));
}

}  // namespace gradtap::actors
