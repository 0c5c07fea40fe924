#include "actors/publisher.h"

#include <algorithm>
#include <map>
#include <optional>
#include <set>
#include <utility>

#include <fmt/format.h>
#include <nlohmann/json.hpp>

#include "actors/side_state.h"
#include "actors/upload_codec.h"
#include "common/version.h"
#include "recovery/point_writer.h"
#include "recovery/store_source.h"
#include "storage/lineage_registry.h"
#include "storage/point_record.h"
#include "storage/point_retain.h"

namespace gradtap::actors {

namespace {

constexpr std::chrono::milliseconds kCoordinatorDeadline{1000};
constexpr std::chrono::milliseconds kPeerUploadDeadline{30'000};
constexpr std::chrono::milliseconds kSyncDeadline{30'000};
constexpr std::uint64_t kSyncEveryNs = 1'000'000'000;
constexpr std::uint64_t kGiveUpNs = 10'000'000'000;
constexpr std::uint64_t kSideMissingNs = 1'000'000'000;
constexpr std::uint64_t kRetryMsMin = 200;

struct PublisherState {
  static inline const char* name = "publisher";
  PublisherOptions options;
  WiringPtr wiring;
  std::unique_ptr<storage::PointRetention> retention;
  // Of the lineage in force:
  LineageId lineage = 0;
  bool listed = false;                         // `newest` is what the store says
  std::optional<storage::StoredPoint> newest;  // the newest point of the lineage
  std::optional<schema::ObjectRef> meta;
  std::optional<schema::LineageClaim> claim;
  bool conflict = false;
  std::map<MemberIndex, std::string> seen_peers;  // presence files of peers that were found in the store
  StepNumber side_missing = 0;                    // the step whose side state is not whole, and since when
  std::uint64_t side_missing_ns = 0;
  StepNumber given_up = 0;  // steps up to this one can never be published (a blob was dropped)
  std::vector<Gap> told;    // gaps that the coordinator was last told
  StepNumber told_step = 0;
  bool told_any = false;
  std::uint64_t retry_ms = 0;
  std::uint64_t not_before_ns = 0;
  std::uint64_t retained_ns = 0;
  std::uint64_t synced_ns = 0;
  std::size_t synced_from = 0;
  bool tick_queued = false;
  // counters
  std::uint64_t points = 0;
  std::uint64_t uploads = 0;
  std::uint64_t failures = 0;
  std::uint64_t steps_given_up = 0;
  std::uint64_t points_deleted = 0;
  std::uint64_t objects_deleted = 0;
  std::uint64_t publish_us_last = 0;
  std::string last_error;
};

using PublisherPointer = PublisherActor::stateful_pointer<PublisherState>;

bool same_gaps(const std::vector<Gap>& a, const std::vector<Gap>& b) {
  return std::equal(a.begin(), a.end(), b.begin(), b.end(), [](const Gap& x, const Gap& y) {
    return x.reason == y.reason && x.since_step == y.since_step && x.evidence == y.evidence;
  });
}

void tell(PublisherPointer self, std::vector<Gap> gaps) {
  PublisherState& state = self->state;
  StepNumber step = state.newest ? state.newest->record.canonical.step : 0;
  if (!state.newest && state.wiring && state.wiring->plan && state.wiring->plan->resumed)
    step = state.wiring->plan->base_step;
  if (state.told_any && step == state.told_step && same_gaps(gaps, state.told)) return;
  state.told_any = true;
  state.told_step = step;
  state.told = gaps;
  if (state.wiring && state.wiring->coordinator)
    self->send(state.wiring->coordinator, publish_atom_v, std::uint64_t{step},
               GapsPtr(std::make_shared<const std::vector<Gap>>(std::move(gaps))));
}

void failed(PublisherPointer self, StepNumber step, const Error& error) {
  PublisherState& state = self->state;
  ++state.failures;
  state.last_error = error.text();
  if (state.retry_ms == 0)
    state.options.events->add(LogLevel::kWarn, "a recovery point could not be written",
                              {{"step", step}, {"error", error.text()}});
  state.retry_ms = std::clamp(state.retry_ms * 2, kRetryMsMin, state.options.retry_ms_max);
  state.not_before_ns = state.options.clock->monotonic_ns() + state.retry_ms * 1'000'000;
  GapReason reason = GapReason::kObjectStoreError;
  const char* action = "tried again after a growing pause; the last point stays";
  if (error.code == ErrorCode::kObjectConflict) {
    state.conflict = true;
    reason = GapReason::kPublishConflict;
    action = "nothing more is published in this lineage";
  } else if (error.code == ErrorCode::kPeerUnreachable || error.code == ErrorCode::kTimeout ||
             error.code == ErrorCode::kNodeBusy || error.code == ErrorCode::kStepUnavailable ||
             error.code == ErrorCode::kMemoryExhausted) {
    reason = GapReason::kUploadLag;
  }
  tell(self, {{reason, step, error.text(), action}});
}

void begin(PublisherState& state, const JobPlan& plan) {
  if (state.lineage == plan.lineage) return;
  state.lineage = plan.lineage;
  state.listed = state.conflict = state.told_any = false;
  state.newest.reset();
  state.meta.reset();
  state.claim.reset();
  state.given_up = 0;
}

// A new lineage, or this node has become home: what is there already is read once.
Status look_at_store(PublisherState& state, const JobPlan& plan) {
  begin(state, plan);
  if (state.listed) return {};
  state.newest.reset();
  if (!state.claim) {
    auto claim = storage::read_claim(*state.options.objects, state.options.job_name, plan.lineage);
    if (!claim && claim.error().code != ErrorCode::kObjectMissing) return std::unexpected(claim.error());
    if (claim) state.claim = std::move(*claim);
  }
  const auto keys = state.options.objects->list(storage::points_prefix(state.options.job_name, plan.lineage));
  if (!keys) return std::unexpected(keys.error());
  for (auto key = keys->rbegin(); key != keys->rend(); ++key) {
    const auto parsed = storage::parse_key(*key);
    if (!parsed || parsed->kind != storage::KeyKind::kPoint) continue;
    auto point = storage::read_point(*state.options.objects, state.options.job_name, plan.lineage, parsed->step);
    if (!point) continue;  // a damaged record is not gone on from
    state.meta = point->record.meta;
    state.newest = std::move(*point);
    break;
  }
  state.listed = true;
  return {};
}

const schema::ShardObjects* previous_of(const PublisherState& state, ShardId shard) {
  if (!state.newest || shard >= state.newest->record.shards.size()) return nullptr;
  return &state.newest->record.shards[shard];
}

recovery::PointTarget target_of(const PublisherState& state, const JobPlan& plan) {
  return {*state.options.objects, plan, *state.options.random};
}

// -- an owner's part -----------------------------------------------------------------------------------------------

Result<std::vector<UploadedShard>> upload_here(PublisherState& state, const JobPlan& plan,
                                               const UploadRequest& request) {
  const recovery::StoreSource source(state.options.store, plan.job, plan.lineage);
  const schema::PointRecord* previous = nullptr;
  std::optional<storage::StoredPoint> read;
  if (request.previous_step > 0) {
    if (state.newest && state.newest->record.canonical.lineage == plan.lineage &&
        state.newest->record.canonical.step == request.previous_step) {
      previous = &state.newest->record;
    } else {
      auto point =
          storage::read_point(*state.options.objects, state.options.job_name, plan.lineage, request.previous_step);
      if (!point) return std::unexpected(point.error());
      read = std::move(*point);
      previous = &read->record;
    }
  }
  std::vector<UploadedShard> uploaded;
  for (const ShardId shard : request.shards) {
    // A full version or a log, whichever is uploaded.
    const auto lease = state.options.memory->lease(MemoryAccount::kPoints, recovery::state_bytes(plan, shard),
                                                   "a shard of a recovery point");
    if (!lease) return std::unexpected(lease.error());
    const schema::ShardObjects* before =
        previous != nullptr && shard < previous->shards.size() ? &previous->shards[shard] : nullptr;
    auto now = recovery::put_shard(target_of(state, plan), source, shard, request.step, before, state.options.logs_max);
    if (!now) return std::unexpected(now.error());
    uploaded.push_back(difference(before, *now));
    ++state.uploads;
  }
  // The next question goes on from the point that this one makes.
  if (read) state.newest = std::move(read);
  return uploaded;
}

HttpAnswer answer_upload(PublisherState& state, const std::string& text) {
  const auto request = decode_upload(text);
  if (!request) return http_error(request.error());
  if (!state.wiring || !state.wiring->plan || state.wiring->plan->lineage != request->lineage)
    return http_error({ErrorCode::kStepUnavailable,
                       "another lineage is in force here",
                       fmt::format("lineage {}", request->lineage),
                       {},
                       {},
                       {}});
  const JobPlan& plan = *state.wiring->plan;
  for (const ShardId shard : request->shards)
    if (shard >= plan.shards.shards().size())
      return http_error({ErrorCode::kOutOfRange, "the job has no such shard", std::to_string(shard), {}, {}, {}});
  begin(state, plan);
  const auto uploaded = upload_here(state, plan, *request);
  if (!uploaded) return http_error(uploaded.error());
  return {200, encode_uploaded(*uploaded)};
}

// -- the home's part -----------------------------------------------------------------------------------------------

using Parts = std::map<MemberIndex, std::vector<ShardId>>;

// Asks each shard's best producer; one that fails is left out and the next one asked.
Result<std::vector<schema::ShardObjects>> gather(PublisherPointer self, const PublishView& view, StepNumber step) {
  PublisherState& state = self->state;
  const JobPlan& plan = *view.plan;
  const std::size_t count = plan.shards.shards().size();
  std::vector<std::optional<schema::ShardObjects>> done(count);
  std::set<MemberIndex> failing;
  Error last{ErrorCode::kPeerUnreachable, "no live owner can upload a shard", {}, {}, {}, {}};
  for (;;) {
    Parts parts;
    for (ShardId shard = 0; shard < count; ++shard) {
      if (done[shard]) continue;
      const auto& producers = view.producers[shard];
      const auto producer = std::find_if(producers.begin(), producers.end(),
                                         [&](MemberIndex member) { return !failing.contains(member); });
      if (producer == producers.end()) {
        last.where = fmt::format("shard {} step {}", shard, step);
        return std::unexpected(last);
      }
      parts[*producer].push_back(shard);
    }
    if (parts.empty()) break;
    UploadRequest request;
    request.lineage = plan.lineage;
    request.step = step;
    request.previous_step = state.newest ? state.newest->record.canonical.step : 0;
    caf::scoped_actor waiter{self->system()};
    std::map<MemberIndex, Result<std::vector<UploadedShard>>> answers;
    // The others work while this node does its own part.
    std::vector<std::pair<MemberIndex, std::function<void()>>> waits;
    for (const auto& [member, shards] : parts) {
      if (member == state.options.cluster->self()) continue;
      request.shards = shards;
      auto handle = std::make_shared<decltype(waiter->request(state.wiring->membership, kPeerUploadDeadline, ask_atom_v,
                                                              std::uint64_t{0}, std::string(), std::string()))>(
          waiter->request(state.wiring->membership, kPeerUploadDeadline, ask_atom_v, std::uint64_t{member},
                          std::string("upload"), encode_upload(request)));
      waits.emplace_back(member, [&answers, handle, member = member, self] {
        handle->receive([&](const HttpAnswer& got) { answers.emplace(member, decode_uploaded(got.body)); },
                        [&](const caf::error& error) {
                          answers.emplace(member, fail(ErrorCode::kTimeout, "a member did not upload in time", {}, {},
                                                       self->system().render(error)));
                        });
      });
    }
    if (const auto own = parts.find(state.options.cluster->self()); own != parts.end()) {
      request.shards = own->second;
      answers.emplace(own->first, upload_here(state, plan, request));
    }
    for (auto& [member, wait] : waits) wait();
    for (auto& [member, answer] : answers) {
      if (!answer) {
        failing.insert(member);
        last = answer.error();
        // A store that is full or broken is so for everybody.
        if (last.code == ErrorCode::kStoreFull || last.code == ErrorCode::kObjectStore) return std::unexpected(last);
        continue;
      }
      for (const UploadedShard& change : *answer) {
        const auto& asked = parts[member];
        if (std::find(asked.begin(), asked.end(), change.shard) == asked.end()) continue;
        auto objects = apply_difference(previous_of(state, change.shard), change);
        if (!objects) {
          failing.insert(member);
          last = objects.error();
          break;
        }
        done[change.shard] = std::move(*objects);
      }
    }
    for (const auto& [member, shards] : parts)
      if (std::any_of(shards.begin(), shards.end(), [&](ShardId shard) { return !done[shard]; }))
        failing.insert(member);
  }
  std::vector<schema::ShardObjects> all;
  for (auto& objects : done) all.push_back(std::move(*objects));
  return all;
}

Result<storage::StoredPoint> publish(PublisherPointer self, const PublishView& view, const SideStateOfStep& side) {
  PublisherState& state = self->state;
  const JobPlan& plan = *view.plan;
  const StepNumber step = *view.due;
  const recovery::PointTarget target = target_of(state, plan);
  const recovery::StoreSource source(state.options.store, plan.job, plan.lineage);
  recovery::PointFacts facts;
  facts.step = step;
  GRADTAP_LET(shards, gather(self, view, step));
  GRADTAP_LET(steps,
              recovery::put_steps(target, source, shards, step,
                                  state.newest ? state.newest->record.steps : std::vector<schema::StepObject>()));
  if (!state.meta) {
    const auto lineages = state.options.store->lineages(plan.job);
    if (!lineages) return std::unexpected(lineages.error());
    for (const schema::LineageRecord& record : *lineages) {
      if (record.lineage != plan.lineage) continue;
      GRADTAP_LET(meta, recovery::put_meta(target, record));
      state.meta = meta;
    }
    if (!state.meta)
      return fail(ErrorCode::kStepUnavailable, "the lineage's record is not here",
                  fmt::format("lineage {}", plan.lineage));
  }
  GRADTAP_LET(side_ref, recovery::put_side(target, side.state));
  if (state.options.kill_points != nullptr) state.options.kill_points->reached(storage::kPointAfterUpload);
  if (state.claim) {
    facts.parent_lineage = state.claim->parent_lineage;
    facts.parent_step = state.claim->parent_step;
    facts.parent_record = state.claim->parent_record;
  }
  facts.shard_digests = view.digests;
  facts.layout_id = side.next_layout;
  facts.layout_json = side.next_layout_json;
  facts.step_message = side.step_message;
  facts.verdict = side.verdict;
  facts.shards = std::move(shards);
  facts.steps = std::move(steps);
  facts.side = side_ref;
  facts.meta = *state.meta;
  if (state.newest) {
    facts.previous_step = state.newest->record.canonical.step;
    facts.previous_record = state.newest->digest;
  }
  facts.publisher = state.options.cluster->name(state.options.cluster->self());
  facts.created_wall_ms = state.options.clock->wall_ms();
  facts.training = view.training;
  facts.verified = view.verified;
  facts.durable = view.durable;
  facts.published = facts.previous_step;
  facts.software = kSoftware;
  GRADTAP_LET(record, recovery::assemble_point(plan, side.state, std::move(facts)));
  GRADTAP_LET(created, storage::create_point(*state.options.objects, record));
  return std::move(created.point);
}

void retain(PublisherPointer self) {
  PublisherState& state = self->state;
  const std::uint64_t now = state.options.clock->monotonic_ns();
  if (state.retained_ns != 0 && now - state.retained_ns < state.options.retain_every_ms * 1'000'000) return;
  state.retained_ns = now;
  const auto report = state.retention->run(state.options.job_name);
  if (!report) {
    ++state.failures;
    state.last_error = report.error().text();
    return;
  }
  state.points_deleted += report->points_deleted;
  state.objects_deleted += report->objects_deleted;
}

// A node that has just become home may lack what an earlier home could not hand over: its peers have it.
void ask_peers_for_side_values(PublisherPointer self, StepNumber step) {
  PublisherState& state = self->state;
  const std::uint64_t now = state.options.clock->monotonic_ns();
  const std::vector<MemberIndex> peers = state.options.cluster->live_peers();
  if (peers.empty() || !state.wiring->fetcher || (state.synced_ns != 0 && now - state.synced_ns < kSyncEveryNs)) return;
  state.synced_ns = now;
  const MemberIndex peer = peers[state.synced_from++ % peers.size()];
  self->request(state.wiring->fetcher, kSyncDeadline, sync_atom_v, std::uint64_t{peer}, std::uint64_t{step - 1})
      .then([](const Outcome&) {}, [](const caf::error&) {});
}

// Every live peer must see the same store: two directories of one name would each hold half of every point.
Status store_is_shared(PublisherState& state) {
  const ClusterState& cluster = *state.options.cluster;
  for (const MemberIndex peer : cluster.live_peers()) {
    const storage::StoreHello theirs = cluster.store(peer);
    if (theirs.presence_key.empty() || state.seen_peers[peer] == theirs.presence_key) continue;
    GRADTAP_TRY(storage::sees_peer(*state.options.objects, cluster.store(cluster.self()), cluster.name(peer), theirs));
    state.seen_peers[peer] = theirs.presence_key;
  }
  return {};
}

// One step, if one is due. True: there may be another one.
bool look(PublisherPointer self) {
  PublisherState& state = self->state;
  if (!state.wiring || !state.wiring->coordinator || !state.wiring->plan || !state.options.cluster->is_home()) {
    state.listed = false;  // whoever is home meanwhile publishes
    if (!state.told.empty()) tell(self, {});
    return false;
  }
  if (state.options.clock->monotonic_ns() < state.not_before_ns) return false;
  const JobPlan& plan = *state.wiring->plan;
  if (const Status known = look_at_store(state, plan); !known) {
    failed(self, 0, known.error());
    return false;
  }
  if (state.conflict) return false;
  if (!plan.unknown_leaves.empty()) return false;  // the coordinator names them
  PublishViewPtr view;
  const StepNumber previous =
      std::max({state.newest ? state.newest->record.canonical.step : plan.base_step, state.given_up, plan.base_step});
  caf::scoped_actor waiter{self->system()};
  waiter
      ->request(state.wiring->coordinator, kCoordinatorDeadline, publish_atom_v, std::uint64_t{previous},
                std::uint64_t{state.options.interval_steps})
      .receive([&](const PublishViewPtr& got) { view = got; }, [](const caf::error&) {});
  if (!view || view->plan->lineage != plan.lineage) return false;
  if (view->diverged || !view->due) {
    tell(self, {});
    return false;
  }
  const StepNumber step = *view->due;
  if (const Status shared = store_is_shared(state); !shared) {
    failed(self, step, shared.error());
    return false;
  }
  const auto side = read_side_state(*state.options.store, plan, step);
  if (!side) {
    if (side.error().code != ErrorCode::kSideStateMissing) {
      failed(self, step, side.error());
      return false;
    }
    tell(self, {{GapReason::kSideStateMissing, step, side.error().text(), "the ranks commit one after another"}});
    // Steps after it wait for the same ranks; one that never comes whole is left behind.
    // So may a later one that this node was never handed: it asks its peers, at once or when nothing comes.
    const std::uint64_t now = state.options.clock->monotonic_ns();
    if (std::exchange(state.side_missing, step) != step) state.side_missing_ns = now;
    if (view->durable > step + 1 || now - state.side_missing_ns > kSideMissingNs) ask_peers_for_side_values(self, step);
    // What the client says that it dropped never comes; what it does not say so of may lie with a peer that is not
    // connected yet.
    const bool never = side.error().expected != kMayCome;
    if (view->durable > step + 4 && (never || now - state.side_missing_ns > kGiveUpNs)) {
      state.given_up = step;
      ++state.steps_given_up;
      return true;
    }
    return false;
  }
  const std::uint64_t begun = state.options.clock->monotonic_ns();
  auto point = publish(self, *view, *side);
  if (!point) {
    failed(self, step, point.error());
    if (point.error().code == ErrorCode::kStoreFull) {  // what is not needed any more makes room for the next try
      state.retained_ns = 0;
      retain(self);
    }
    return false;
  }
  state.retry_ms = 0;
  state.newest = std::move(*point);
  ++state.points;
  state.publish_us_last = (state.options.clock->monotonic_ns() - begun) / 1000;
  tell(self, {});
  if (state.options.kill_points != nullptr) state.options.kill_points->reached(storage::kPointAfterAnnounce);
  retain(self);
  return true;
}

PublisherActor::behavior_type publisher(PublisherPointer self, const PublisherOptions& options) {
  PublisherState& initial = self->state;
  initial.options = options;
  storage::PointRetainOptions retaining;
  retaining.points_kept = options.points_kept;
  retaining.lease_timeout_ms = options.lease_timeout_ms;
  initial.retention = std::make_unique<storage::PointRetention>(*options.objects, *options.clock, retaining);
  self->delayed_send(self, std::chrono::milliseconds(200), tick_atom_v);
  return {
      [self](tick_atom) {
        PublisherState& state = self->state;
        // Many events make one look; a failed one is repeated by the clock.
        if (self->current_sender() == self->ctrl()) state.tick_queued = false;
        const bool again = look(self);
        if (state.tick_queued) return;
        state.tick_queued = true;
        if (again)
          self->send(self, tick_atom_v);
        else
          self->delayed_send(self, std::chrono::milliseconds(200), tick_atom_v);
      },
      [self](upload_atom, const std::string& text) { return answer_upload(self->state, text); },
      [self](wire_atom, const WiringPtr& wiring) { self->state.wiring = wiring; },
      [self](status_atom) {
        const PublisherState& state = self->state;
        const nlohmann::json body = {{"points", state.points},
                                     {"uploads", state.uploads},
                                     {"failures", state.failures},
                                     {"steps_given_up", state.steps_given_up},
                                     {"points_deleted", state.points_deleted},
                                     {"objects_deleted", state.objects_deleted},
                                     {"publish_us_last", state.publish_us_last},
                                     {"retry_ms", state.retry_ms},
                                     {"store", state.options.objects->describe()},
                                     {"last_error", state.last_error}};
        return ActorStatus{PublisherState::name, body.dump(-1, ' ', false, nlohmann::json::error_handler_t::replace)};
      },
  };
}

}  // namespace

PublisherActor spawn_publisher(caf::actor_system& system, PublisherOptions options) {
  return system.spawn<caf::detached>(publisher, std::move(options));
}

}  // namespace gradtap::actors
