#include "actors/coordinator.h"

#include <algorithm>
#include <map>
#include <memory>
#include <utility>
#include <vector>

#include "actors/peer_codec.h"
#include "common/log.h"

namespace gradtap::actors {

namespace {

constexpr std::chrono::milliseconds kTick{50};
constexpr std::chrono::milliseconds kAnswerDeadline{5000};
constexpr std::chrono::milliseconds kSyncDeadline{60'000};
constexpr std::chrono::milliseconds kReportDelay{5};
constexpr std::uint64_t kReportEveryNs = 500'000'000;
constexpr std::size_t kDigestsPerReport = 512;
constexpr std::uint64_t kPublishBehindMax = 64;  // intervals
constexpr std::uint64_t kDigestWaitNs = 1'000'000'000;

struct CoordinatorState {
  static inline const char* name = "coordinator";
  CoordinatorOptions options;
  std::unique_ptr<Coordination> core;
  WiringPtr wiring;
  bool base_reported = false;
  bool report_scheduled = false;
  std::size_t asked_peers = 0;
  std::uint64_t reported_ns = 0;
  std::vector<PeerReport::Digest> fresh_digests;  // not yet reported to peers
  std::optional<StepNumber> lacking;              // due for publishing, its digests are with the peers
  std::uint64_t lacking_since_ns = 0;
};

using CoordinatorPointer = CoordinatorActor::stateful_pointer<CoordinatorState>;

void carry_out(CoordinatorPointer self);

const AssemblerActor& assembler_of(const Wiring& wiring, const dataplane::OpKey& op) {
  return wiring.assemblers[op.tag % wiring.assemblers.size()];
}

struct Carrier {
  CoordinatorPointer self;

  [[nodiscard]] const Wiring& wiring() const { return *self->state.wiring; }
  [[nodiscard]] OwnerActor owner_of(ShardId shard) const {
    return shard < wiring().owner_of.size() ? wiring().owner_of[shard] : OwnerActor();
  }

  void operator()(const AskWords& ask) const {
    self->request(assembler_of(wiring(), ask.query.op), kAnswerDeadline, words_atom_v, ask.query)
        .then(
            [self = self, ticket = ask.ticket](const WordAnswer& answer) {
              self->state.core->on_words(ticket, answer);
              carry_out(self);
            },
            [self = self, ticket = ask.ticket](const caf::error&) {
              self->state.core->on_words(ticket, std::nullopt);
              carry_out(self);
            });
  }
  void operator()(const OrderBind& order) const {
    self->request(assembler_of(wiring(), order.order.op), kAnswerDeadline, bind_atom_v, order.order)
        .then(
            [self = self, ticket = order.ticket](const Outcome& outcome) {
              self->state.core->on_bind(ticket, outcome);
              carry_out(self);
            },
            [self = self, ticket = order.ticket](const caf::error&) {
              self->state.core->on_bind(
                  ticket,
                  Outcome{false,
                          {ErrorCode::kTimeout, "an assembler did not bind in time", {}, {}, {}, "see its status"}});
              carry_out(self);
            });
  }
  void operator()(const AskDrain& drain) const {
    auto open = std::make_shared<std::size_t>(wiring().ingress.size());
    auto all = std::make_shared<bool>(true);
    const auto close_one = [self = self, ticket = drain.ticket, open, all](bool done) {
      *all = *all && done;
      if (--*open > 0) return;
      const auto& refusal = self->state.options.refusal;
      self->state.core->on_drained(ticket, *all, refusal ? refusal() : std::string());
      carry_out(self);
    };
    if (*open == 0) {
      self->state.core->on_drained(drain.ticket);
      return;
    }
    for (const IngressActor& ingress : wiring().ingress)
      self->request(ingress, kAnswerDeadline, drain_atom_v)
          .then([close_one](const DrainReport&) { close_one(true); },
                [close_one](const caf::error&) { close_one(false); });
  }
  void operator()(const FetchStep& fetch) const {
    for (const OwnerActor& owner : wiring().owners) self->send(owner, fetch_atom_v, fetch.go);
  }
  void operator()(const FetchShard& fetch) const {
    if (const OwnerActor owner = owner_of(fetch.shard)) self->send(owner, fetch_atom_v, fetch.go);
  }
  void operator()(const AskVersion& ask) const {
    if (const OwnerActor owner = owner_of(ask.shard)) self->send(owner, version_atom_v, std::uint64_t{ask.at_least});
  }
  void operator()(const ReleaseShard& release) const {
    if (const OwnerActor owner = owner_of(release.shard)) self->send(owner, release_atom_v);
  }
  void operator()(const GiveGo& go) const {
    for (const OwnerActor& owner : wiring().owners) self->send(owner, go_atom_v, go.go);
  }
  void operator()(const ForgetBelow& forget) const {
    for (const AssemblerActor& assembler : wiring().assemblers)
      self->send(assembler, forget_atom_v, forget.comm, forget.tag);
    for (const IngressActor& ingress : wiring().ingress) self->send(ingress, forget_atom_v, forget.comm, forget.tag);
  }
  void operator()(const AskLayout& ask) const { self->send(wiring().side_channel, ask_atom_v, to_hex(ask.layout)); }
  // A hand-over from the home that failed while this node stayed live: nothing else would bring it.
  void operator()(const AskMessages& ask) const {
    const ClusterState* cluster = self->state.options.cluster.get();
    if (cluster == nullptr || !wiring().fetcher) return;
    const std::vector<MemberIndex> peers = cluster->live_peers();
    if (peers.empty()) return;
    // The home first; it may be a node that came later than the message, so then the others in turn.
    auto home = cluster->home();
    if (!home || *home == cluster->self() || self->state.asked_peers++ % 2 == 1)
      home = peers[self->state.asked_peers / 2 % peers.size()];
    self->request(wiring().fetcher, kSyncDeadline, sync_atom_v, std::uint64_t{*home}, std::uint64_t{ask.after})
        .then([](const Outcome&) {}, [](const caf::error&) {});
  }
  void operator()(const PublishSizes& publish) const {
    for (const AssemblerActor& assembler : wiring().assemblers) self->send(assembler, sizes_atom_v, publish.sizes);
    for (const IngressActor& ingress : wiring().ingress) self->send(ingress, sizes_atom_v, publish.sizes);
  }
  void operator()(const NoteEvent& note) const {
    const JobPlan& plan = *self->state.options.plan;
    self->state.options.events->add(note.warning ? LogLevel::kWarn : LogLevel::kInfo, note.text,
                                    {{"job", plan.job_name}, {"lineage", plan.lineage}});
  }
};

void carry_out(CoordinatorPointer self) {
  if (!self->state.wiring) return;  // commands wait for the wiring
  // Carrying a command out may bring new ones (a drain of no queues).
  for (auto commands = self->state.core->take_commands(); !commands.empty();
       commands = self->state.core->take_commands())
    for (const Command& command : commands) std::visit(Carrier{self}, command);
}

// The base versions may all be durable before the wiring is here: both events look.
void report_base(CoordinatorPointer self) {
  CoordinatorState& state = self->state;
  if (state.base_reported || !state.wiring || !state.wiring->side_channel || !state.core->base_durable()) return;
  state.base_reported = true;
  self->send(state.wiring->side_channel, durable_atom_v, std::uint64_t{state.core->durable()});
}

// Peers hear what is new at most once in a few milliseconds, and twice a second that nothing is.
void schedule_report(CoordinatorPointer self) {
  CoordinatorState& state = self->state;
  if (state.report_scheduled || !state.wiring) return;
  state.report_scheduled = true;
  self->delayed_send(self, kReportDelay, flush_atom_v);
}

// Retention forgets what every owner, live or not, has on disk; logs are kept here until the co-owners have them.
void release(CoordinatorPointer self) {
  const CoordinatorState& state = self->state;
  const JobProgress& progress = state.core->progress();
  StepNumber lowest = ~StepNumber{0};
  for (ShardId shard = 0; shard < progress.shards(); ++shard) {
    const StepNumber step = progress.lowest_durable(shard);
    if (state.options.retention) state.options.retention->release(state.options.plan->lineage, shard, step);
    lowest = std::min(lowest, step);
  }
  if (state.options.config.points_configured) lowest = std::min(lowest, state.core->published());
  if (lowest != ~StepNumber{0} && state.wiring && state.wiring->keeper)
    self->send(state.wiring->keeper, retain_atom_v, std::uint64_t{lowest});
}

void send_report(CoordinatorPointer self) {
  CoordinatorState& state = self->state;
  state.report_scheduled = false;
  state.reported_ns = state.options.clock->monotonic_ns();
  if (state.options.published_seen) state.options.published_seen->store(state.core->published());
  if (!state.wiring) return;
  release(self);
  const Coordination& core = *state.core;
  if (state.wiring->publisher) self->send(state.wiring->publisher, tick_atom_v);
  if (!state.wiring->membership) {
    state.fresh_digests.clear();
    return;
  }
  PeerReport report;
  report.member = core.shape().self;
  report.training = core.training();
  report.bound = core.bound();
  report.published = core.published();
  report.delta = core.delta();
  report.gaps = core.local_gaps();
  report.digests_wanted = state.lacking;
  report.epoch = core.shape().epoch;
  for (ShardId shard = 0; shard < core.progress().shards(); ++shard)
    if (const ShardHolder* own = core.progress().holder(shard, report.member); own != nullptr && own->progress.known)
      report.shards.push_back({shard, own->progress.version, own->progress.durable, own->progress.from});
  const std::size_t count = std::min(state.fresh_digests.size(), kDigestsPerReport);
  report.digests.assign(state.fresh_digests.begin(), state.fresh_digests.begin() + static_cast<std::ptrdiff_t>(count));
  state.fresh_digests.erase(state.fresh_digests.begin(),
                            state.fresh_digests.begin() + static_cast<std::ptrdiff_t>(count));
  self->send(state.wiring->membership, report_atom_v, encode_report(report, state.options.plan->lineage));
  if (!state.fresh_digests.empty()) schedule_report(self);
}

// Of the step that is due, or of the newest one when nobody can say those of the due one. A home that was away asks:
// its peers applied meanwhile what it will only read from disk.
std::optional<std::vector<Sha256>> digests_to_publish(CoordinatorPointer self, StepNumber& due, StepNumber last) {
  CoordinatorState& state = self->state;
  const JobProgress& progress = state.core->progress();
  auto digests = progress.digests(due);
  if (digests) {
    state.lacking.reset();
    return digests;
  }
  const std::uint64_t now = state.options.clock->monotonic_ns();
  if (state.lacking != due) {
    state.lacking = due;
    state.lacking_since_ns = now;
    schedule_report(self);
  }
  if (now - state.lacking_since_ns < kDigestWaitNs) return std::nullopt;
  return progress.digests(due = last);
}

// A peer that was away lacks what was reported meanwhile.
void answer_wanted(CoordinatorPointer self, const PeerReport& report) {
  CoordinatorState& state = self->state;
  if (!report.digests_wanted || !state.fresh_digests.empty()) return;  // it asks again
  for (const auto& known :
       state.core->progress().digests_of(state.core->shape().self, *report.digests_wanted, kDigestsPerReport))
    state.fresh_digests.push_back({known.shard, known.step, known.digest});
  if (!state.fresh_digests.empty()) schedule_report(self);
}

// Every step in turn, unless the publisher is far behind: then the newest one.
PublishViewPtr publish_view(CoordinatorPointer self, StepNumber previous, std::uint64_t interval) {
  const CoordinatorState& state = self->state;
  const Coordination& core = *state.core;
  const JobProgress& progress = core.progress();
  auto view = std::make_shared<PublishView>();
  view->plan = state.options.plan;
  view->training = core.training();
  view->verified = core.verified();
  view->durable = core.durable();
  view->diverged = progress.diverged();
  const auto newest = progress.publishable();
  if (!newest || interval == 0) return view;
  const StepNumber last = *newest - *newest % interval;
  StepNumber due = previous - previous % interval + interval;
  if (last < due) return view;
  if (last - due > kPublishBehindMax * interval) due = last;
  auto digests = digests_to_publish(self, due, last);
  if (!digests) return view;
  view->due = due;
  view->digests = std::move(*digests);
  for (ShardId shard = 0; shard < progress.shards(); ++shard) view->producers.push_back(progress.producers(shard, due));
  return view;
}

CoordinatorActor::behavior_type coordinator(CoordinatorPointer self, const CoordinatorOptions& options) {
  self->state.options = options;
  dataplane::SizeTable sizes;
  for (const std::uint64_t bytes : options.plan->expected_op_bytes)
    if (bytes > 0) (void)sizes.add({bytes, 4});  // a hint that is no size is no hint
  self->state.core = std::make_unique<Coordination>(
      options.plan, options.config, *options.clock, options.version, std::move(sizes),
      options.shape.owners.empty() ? single_member(options.plan->shards.shards().size()) : options.shape, options.held);
  self->state.core->on_published(options.published, {});
  if (options.cluster)
    for (const MemberIndex member : options.cluster->live_peers()) self->state.core->on_live(member, true);
  self->delayed_send(self, kTick, tick_atom_v);
  return {
      [self](ops_atom, const OpSummariesPtr& ops) {
        self->state.core->on_ops(*ops);
        carry_out(self);
      },
      [self](step_atom, const StepMessagePtr& message) {
        self->state.core->on_step(message);
        carry_out(self);
      },
      [self](layout_atom, const LayoutPtr& layout) {
        self->state.core->on_layout(layout);
        carry_out(self);
      },
      [self](notice_atom, const ClientNoticePtr& notice) {
        self->state.core->on_notice(*notice);
        carry_out(self);
      },
      [self](applied_atom, const Applied& applied) {
        self->state.core->on_applied(applied);
        if (applied.outcome.ok) self->state.fresh_digests.push_back({applied.shard, applied.step, applied.digest});
        schedule_report(self);
        carry_out(self);
      },
      [self](durable_atom, const Durable& durable) {
        CoordinatorState& state = self->state;
        state.core->on_durable(durable);
        if (!self->state.base_reported && self->state.wiring && self->state.wiring->side_channel)
          self->send(self->state.wiring->side_channel, flush_atom_v, std::uint64_t{self->state.core->durable_shards()});
        report_base(self);
        schedule_report(self);
        carry_out(self);
      },
      [self](version_atom, std::uint32_t shard, std::uint64_t step) {
        self->state.core->on_jumped(shard, step);
        carry_out(self);
      },
      [self](report_atom, const PeerReportPtr& report) {
        self->state.core->on_peer(*report);
        answer_wanted(self, *report);
        release(self);
        report_base(self);
        if (self->state.wiring && self->state.wiring->publisher) self->send(self->state.wiring->publisher, tick_atom_v);
        carry_out(self);
      },
      [self](live_atom, std::uint64_t member, bool live) {
        self->state.core->on_live(member, live);
        report_base(self);
        schedule_report(self);
        carry_out(self);
      },
      [self](epoch_atom, const ClusterShapePtr& shape) {
        self->state.core->on_epoch(*shape);
        schedule_report(self);
        carry_out(self);
      },
      [self](placement_atom) {
        return PlacementViewPtr(std::make_shared<const PlacementView>(self->state.core->placement()));
      },
      [self](publish_atom, std::uint64_t step, const GapsPtr& gaps) {
        self->state.core->on_published(step, *gaps);
        schedule_report(self);
        carry_out(self);
      },
      [self](publish_atom, std::uint64_t previous, std::uint64_t interval) {
        return publish_view(self, previous, interval);
      },
      [self](flush_atom) { send_report(self); },
      [self](tick_atom) {
        self->state.core->tick();
        if (self->state.options.clock->monotonic_ns() - self->state.reported_ns > kReportEveryNs) send_report(self);
        carry_out(self);
        self->delayed_send(self, kTick, tick_atom_v);
      },
      [self](wire_atom, const WiringPtr& wiring) {
        self->state.wiring = wiring;
        report_base(self);
        carry_out(self);
      },
      [self](digests_atom, std::uint64_t from, std::uint64_t to) {
        return HttpAnswer{200, self->state.core->roots(from, to).dump()};
      },
      [self](status_atom) {
        nlohmann::json body = self->state.core->status();
        body["warnings"] = self->state.options.warnings;
        return ActorStatus{CoordinatorState::name, body.dump(-1, ' ', false, nlohmann::json::error_handler_t::replace)};
      },
  };
}

}  // namespace

CoordinatorActor spawn_coordinator(caf::actor_system& system, CoordinatorOptions options) {
  return system.spawn(coordinator, std::move(options));
}

}  // namespace gradtap::actors
