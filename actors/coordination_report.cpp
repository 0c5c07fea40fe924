// What a Coordination says about itself: the four numbers, the gaps, the status.
#include <algorithm>
#include <utility>

#include <fmt/format.h>

#include "actors/coordination.h"

namespace gradtap::actors {

namespace {

constexpr std::uint64_t kFlushLagNs = 2'000'000'000;

}  // namespace

StepNumber Coordination::verified() const {
  return std::max(progress_.verified(), durable());
}

StepNumber Coordination::training() const {
  return std::max({newest_message_, bound_, verified()});
}

// A point that was published was durable; after a restart the owners' reports come one by one.
StepNumber Coordination::durable() const {
  return std::max(progress_.durable(), published_);
}

std::vector<Gap> Coordination::local_gaps() const {
  std::vector<Gap> gaps;
  const StepNumber newest = std::max(newest_message_, bound_);
  if (!config_.coverage_hole.empty())
    gaps.push_back({GapReason::kCoverageHole, base_, config_.coverage_hole, "mirror more ranks: no step can complete"});
  if (apply_gap_) gaps.push_back(*apply_gap_);
  if (newest > applied_here_ && !applied_.empty()) {  // what owns nothing holds nothing up
    const bool fetching = held_ && std::any_of(peers_.begin(), peers_.end(), [&](const auto& peer) {
                            return live_[peer.first] && peer.second.bound > bound_;
                          });
    if (fetching)  // a peer has proven the step: what this tap makes of it is no reason
      gaps.push_back({GapReason::kInFlight, applied_here_ + 1,
                      fmt::format("this node's tap: {}, {}", gap_reason_name(held_->reason), held_->evidence),
                      "the step's gradient is being fetched from a peer"});
    else if (held_)
      gaps.push_back(*held_);
    else if (bound_ > applied_here_)
      gaps.push_back({GapReason::kApplyLag, applied_here_ + 1,
                      fmt::format("{} steps are bound", bound_ - applied_here_), "owners are applying"});
    else
      gaps.push_back({GapReason::kInFlight, applied_here_ + 1, "the step's bytes are being assembled", {}});
  }
  if (store_gap_) gaps.push_back(*store_gap_);
  for (const Gap& gap : publish_gaps_) gaps.push_back(gap);
  return gaps;
}

std::vector<Gap> Coordination::gaps() const {
  std::vector<Gap> gaps = local_gaps();
  const std::uint64_t now = clock_.monotonic_ns();
  for (Gap& gap : progress_.gaps()) gaps.push_back(std::move(gap));
  for (const auto& [member, report] : peers_)
    for (const Gap& gap : report.gaps) {
      const bool known = std::any_of(gaps.begin(), gaps.end(), [&](const Gap& g) { return g.reason == gap.reason; });
      if (known) continue;
      gaps.push_back(gap);
      gaps.back().evidence = shape_.names[member] + ": " + gap.evidence;
    }
  if (detached_ && detach_reason_ != "close")
    gaps.push_back({GapReason::kClientDisabled, training(), "the client left: " + detach_reason_,
                    "restart the job to attach again"});
  else if (!detached_ && now - last_message_ns_ > config_.trainer_silent_ms * 1'000'000)
    gaps.push_back({GapReason::kTrainerSilent, training(),
                    fmt::format("no message for {} s", (now - last_message_ns_) / 1'000'000'000), "look at the job"});
  if (durable() < verified() && !store_gap_ && durable_behind_since_ns_ != 0 &&
      now - durable_behind_since_ns_ > kFlushLagNs)
    gaps.push_back({GapReason::kFlushLag, durable() + 1,
                    fmt::format("durable is behind for {} ms", (now - durable_behind_since_ns_) / 1'000'000),
                    "the keeper is writing"});
  if (!plan_->unknown_leaves.empty()) {
    std::string names;
    for (const std::string& name : plan_->unknown_leaves) {
      if (names.size() > 200) {
        names += " ...";
        break;
      }
      names += (names.empty() ? "" : ", ") + name;
    }
    gaps.push_back({GapReason::kUnknownState, base_, names, "pass the objects in extra= or remove them"});
  }
  if (!config_.points_configured && durable() > 0)
    gaps.push_back(
        {GapReason::kPublishInterval, 0, "no recovery points are configured on this node", "set objects.directory"});
  const bool said = std::any_of(gaps.begin(), gaps.end(),
                                [](const Gap& gap) { return gap_reason_stage(gap.reason) == GapStage::kPublish; });
  if (config_.points_configured && !said && durable() > published_) {
    const std::uint64_t interval = std::max<std::uint64_t>(1, config_.publish_interval_steps);
    const StepNumber last = std::max(published_, plan_->base_step);
    const StepNumber due = last - last % interval + interval;
    if (due <= durable())
      gaps.push_back(
          {GapReason::kUploadLag, due, fmt::format("the recovery point of step {} is being written", due), {}});
    else
      gaps.push_back(
          {GapReason::kPublishInterval, due, fmt::format("the next recovery point is that of step {}", due), {}});
  }
  return gaps;
}

nlohmann::json Coordination::status() const {
  nlohmann::json list = nlohmann::json::array();
  for (const Gap& gap : gaps())
    list.push_back({{"reason", static_cast<unsigned>(gap.reason)},
                    {"name", gap_reason_name(gap.reason)},
                    {"since_step", gap.since_step},
                    {"evidence", gap.evidence},
                    {"action", gap.action}});
  nlohmann::json deltas = nlohmann::json::array();
  for (const std::int64_t delta : binder_.deltas()) deltas.push_back(delta);
  const bool held = held_ && held_->reason != GapReason::kLayoutUnknown;
  return {{"lineage", plan_->lineage},
          {"state", held ? "held" : "tracking"},
          {"shards", plan_->shards.shards().size()},
          {"epoch", shape_.epoch},
          {"shards_here", applied_.size() + brought_up_.size()},
          {"shards_brought_up", brought_up_.size()},
          {"released_shards", released_shards_},
          {"recipe", replica::recipe_name(plan_->recipe)},
          {"base_step", base_},
          {"training", training()},
          {"bound", bound_},
          {"applied_here", applied_here_},
          {"verified", verified()},
          {"durable", durable()},
          {"published", published_},
          {"lag_steps", training() - verified()},
          {"gaps", list},
          {"binding",
           {{"delta", deltas},
            {"strong_buckets", strong_buckets_},
            {"weak_buckets", weak_buckets_},
            {"by_witness", by_witness_},
            {"relearnt_deltas", binder_.counters().relearnt_deltas},
            {"skipped_steps", skipped_steps_},
            {"fetched_steps", fetched_steps_},
            {"brought_up_steps", brought_up_steps_},
            {"drains", drains_},
            {"questions", questions_},
            {"messages_pending", messages_.size()},
            {"messages_refused", messages_refused_},
            {"layouts", layouts_.size()},
            {"layouts_evicted", layouts_evicted_},
            {"op_sizes", sizes_.sizes().size()}}}};
}

nlohmann::json Coordination::roots(StepNumber from, StepNumber to) const {
  nlohmann::json list = nlohmann::json::array();
  for (const auto& [step, root] : progress_.roots(from, to)) list.push_back({{"step", step}, {"root", to_hex(root)}});
  return {{"digests", list}};
}

}  // namespace gradtap::actors
