#include "actors/coordination.h"

#include <algorithm>
#include <bit>
#include <cmath>
#include <utility>

#include <fmt/format.h>

#include "common/witness.h"
#include "replica/digest.h"

namespace gradtap::actors {

namespace {

constexpr std::size_t kOpsKept = 16'384;
constexpr std::size_t kDroppedKept = 65'536;
constexpr std::size_t kMessageTimesKept = 64;
constexpr std::uint64_t kAskAgainNs = 1'000'000'000;
constexpr std::uint64_t kJumpAfterNs = 5'000'000'000;
constexpr std::uint64_t kFetchAgainNs = 50'000'000;  // what a peer has bound is there for others a little later
constexpr unsigned kNewestVersionTries = 4;
constexpr std::uint64_t kAskVersionAgainNs = 300'000'000;
constexpr std::uint64_t kWantedVersionNs = 15'000'000'000;

dataplane::StepVerdict to_dataplane(replica::Verdict verdict) {
  switch (verdict) {
    case replica::Verdict::kApplied:
      return dataplane::StepVerdict::kApplied;
    case replica::Verdict::kSkipped:
      return dataplane::StepVerdict::kSkipped;
    case replica::Verdict::kAmbiguous:
      break;
  }
  return dataplane::StepVerdict::kAmbiguous;
}

std::string join_ranges(const std::vector<Interval>& ranges, std::size_t most) {
  std::string text;
  for (std::size_t i = 0; i < ranges.size() && i < most; ++i)
    text += fmt::format("{}[{},{})", i == 0 ? "" : " ", ranges[i].begin, ranges[i].end);
  if (ranges.size() > most) text += fmt::format(" and {} more", ranges.size() - most);
  return text;
}

// The assignment that a gap speaks of: the only one at the learnt offset of tags that the witness has not refuted.
// After a shift the collectives of another step may well have the same sizes.
std::optional<std::size_t> assignment_to_name(const std::vector<dataplane::Assignment>& list,
                                              const std::vector<std::vector<dataplane::WitnessOutcome>>& outcomes) {
  if (list.size() == 1) return 0;
  std::optional<std::size_t> found;
  for (std::size_t a = 0; a < list.size(); ++a) {
    const bool refuted = std::any_of(outcomes[a].begin(), outcomes[a].end(), [](const auto& outcome) {
      return outcome.result == dataplane::WitnessResult::kMismatched;
    });
    if (list[a].shifted || refuted) continue;
    if (found) return std::nullopt;
    found = a;
  }
  return found;
}

ProgressConfig progress_config(const ClusterShape& shape, const CoordinationConfig& config) {
  ProgressConfig progress;
  for (const auto& owners : shape.owners) progress.copies = std::max(progress.copies, owners.size());
  progress.copies = std::min<std::size_t>(progress.copies, 2);
  progress.degraded_durable = config.degraded_durable;
  progress.steps_kept = config.roots_kept;
  return progress;
}

}  // namespace

ClusterShape single_member(std::size_t shards) {
  return {0, {"this node"}, std::vector<std::vector<MemberIndex>>(shards, std::vector<MemberIndex>{0})};
}

Coordination::Coordination(JobPlanPtr plan, const CoordinationConfig& config, const Clock& clock, StepNumber version,
                           dataplane::SizeTable sizes)
    : Coordination(plan, config, clock, version, std::move(sizes), single_member(plan->shards.shards().size())) {}

namespace {

std::map<ShardId, HeldShard> all_held(const ClusterShape& shape, StepNumber version) {
  std::map<ShardId, HeldShard> held;
  for (ShardId shard = 0; shard < shape.owners.size(); ++shard)
    if (std::find(shape.owners[shard].begin(), shape.owners[shard].end(), shape.self) != shape.owners[shard].end())
      held[shard] = {version, 0};
  return held;
}

}  // namespace

Coordination::Coordination(JobPlanPtr plan, const CoordinationConfig& config, const Clock& clock, StepNumber version,
                           dataplane::SizeTable sizes, ClusterShape shape)
    : Coordination(std::move(plan), config, clock, version, std::move(sizes), shape, all_held(shape, version)) {}

Coordination::Coordination(JobPlanPtr plan, const CoordinationConfig& config, const Clock& clock, StepNumber version,
                           dataplane::SizeTable sizes, ClusterShape shape, const std::map<ShardId, HeldShard>& held)
    : plan_(std::move(plan)),
      config_(config),
      clock_(clock),
      sizes_(std::move(sizes)),
      base_(version),
      newest_message_(version),
      bound_(version),
      applied_here_(version),
      shape_(std::move(shape)),
      progress_(shape_.owners, shape_.names, progress_config(shape_, config), shape_.epoch),
      live_(shape_.names.size(), false),
      last_message_ns_(clock.monotonic_ns()) {
  std::vector<ShardId> holds;
  for (const auto& [shard, has] : held) holds.push_back(shard);
  progress_.on_report(shape_.self, shape_.epoch);
  progress_.on_holds(shape_.self, holds);
  for (const auto& [shard, has] : held) {
    applied_[shard] = has.version;
    progress_.on_version(shape_.self, shard, has.version);
    progress_.on_from(shape_.self, shard, has.from);
  }
  for (ShardId shard = 0; shard < shape_.owners.size(); ++shard) own(shard);
  on_live(shape_.self, true);
  commands_.emplace_back(PublishSizes{std::make_shared<const dataplane::SizeTable>(sizes_)});
}

std::vector<Command> Coordination::take_commands() {
  return std::exchange(commands_, {});
}

void Coordination::note(bool warning, std::string text) {
  commands_.emplace_back(NoteEvent{warning, std::move(text)});
}

// -- inputs --------------------------------------------------------------------------------------------------------

void Coordination::on_layout(const LayoutPtr& layout) {
  if (layouts_.contains(layout->id())) return;
  if (layouts_.size() >= config_.layouts_max) {
    // The layout in force is the one the attempt uses; any other may go and is asked for again when it is needed.
    for (auto it = layouts_.begin(); it != layouts_.end(); ++it)
      if (!attempt_.message || it->first != attempt_.message->layout_id) {
        layouts_.erase(it);
        ++layouts_evicted_;
        break;
      }
  }
  LayoutEntry entry{layout, {}};
  std::vector<std::uint64_t> bytes;
  for (std::size_t i = 0; i < layout->bucket_count(); ++i) {
    entry.slices.push_back(std::make_shared<const std::vector<replica::Slice>>(plan_->shards.slices(*layout, i)));
    bytes.push_back(layout->bucket_bytes(i));
    if (layout->bucket_bytes(i) > 0) (void)sizes_.add({layout->bucket_bytes(i), 4});
  }
  layouts_.emplace(layout->id(), std::move(entry));
  if (const Status added = binder_.add_layout(layout->id(), std::move(bytes), sizes_.version()); !added)
    note(true, added.error().text());
  commands_.emplace_back(PublishSizes{std::make_shared<const dataplane::SizeTable>(sizes_)});
  attempt_.changed = true;
  advance();
}

void Coordination::on_step(const StepMessagePtr& message) {
  last_message_ns_ = clock_.monotonic_ns();
  newest_message_ = std::max(newest_message_, message->step);
  if (message->step <= bound_ || messages_.contains(message->step)) return;
  if (messages_.size() >= config_.pending_steps_max) {
    ++messages_refused_;
    if (dropped_.size() < kDroppedKept) dropped_.insert(message->step);
    return;
  }
  messages_.emplace(message->step, message);
  message_ns_[message->step] = last_message_ns_;
  while (message_ns_.size() > kMessageTimesKept) message_ns_.erase(message_ns_.begin());
  advance();
}

void Coordination::on_notice(const ClientNotice& notice) {
  for (const StepNumber step : notice.dropped_steps)
    if (step > bound_ && dropped_.size() < kDroppedKept) dropped_.insert(step);
  if (notice.detached) {
    detached_ = true;
    detach_reason_ = notice.reason;
  }
  advance();
}

void Coordination::on_ops(std::span<const dataplane::OpSummary> ops) {
  for (const dataplane::OpSummary& op : ops) {
    ops_[op.op] = op;
    binder_.update(op);
  }
  while (ops_.size() > kOpsKept) ops_.erase(ops_.begin());
  if (!ops.empty()) {
    attempt_.changed = true;
    last_ops_ns_ = clock_.monotonic_ns();
  }
  advance();
}

void Coordination::on_words(std::uint64_t ticket, const std::optional<WordAnswer>& answer) {
  if (attempt_.phase != Phase::kAsking || ticket < attempt_.first_ticket ||
      ticket - attempt_.first_ticket >= attempt_.asked.size())
    return;  // of an earlier evaluation
  const auto [assignment, bucket] = attempt_.asked[ticket - attempt_.first_ticket];
  if (answer) {
    attempt_.outcomes[assignment][bucket] = compare(bucket, *answer);
    attempt_.missing[assignment][bucket] = answer->missing;
  } else {
    attempt_.changed = true;  // ask again
  }
  if (--attempt_.open_tickets > 0) return;
  attempt_.phase = Phase::kWatching;
  judge();
  advance();
}

void Coordination::on_bind(std::uint64_t ticket, const Outcome& outcome) {
  if (attempt_.phase != Phase::kBinding || ticket < attempt_.first_ticket ||
      ticket - attempt_.first_ticket >= attempt_.asked.size())
    return;
  if (!outcome.ok) {
    attempt_.bind_failed = true;
    attempt_.bind_error = outcome.error.text();
    attempt_.changed |= outcome.error.code == ErrorCode::kTimeout;  // nothing is wrong with the op: order it again
  }
  if (--attempt_.open_tickets > 0) return;
  attempt_.phase = Phase::kWatching;
  if (attempt_.bind_failed) {
    if (attempt_.changed) return advance();
    // A conflict may have arrived between the proof and the order. What the owners got stays without a go.
    hold(GapReason::kConflict, attempt_.bind_error);
    return;
  }
  const dataplane::Assignment& assignment = attempt_.assignments.list[attempt_.judgement.assignment];
  if (const Status done = binder_.commit(attempt_.evidence, assignment); !done) {
    hold(GapReason::kOpAmbiguous, done.error().text());
    return;
  }
  strong_buckets_ += attempt_.judgement.strong;
  weak_buckets_ += attempt_.judgement.weak;
  by_witness_ += attempt_.judgement.by_witness ? 1 : 0;
  if (!assignment.buckets.empty()) attempt_.last_op = assignment.buckets.back().op;
  finish_step();
  advance();
}

void Coordination::on_drained(std::uint64_t ticket, bool done, std::string refusal) {
  if (attempt_.phase != Phase::kDraining || ticket != attempt_.first_ticket) return;
  refusal_ = std::move(refusal);
  attempt_.phase = Phase::kWatching;
  if (!done) return;  // backlog is not loss: the next tick asks again
  attempt_.changed = true;
  // Frames may have been handed from one queue to another while the first drain went round.
  if (++attempt_.drains >= 2) attempt_.definitive = true;
  advance();
}

void Coordination::on_applied(const Applied& applied) {
  const auto known = applied_.find(applied.shard);
  const auto rising = brought_up_.find(applied.shard);
  if (known == applied_.end() && rising == brought_up_.end()) return;
  if (!applied.outcome.ok) {
    const bool unwired = applied.outcome.error.code == ErrorCode::kGradientUnwired;
    const bool diverged = applied.outcome.error.code == ErrorCode::kDigestMismatch;
    apply_gap_ = Gap{unwired    ? GapReason::kUnwired
                     : diverged ? GapReason::kDiverged
                                : GapReason::kUnsupported,
                     applied.step, fmt::format("shard {}: {}", applied.shard, applied.outcome.error.text()),
                     "the shard stays at its version"};
    note(true, apply_gap_->evidence);
    return;
  }
  StepNumber version = applied.step;
  if (known != applied_.end()) {
    version = known->second = std::max(known->second, applied.step);
    moved_ns_[applied.shard] = clock_.monotonic_ns();
  } else {
    version = std::max(rising->second.version.value_or(0), applied.step);
    rising->second.version = version;
    ++brought_up_steps_;
  }
  progress_.on_version(shape_.self, applied.shard, version);
  progress_.on_digest(shape_.self, applied.shard, applied.step, applied.digest);
  if (known == applied_.end()) bring_up(applied.shard);
  advance();
}

void Coordination::on_jumped(ShardId shard, StepNumber step) {
  const auto known = applied_.find(shard);
  const auto rising = brought_up_.find(shard);
  if (known != applied_.end() && step > known->second)
    known->second = step;
  else if (rising != brought_up_.end() && (!rising->second.version || step > *rising->second.version))
    rising->second = BroughtUp{step, 0, 0, 0, 0, 0};
  else
    return;
  progress_.on_version(shape_.self, shard, step);
  progress_.on_from(shape_.self, shard, step);
  if (rising != brought_up_.end()) bring_up(shard);
  advance();
}

// -- owners of this node that come and go (PROTOCOLS 5.3) ------------------------------------------------------------

void Coordination::own(ShardId shard) {
  const auto& owners = shape_.owners[shard];
  const bool assigned = std::find(owners.begin(), owners.end(), shape_.self) != owners.end();
  if (assigned) leaving_since_.erase(shard);
  if (assigned && !applied_.contains(shard) && !brought_up_.contains(shard)) brought_up_[shard];
  // What never came to have a version has nothing to give up.
  if (!assigned && brought_up_.contains(shard) && !brought_up_[shard].version) {
    brought_up_.erase(shard);
    commands_.emplace_back(ReleaseShard{shard});
  }
}

void Coordination::on_epoch(ClusterShape shape) {
  if (shape.epoch <= shape_.epoch || shape.owners.size() != shape_.owners.size()) return;
  shape_ = std::move(shape);
  live_.resize(std::max(live_.size(), shape_.names.size()), false);
  progress_.set_owners(shape_.owners, shape_.names, shape_.out, shape_.epoch);
  progress_.on_report(shape_.self, shape_.epoch);
  for (ShardId shard = 0; shard < shape_.owners.size(); ++shard) own(shard);
  bring_up_all();
  release_what_may_go();
  advance();
}

void Coordination::ask_for_version(ShardId shard) {
  BroughtUp& rising = brought_up_[shard];
  const std::uint64_t now = clock_.monotonic_ns();
  if (rising.asked_ns != 0 && now - rising.asked_ns < kAskVersionAgainNs) return;
  rising.asked_ns = now;
  rising.asked_step = 0;
  // Nothing older than what the others have now, so that few steps are left to fetch; a source without such a version
  // writes one. While it does, the same is asked for: a wish that grew with every step would never be met. When no step
  // comes, an older one will do, if the logs after it can be applied.
  if (rising.wanted_ns == 0 || now - rising.wanted_ns > kWantedVersionNs) {
    rising.wanted = progress_.best_elsewhere(shard, shape_.self).value_or(plan_->base_step);
    rising.wanted_ns = now;
  }
  StepNumber wanted = rising.wanted;
  if (++rising.versions_asked % kNewestVersionTries == 0)
    wanted = goes_.empty() || applied_.empty() ? plan_->base_step : goes_.begin()->first - 1;
  const StepNumber own = rising.version ? *rising.version + 1 : plan_->base_step;
  commands_.emplace_back(AskVersion{shard, std::max(own, wanted)});
}

// One step after the other until it keeps up; then it is an owner as any other.
void Coordination::bring_up(ShardId shard) {
  const auto it = brought_up_.find(shard);
  if (it == brought_up_.end()) return;
  BroughtUp& rising = it->second;
  if (!rising.version) return ask_for_version(shard);
  const bool free = attempt_.phase == Phase::kIdle || attempt_.phase == Phase::kWatching;
  if (applied_.empty() && *rising.version > bound_ && free) {
    // Nobody here has anything yet: binding begins where the first version ends.
    if (attempt_.phase == Phase::kWatching) forget_ops_of_step();
    bound_ = applied_here_ = *rising.version;
    messages_.erase(messages_.begin(), messages_.upper_bound(bound_));
    dropped_.erase(dropped_.begin(), dropped_.upper_bound(bound_));
    held_.reset();
    attempt_ = Attempt{};
  }
  if (*rising.version >= bound_) {
    applied_[shard] = *rising.version;
    moved_ns_[shard] = clock_.monotonic_ns();
    brought_up_.erase(it);
    return;
  }
  const StepNumber next = *rising.version + 1;
  const auto go = goes_.find(next);
  if (go == goes_.end()) return ask_for_version(shard);
  const std::uint64_t now = clock_.monotonic_ns();
  if (rising.asked_step == next && now - rising.asked_ns < kFetchAgainNs) return;
  rising.asked_step = next;
  rising.asked_ns = now;
  commands_.emplace_back(FetchShard{shard, go->second});
}

void Coordination::bring_up_all() {
  std::vector<ShardId> list;
  for (const auto& [shard, rising] : brought_up_) list.push_back(shard);
  for (const ShardId shard : list) bring_up(shard);
  // An owner that stands still behind what is bound has missed something (it came in the middle of a step).
  const std::uint64_t now = clock_.monotonic_ns();
  if (shape_.names.size() < 2 || apply_gap_) return;
  for (const auto& [shard, version] : applied_) {
    std::uint64_t& moved = moved_ns_[shard];
    if (version >= bound_ || moved == 0) {
      moved = now;
      continue;
    }
    const auto go = goes_.find(version + 1);
    if (now - moved < config_.stuck_ms * 1'000'000 || go == goes_.end()) continue;
    moved = now;
    commands_.emplace_back(FetchShard{shard, go->second});
  }
}

void Coordination::release_what_may_go() {
  std::vector<ShardId> list;
  for (const auto& [shard, version] : applied_) list.push_back(shard);
  for (const auto& [shard, rising] : brought_up_) list.push_back(shard);
  for (const ShardId shard : list) {
    const ShardHolder* own = progress_.holder(shard, shape_.self);
    if (own == nullptr || own->assigned) continue;
    // With a state that is never published nobody needs what lies before the newest version.
    const StepNumber published = plan_->unknown_leaves.empty() ? published_ : ~StepNumber{0};
    // The retention keeps for the new owners what comes after that; what came before is in this owner's log alone.
    const StepNumber since = leaving_since_.try_emplace(shard, bound_).first->second;
    if (progress_.kept_because(shard, shape_.self, published, since)) continue;
    progress_.on_released(shape_.self, shard);
    applied_.erase(shard);
    brought_up_.erase(shard);
    moved_ns_.erase(shard);
    leaving_since_.erase(shard);
    ++released_shards_;
    commands_.emplace_back(ReleaseShard{shard});
    note(false, fmt::format("shard {} is released: its new owners have it", shard));
  }
}

PlacementView Coordination::placement() const {
  PlacementView view;
  view.epoch = shape_.epoch;
  view.lineage = plan_->lineage;
  view.training = training();
  view.durable = durable();
  view.published = published_;
  for (MemberIndex member = 0; member < shape_.names.size(); ++member) view.heard.push_back(progress_.heard(member));
  for (ShardId shard = 0; shard < progress_.shards(); ++shard) {
    ShardView& one = view.shards.emplace_back();
    one.shard = shard;
    one.state_bytes =
        plan_->shards.shards()[shard].elements * sizeof(float) * (1 + plan_->schema.optimizer.kinds.size());
    for (const ShardHolder& holder : progress_.holders(shard)) {
      const OwnerProgress& progress = holder.progress;
      HolderView& shown = one.holders.emplace_back();
      shown.member = holder.member;
      shown.role = progress_.role(shard, holder);
      shown.assigned = holder.assigned;
      shown.live = progress_.live(holder.member);
      if (progress.known) shown.version = progress.version;
      shown.durable = progress.durable;
      shown.from = progress.from;
      if (!holder.assigned) shown.waits_for = progress_.kept_because(shard, holder.member, published_).value_or("");
    }
  }
  return view;
}

// What every owner here has applied needs no binding here any more, however its bytes came.
void Coordination::follow_owners() {
  applied_here_ = bound_;
  if (!applied_.empty()) {
    applied_here_ = ~StepNumber{0};
    for (const auto& [shard, step] : applied_) applied_here_ = std::min(applied_here_, step);
  }
  if (applied_here_ <= bound_ || (attempt_.phase != Phase::kIdle && attempt_.phase != Phase::kWatching)) return;
  if (attempt_.phase == Phase::kWatching) forget_ops_of_step();
  for (StepNumber step = bound_ + 1; step <= applied_here_; ++step)
    if (const auto message = messages_.find(step); message != messages_.end()) keep_go(message->second, 0);
  bound_ = applied_here_;
  ++fetched_steps_;
  messages_.erase(messages_.begin(), messages_.upper_bound(bound_));
  dropped_.erase(dropped_.begin(), dropped_.upper_bound(bound_));
  held_.reset();
  attempt_ = Attempt{};
}

void Coordination::on_durable(const Durable& durable) {
  if (!durable.outcome.ok) {
    const bool full = durable.outcome.error.code == ErrorCode::kStoreFull;
    store_gap_ = Gap{full ? GapReason::kStorageFull : GapReason::kStorageError, durable.step,
                     durable.outcome.error.text(), "tried again after a growing pause"};
    return;
  }
  store_gap_.reset();
  if (applied_.contains(durable.shard) || brought_up_.contains(durable.shard))
    progress_.on_durable(shape_.self, durable.shard, durable.step);
  release_what_may_go();
}

void Coordination::on_peer(const PeerReport& report) {
  if (report.member >= shape_.names.size() || report.member == shape_.self) return;
  if (report.member < shape_.out.size() && shape_.out[report.member]) return;
  std::vector<ShardId> holds;
  for (const PeerReport::Shard& shard : report.shards) holds.push_back(shard.shard);
  progress_.on_report(report.member, report.epoch);
  progress_.on_holds(report.member, holds);
  for (const PeerReport::Shard& shard : report.shards) {
    progress_.on_version(report.member, shard.shard, shard.version);
    progress_.on_from(report.member, shard.shard, shard.from);
    if (shard.durable) progress_.on_durable(report.member, shard.shard, *shard.durable);
  }
  for (const PeerReport::Digest& digest : report.digests)
    progress_.on_digest(report.member, digest.shard, digest.step, digest.digest);
  PeerReport& kept = peers_[report.member];
  kept = report;
  kept.digests.clear();
  newest_message_ = std::max(newest_message_, report.training);
  published_ = std::max(published_, report.published);
  if (report.delta && config_.tags_absolute) binder_.hint_delta(*report.delta);
  if (attempt_.phase == Phase::kWatching) fetch_if_due();
  release_what_may_go();
  advance();
}

void Coordination::on_live(MemberIndex member, bool live) {
  if (member >= live_.size()) return;
  live_[member] = live;
  progress_.on_live(member, live);
  if (!live) peers_.erase(member);
}

void Coordination::on_published(StepNumber step, std::vector<Gap> gaps) {
  published_ = std::max(published_, step);
  publish_gaps_ = std::move(gaps);
  release_what_may_go();
}

void Coordination::tick() {
  const std::uint64_t now = clock_.monotonic_ns();
  if (durable() >= verified() || durable() > durable_seen_) {
    durable_seen_ = durable();
    durable_behind_since_ns_ = 0;
  }
  if (durable() < verified() && durable_behind_since_ns_ == 0) durable_behind_since_ns_ = now;
  bring_up_all();
  advance();
  if (attempt_.phase != Phase::kWatching) return;
  fetch_if_due();
  if (attempt_.definitive || !config_.has_tap) return;
  if (now - attempt_.started_ns < config_.grace_ms * 1'000'000) return;
  attempt_.phase = Phase::kDraining;
  attempt_.first_ticket = next_ticket_++;
  ++drains_;
  commands_.emplace_back(AskDrain{attempt_.first_ticket});
}

// -- binding -------------------------------------------------------------------------------------------------------

void Coordination::advance() {
  for (;;) {
    follow_owners();
    if (attempt_.phase == Phase::kIdle && !begin_next()) return;
    if (attempt_.phase != Phase::kWatching || !attempt_.changed) return;
    evaluate();
    if (attempt_.phase != Phase::kIdle) return;  // idle again: the step needed no ops, the next may begin
  }
}

bool Coordination::begin_next() {
  const StepNumber step = bound_ + 1;
  if (bound_ - applied_here_ >= config_.bind_ahead_steps || apply_gap_) return false;
  const auto message = messages_.find(step);
  if (message == messages_.end()) {
    if (dropped_.contains(step))
      hold(GapReason::kScalarsMissing, fmt::format("the client dropped the message of step {}", step),
           "none: the scalars of the step exist nowhere else");
    else if (newest_message_ > step && message_missed(step)) {
      hold(GapReason::kScalarsMissing, fmt::format("message of step {} of rank 0 has not come", step),
           "the client sends it again");
      ask_for_messages();
      jump_over_missing_message();
      // A node that owns nothing yet needs none of the steps whose messages are gone.
      if (applied_.empty() && !messages_.empty()) {
        bound_ = applied_here_ = messages_.begin()->first - 1;
        held_.reset();
        return begin_next();
      }
    }
    return false;
  }
  attempt_ = Attempt{};
  attempt_.step = step;
  attempt_.message = message->second;
  attempt_.started_ns = clock_.monotonic_ns();
  attempt_.phase = Phase::kWatching;
  dataplane::StepEvidence& evidence = attempt_.evidence;
  evidence.step = step;
  evidence.layout = attempt_.message->layout_id;
  evidence.begin = attempt_.message->interval_begin;
  evidence.end = attempt_.message->interval_end;
  evidence.synced_backwards = static_cast<std::uint32_t>(attempt_.message->synced_backwards);
  evidence.verdict = to_dataplane(attempt_.message->scalars.verdict);
  // Every gloo header carries the tag, an absolute anchor; provisional flows are placed only when their count is exact.
  evidence.anchored = binder_.delta_known();
  held_.reset();
  return true;
}

// Later messages are there, and this one did not come within the grace, whether or not more go on coming.
bool Coordination::message_missed(StepNumber step) {
  if (messages_.empty() && shape_.names.size() < 2) return false;  // newer ones are known of by peers alone
  const std::uint64_t now = clock_.monotonic_ns();
  if (awaited_step_ != step) {
    awaited_step_ = step;
    awaited_since_ns_ = now;
  }
  return now - awaited_since_ns_ > config_.grace_ms * 1'000'000;
}

// Peers have the step, or may have it: when this node's own tap has not shown it whole, its owners ask them.
void Coordination::fetch_if_due() {
  if (shape_.names.size() < 2 || applied_.empty()) return;
  const bool held_here = held_ && attempt_.definitive;
  bool behind = false;
  bool anybody = false;
  for (const auto& [member, report] : peers_) {
    if (!live_[member]) continue;
    anybody = anybody || report.bound >= attempt_.step;
    behind = behind || report.bound >= attempt_.step + (config_.has_tap ? config_.behind_steps : 0);
  }
  if (!behind && !(held_here && anybody)) return;
  const std::uint64_t now = clock_.monotonic_ns();
  const std::uint64_t pause_ns = config_.has_tap ? kAskAgainNs : kFetchAgainNs;
  if (attempt_.fetch_asked_ns != 0 && now - attempt_.fetch_asked_ns < pause_ns) return;
  attempt_.fetch_asked_ns = now;
  auto go = std::make_shared<Go>();
  go->scalars = attempt_.message->scalars;
  commands_.emplace_back(FetchStep{std::move(go)});
}

void Coordination::evaluate() {
  attempt_.changed = false;
  attempt_.assignments = binder_.assignments(attempt_.evidence, attempt_.definitive);
  const auto& list = attempt_.assignments.list;
  attempt_.outcomes.clear();
  attempt_.missing.clear();
  attempt_.asked.clear();
  for (const dataplane::Assignment& assignment : list) {
    attempt_.outcomes.emplace_back(assignment.buckets.size());
    attempt_.missing.emplace_back(assignment.buckets.size());
  }
  // A step that needs no gradient needs no bytes to be judged.
  if (attempt_.evidence.verdict != dataplane::StepVerdict::kApplied || attempt_.evidence.synced_backwards == 0)
    return judge();
  if (!attempt_.definitive && known_incomplete(attempt_.assignments)) return fetch_if_due();  // more will come
  attempt_.first_ticket = next_ticket_;
  for (std::size_t a = 0; a < list.size(); ++a)
    for (std::uint32_t i = 0; i < list[a].buckets.size(); ++i) {
      const dataplane::BucketOp& bucket = list[a].buckets[i];
      if (!bucket.seen) {
        attempt_.missing[a][i] = {{0, bucket.bytes}};
        if (witness_of(i) == nullptr) attempt_.outcomes[a][i].result = dataplane::WitnessResult::kNotSampled;
        continue;
      }
      AskWords ask{next_ticket_++, {bucket.op, bucket.bytes, {}}};
      if (witness_of(i) != nullptr)
        for (const std::uint64_t position :
             witness_positions(attempt_.evidence.layout, attempt_.step, i, bucket.bytes / 4))
          ask.query.byte_offsets.push_back(position * 4);
      attempt_.asked.emplace_back(a, i);
      ++questions_;
      commands_.emplace_back(std::move(ask));
    }
  attempt_.open_tickets = attempt_.asked.size();
  if (attempt_.open_tickets > 0)
    attempt_.phase = Phase::kAsking;
  else
    judge();
}

bool Coordination::known_incomplete(const dataplane::Assignments& assignments) const {
  if (assignments.list.size() != 1) return false;
  for (const dataplane::BucketOp& bucket : assignments.list.front().buckets) {
    const auto op = ops_.find(bucket.op);
    if (op == ops_.end() || (!op->second.complete && !op->second.conflict && !op->second.closed)) return true;
  }
  return false;
}

const replica::WitnessBucket* Coordination::witness_of(std::uint32_t bucket) const {
  const auto& witness = attempt_.message->witness;
  const auto it =
      std::lower_bound(witness.begin(), witness.end(), bucket,
                       [](const replica::WitnessBucket& entry, std::uint64_t b) { return entry.bucket < b; });
  return it != witness.end() && it->bucket == bucket ? &*it : nullptr;
}

dataplane::WitnessOutcome Coordination::compare(std::uint32_t bucket, const WordAnswer& answer) const {
  using dataplane::WitnessResult;
  const replica::WitnessBucket* witness = witness_of(bucket);
  if (witness == nullptr) return {WitnessResult::kNotSampled, 0};
  const auto layout = layouts_.find(attempt_.evidence.layout);
  if (layout == layouts_.end() || bucket >= layout->second.layout->bucket_count()) return {};
  const replica::Layout& entry = *layout->second.layout;
  const auto positions = witness_positions(attempt_.evidence.layout, attempt_.step, bucket, entry.bucket_numel(bucket));
  unsigned compared = 0;
  unsigned nonzero = 0;
  for (std::uint32_t j = 0; j < positions.size() && j < answer.words.size(); ++j) {
    if (!answer.words[j]) continue;
    ++compared;
    const auto place = entry.locate(bucket, positions[j]);
    // A parameter whose gradient the optimizer never saw reads as +0 on the trainer's side, and no transform ran on it.
    const bool none = place.parameter < attempt_.message->scalars.param_state.size() &&
                      attempt_.message->scalars.param_state[place.parameter] == replica::ParamState::kNone;
    const float wire = std::bit_cast<float>(*answer.words[j]);
    const float ours = none ? wire : attempt_.message->scalars.transforms.apply(wire, place.parameter);
    const float theirs = std::bit_cast<float>(witness->bits[j]);
    const bool equal =
        std::bit_cast<std::uint32_t>(ours) == witness->bits[j] || (std::isnan(ours) && std::isnan(theirs));
    if (!equal) return {WitnessResult::kMismatched, j};
    if (ours != 0.0F || theirs != 0.0F) ++nonzero;
  }
  if (nonzero > 0) return {WitnessResult::kMatched, 0};
  if (compared == positions.size()) return {WitnessResult::kAllZero, 0};
  return {};
}

std::string Coordination::describe_missing(const dataplane::Assignment& assignment,
                                           const std::vector<std::vector<Interval>>& missing) const {
  std::string text;
  for (std::size_t i = 0; i < missing.size(); ++i) {
    if (missing[i].empty()) continue;
    const dataplane::BucketOp& bucket = assignment.buckets[i];
    text += fmt::format("{}bucket {} (tag {}, {} bytes{}): {}", text.empty() ? "" : "; ", i, bucket.op.tag,
                        bucket.bytes, bucket.seen ? "" : ", no frame seen", join_ranges(missing[i], 8));
    if (text.size() > 1000) return text + " ...";
  }
  return text;
}

void Coordination::judge() {
  using dataplane::BindVerdict;
  attempt_.judgement = binder_.judge(attempt_.evidence, attempt_.assignments, attempt_.outcomes);
  const dataplane::Judgement& judgement = attempt_.judgement;
  const auto& list = attempt_.assignments.list;
  switch (judgement.verdict) {
    case BindVerdict::kBound: {
      const dataplane::Assignment& chosen = list[judgement.assignment];
      const auto& missing = attempt_.missing[judgement.assignment];
      const bool complete =
          std::all_of(missing.begin(), missing.end(), [](const auto& ranges) { return ranges.empty(); });
      if (complete) return bind(chosen);
      break;
    }
    case BindVerdict::kSkipped:
      ++skipped_steps_;
      return finish_step();
    case BindVerdict::kUnwired:
      return hold(GapReason::kUnwired, "the optimizer used gradients that were not all-reduced (synced_backwards = 0)",
                  "none: the gradient of this step is not on the wire");
    case BindVerdict::kLayoutUnknown:
      ask_for_layout(attempt_.evidence.layout);
      return hold(GapReason::kLayoutUnknown, "layout " + to_hex(attempt_.evidence.layout).substr(0, 16),
                  "asked the client for it");
    case BindVerdict::kWitnessMismatch: {
      const dataplane::Assignment& named = list[judgement.assignment];
      const auto& states = attempt_.message->scalars.param_state;
      // The trainer says itself that no reduction had the last word on what the optimizer used.
      if (const auto stale = std::find(states.begin(), states.end(), replica::ParamState::kStale);
          stale != states.end())
        return hold(
            GapReason::kUnwired,
            fmt::format(
                "step {} bucket {}: the optimizer used a gradient that was not all-reduced, of parameter {} first "
                "(micro steps {}, reduced {})",
                attempt_.step, judgement.bucket, stale - states.begin(), attempt_.message->micro_steps,
                attempt_.message->synced_backwards),
            "none: the gradient of this step is not on the wire");
      return hold(
          GapReason::kWitnessMismatch,
          fmt::format("step {} bucket {} tag {} position {}: the trainer's gradient is not what the wire carried",
                      attempt_.step, judgement.bucket, named.buckets[judgement.bucket].op.tag, judgement.position),
          "not applied; another layout or assignment that fits clears it");
    }
    case BindVerdict::kAmbiguous:
      if (attempt_.evidence.verdict == dataplane::StepVerdict::kAmbiguous)
        return hold(GapReason::kOpAmbiguous,
                    fmt::format("step {}: two optimizer calls between two commits", attempt_.step),
                    "call tap.commit() after every optimizer.step()");
      if (attempt_.definitive)
        hold(GapReason::kOpAmbiguous,
             fmt::format("step {}: {} assignments of ops to buckets fit", attempt_.step, list.size()), "not applied");
      return;
    case BindVerdict::kAnchorLost:
      if (attempt_.definitive)
        hold(GapReason::kAnchorLost,
             fmt::format("step {}: no op in the interval [{}, {}) fits the learnt offset of tags", attempt_.step,
                         attempt_.evidence.begin, attempt_.evidence.end),
             "not applied");
      return;
    case BindVerdict::kWait:
      break;
  }
  // Something is not there. Say so at once when a conflict made it a hole, otherwise when absence is definitive.
  if (const auto named = assignment_to_name(list, attempt_.outcomes))
    for (const dataplane::BucketOp& bucket : list[*named].buckets) {
      const auto op = ops_.find(bucket.op);
      if (op == ops_.end()) continue;
      if (op->second.conflict)
        return hold(GapReason::kConflict,
                    fmt::format("step {} tag {}: copies of the same bytes differ", attempt_.step, bucket.op.tag),
                    "not applied: copies are never voted on");
      if (op->second.shed != dataplane::ShedReason::kNone)
        return hold(GapReason::kOverloadShed,
                    fmt::format("step {} tag {} was shed (reason {}) to keep memory in bounds", attempt_.step,
                                bucket.op.tag, static_cast<unsigned>(op->second.shed)),
                    "raise assembly.window_bytes or assembly.limbo_bytes");
    }
  if (attempt_.definitive) hold_for_missing_bytes();
  fetch_if_due();
}

void Coordination::hold_for_missing_bytes() {
  const auto& list = attempt_.assignments.list;
  if (!refusal_.empty())
    return hold(GapReason::kUnsupported, fmt::format("step {}: {}", attempt_.step, refusal_),
                "held; start the job again with these settings");
  const auto before = message_ns_.find(attempt_.step - 1);
  if (before != message_ns_.end() && last_ops_ns_ < before->second)
    return hold(GapReason::kTapDown,
                fmt::format("nothing was received from the mirror since step {} was committed", attempt_.step - 1),
                "held; check the mirror session, the cable and tap.interface");
  if (const auto named = assignment_to_name(list, attempt_.outcomes))
    return hold(GapReason::kLostDefinitive,
                fmt::format("step {}: {}", attempt_.step, describe_missing(list[*named], attempt_.missing[*named])),
                "held; bytes that still come are taken");
  hold(GapReason::kLostDefinitive,
       fmt::format("step {}: no op in the interval [{}, {}) was seen whole ({} assignments)", attempt_.step,
                   attempt_.evidence.begin, attempt_.evidence.end, list.size()),
       "held; bytes that still come are taken");
}

void Coordination::hold(GapReason reason, std::string evidence, std::string action) {
  if (!held_ || held_->reason != reason) note(true, fmt::format("{}: {}", gap_reason_name(reason), evidence));
  held_ = Gap{reason, bound_ + 1, std::move(evidence), std::move(action)};
}

void Coordination::bind(const dataplane::Assignment& assignment) {
  const auto known = layouts_.find(attempt_.evidence.layout);
  if (known == layouts_.end()) {  // it made room for newer ones before its step came
    ask_for_layout(attempt_.evidence.layout);
    return hold(GapReason::kLayoutUnknown, "layout " + to_hex(attempt_.evidence.layout).substr(0, 16),
                "asked the client for it");
  }
  const LayoutEntry& layout = known->second;
  attempt_.phase = Phase::kBinding;
  attempt_.bind_failed = false;
  attempt_.asked.clear();
  attempt_.first_ticket = next_ticket_;
  for (std::uint32_t i = 0; i < assignment.buckets.size(); ++i) {
    const dataplane::BucketOp& bucket = assignment.buckets[i];
    attempt_.asked.emplace_back(attempt_.judgement.assignment, i);
    const std::uint64_t ticket = next_ticket_++;
    commands_.emplace_back(
        OrderBind{ticket, {bucket.op, bucket.bytes, attempt_.step, i, layout.slices[i], plan_->lineage, ticket}});
  }
  attempt_.open_tickets = attempt_.asked.size();
}

void Coordination::finish_step() {
  commands_.emplace_back(GiveGo{keep_go(attempt_.message, attempt_.first_ticket)});
  bound_ = attempt_.step;
  if (applied_.empty()) applied_here_ = bound_;
  messages_.erase(attempt_.step);
  dropped_.erase(dropped_.begin(), dropped_.upper_bound(attempt_.step));
  held_.reset();
  forget_ops_of_step();
  attempt_ = Attempt{};
}

GoPtr Coordination::keep_go(const StepMessagePtr& message, std::uint64_t first_order) {
  auto go = std::make_shared<Go>();
  go->scalars = message->scalars;
  go->first_order = first_order;
  goes_[message->step] = go;
  while (goes_.size() > config_.goes_kept) goes_.erase(goes_.begin());
  return go;
}

// Ops come in order: what lies before the last op of a bound step is over, and so is what lies before the end of the
// interval once the offset of tags is known.
void Coordination::forget_ops_of_step() {
  const auto forget = [this](std::uint32_t comm, std::uint64_t below) {
    if (below == 0 || below > ~std::uint32_t{0}) return;
    const auto tag = static_cast<std::uint32_t>(below);
    binder_.forget_below(comm, tag);
    std::erase_if(ops_, [&](const auto& entry) { return entry.first.comm == comm && entry.first.tag < tag; });
    commands_.emplace_back(ForgetBelow{comm, tag});
  };
  const auto end_at = [this](std::int64_t delta) {
    const std::int64_t tag = static_cast<std::int64_t>(attempt_.evidence.end) + delta;
    return tag > 0 ? static_cast<std::uint64_t>(tag) : 0;
  };
  std::uint64_t below = attempt_.last_op ? std::uint64_t{attempt_.last_op->tag} + 1 : 0;
  if (binder_.delta_known()) below = std::max(below, end_at(binder_.deltas().front()));
  if (below > 0) return forget(binder_.comm(), below);
  // A step that was fetched before anything was bound here: what a peer has learnt says which ops are over.
  if (binder_.deltas().empty() && binder_.hint())
    for (const std::uint32_t comm : binder_.comms()) forget(comm, end_at(*binder_.hint()));
}

// Nobody keeps the message any more: what the co-owners have made of the step, and of those after it, takes its place.
void Coordination::jump_over_missing_message() {
  const std::uint64_t now = clock_.monotonic_ns();
  if (now - awaited_since_ns_ < kJumpAfterNs || now - jump_asked_ns_ < kAskAgainNs) return;
  jump_asked_ns_ = now;
  for (const auto& [shard, version] : applied_)
    if (const auto best = progress_.best_elsewhere(shard, shape_.self); best && *best > version)
      commands_.emplace_back(AskVersion{shard, version + 1});
}

void Coordination::ask_for_messages() {
  if (shape_.names.size() < 2) return;
  const std::uint64_t now = clock_.monotonic_ns();
  if (messages_asked_ns_ != 0 && now - messages_asked_ns_ < kAskAgainNs) return;
  messages_asked_ns_ = now;
  commands_.emplace_back(AskMessages{bound_});
}

void Coordination::ask_for_layout(const LayoutId& id) {
  ask_for_messages();
  const std::uint64_t now = clock_.monotonic_ns();
  if (layout_asked_ns_ != 0 && now - layout_asked_ns_ < kAskAgainNs) return;
  layout_asked_ns_ = now;
  commands_.emplace_back(AskLayout{id});
}

}  // namespace gradtap::actors
