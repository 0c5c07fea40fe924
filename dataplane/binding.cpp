#include "dataplane/binding.h"

#include <algorithm>
#include <string>

namespace gradtap::dataplane {
namespace {

// Work bound of one search over all deltas, in positions looked at.
constexpr std::uint64_t kMaxPositions = 4'000'000;

bool allows(const OpSummary& summary, std::uint64_t bytes) {
  return std::binary_search(summary.lengths.begin(), summary.lengths.end(), bytes);
}

}  // namespace

Status Binder::add_layout(const LayoutId& id, std::vector<std::uint64_t> bucket_bytes, std::uint32_t sizes_version) {
  if (bucket_bytes.empty() || bucket_bytes.size() > config_.max_buckets)
    return fail(ErrorCode::kOutOfRange, "a layout has an impossible number of buckets", to_hex(id),
                "1 to " + std::to_string(config_.max_buckets), std::to_string(bucket_bytes.size()));
  if (!layouts_.contains(id) && layouts_.size() >= config_.max_layouts)
    return fail(ErrorCode::kLimitReached, "too many layouts in one lineage", to_hex(id),
                std::to_string(config_.max_layouts));
  layouts_[id] = {std::move(bucket_bytes), sizes_version};
  return {};
}

const std::vector<std::uint64_t>* Binder::bucket_bytes(const LayoutId& id) const {
  const auto at = layouts_.find(id);
  return at == layouts_.end() ? nullptr : &at->second.bucket_bytes;
}

void Binder::update(const OpSummary& summary) {
  const auto floor = floors_.find(summary.op.comm);
  if (floor != floors_.end() && summary.op.tag < floor->second) return;
  const auto at = ops_.find(summary.op);
  if (at != ops_.end()) {
    std::vector<std::uint64_t> before = std::move(at->second.summary.lengths);
    at->second.summary = summary;
    // An op that is closed has no lengths any more; what was known of it stays true.
    if (summary.closed && summary.lengths.empty()) at->second.summary.lengths = std::move(before);
    return;
  }
  if (ops_.size() >= config_.max_ops) {
    // Raise the floor with it: an op that is forgotten must never look like one that was not seen.
    const OpKey oldest = ops_.begin()->first;
    forget_below(oldest.comm, oldest.tag);
    ops_.erase(ops_.begin());
    floors_[oldest.comm] = oldest.tag + 1ULL;
    ++counters_.forgotten_ops;
  }
  ops_.emplace(summary.op, Op{summary, std::nullopt});
}

void Binder::forget_below(std::uint32_t comm, std::uint32_t tag) {
  ops_.erase(ops_.lower_bound(OpKey{comm, 0}), ops_.lower_bound(OpKey{comm, tag}));
  if (!floors_.contains(comm) && floors_.size() >= config_.max_comms) return;
  std::uint64_t& floor = floors_[comm];
  floor = std::max<std::uint64_t>(floor, tag);
}

// All assignments of one (comm, delta). `must_be_seen`: at least one bucket's op was seen, otherwise there is no
// evidence for this delta at all.
void Binder::search(const StepEvidence& evidence, const Layout& layout, std::uint32_t comm, std::int64_t delta,
                    bool shifted, bool must_be_seen, Assignments& found) const {
  const std::uint64_t count = evidence.end - evidence.begin;
  const std::uint64_t base = evidence.begin + static_cast<std::uint64_t>(delta);
  constexpr std::uint64_t kTags = 1ULL << 32;
  if (base >= kTags || count > kTags - base) return;
  const std::size_t buckets = layout.bucket_bytes.size();
  const std::size_t rounds = evidence.synced_backwards;
  if (rounds * buckets > count) return;

  std::vector<const Op*> ops(count, nullptr);
  const auto first = ops_.lower_bound(OpKey{comm, static_cast<std::uint32_t>(base)});
  for (auto at = first; at != ops_.end() && at->first.comm == comm && at->first.tag < base + count; ++at)
    ops[at->first.tag - base] = &at->second;

  const auto floor_at = floors_.find(comm);
  const std::uint64_t floor = floor_at == floors_.end() ? 0 : floor_at->second;
  // A wildcard is an op about which nothing is known that could exclude it.
  const auto wild = [&](std::size_t p) {
    const Op* op = ops[p];
    if (op == nullptr) return true;
    if (op->bound_to || op->summary.type != CollectiveType::kAllReduce || !op->summary.lengths.empty()) return false;
    return op->summary.shed != ShedReason::kNone || op->summary.sizes_version < layout.sizes_version;
  };
  const auto can_be = [&](std::size_t p, std::size_t bucket) {
    if (base + p < floor) return false;
    const Op* op = ops[p];
    if (wild(p)) return true;
    if (op->bound_to || op->summary.type != CollectiveType::kAllReduce) return false;
    if (allows(op->summary, layout.bucket_bytes[bucket])) return true;
    return op->summary.sizes_version < layout.sizes_version && !op->summary.closed;
  };
  for (std::size_t p = 0; p < count; ++p) {
    if (ops[p] == nullptr) found.unseen = true;
    if (ops[p] != nullptr && ops[p]->summary.type == CollectiveType::kAllReduce && !ops[p]->summary.closed &&
        ops[p]->summary.sizes_version < layout.sizes_version)
      found.stale = true;
  }

  // The earlier rounds take the earliest ops they can: if any choice leaves room for the last round, this one does.
  std::vector<OpKey> superseded;
  std::size_t start = 0;
  for (std::size_t round = 0; round + 1 < rounds; ++round) {
    for (std::size_t bucket = 0; bucket < buckets; ++bucket, ++start) {
      while (start < count && !can_be(start, bucket)) ++start;
      if (start == count) return;
      if (ops[start] != nullptr) superseded.push_back({comm, static_cast<std::uint32_t>(base + start)});
    }
  }
  // latest[i]: the last position at which bucket i may stand so that the buckets after it still fit.
  std::vector<std::size_t> latest(buckets);
  std::size_t limit = count;
  for (std::size_t i = buckets; i-- > 0;) {
    while (limit > start && !can_be(limit - 1, i)) --limit;
    if (limit == start) return;
    latest[i] = --limit;
  }
  // Depth first; with `latest` no branch is a dead end, so the work is bounded by what is listed.
  std::vector<std::size_t> chosen(buckets);
  std::size_t depth = 0;
  chosen[0] = start;
  for (;;) {
    while (chosen[depth] <= latest[depth] && !can_be(chosen[depth], depth)) ++chosen[depth];
    if (chosen[depth] > latest[depth]) {
      if (depth == 0) return;
      ++chosen[--depth];
      continue;
    }
    if (depth + 1 < buckets) {
      chosen[depth + 1] = chosen[depth] + 1;
      ++depth;
      continue;
    }
    Assignment assignment;
    assignment.comm = comm;
    assignment.deltas = {delta};
    assignment.shifted = shifted;
    assignment.superseded = superseded;
    for (std::size_t i = 0; i < buckets; ++i)
      assignment.buckets.push_back({OpKey{comm, static_cast<std::uint32_t>(base + chosen[i])}, layout.bucket_bytes[i],
                                    ops[chosen[i]] != nullptr});
    if (!must_be_seen || assignment.wildcards() < buckets) {
      const auto same = std::find_if(found.list.begin(), found.list.end(),
                                     [&](const Assignment& other) { return other.buckets == assignment.buckets; });
      if (same != found.list.end()) {
        same->deltas.push_back(delta);
        same->shifted = same->shifted && shifted;
      } else if (found.list.size() >= config_.max_assignments) {
        found.truncated = true;
        return;
      } else {
        found.list.push_back(std::move(assignment));
      }
    }
    ++chosen[depth];
  }
}

std::vector<std::uint32_t> Binder::comms() const {
  std::vector<std::uint32_t> comms;
  for (auto at = ops_.begin(); at != ops_.end(); at = ops_.upper_bound(OpKey{comms.back(), ~std::uint32_t{0}}))
    comms.push_back(at->first.comm);
  return comms;
}

Assignments Binder::assignments(const StepEvidence& evidence, bool search_shift) const {
  Assignments found;
  const auto at = layouts_.find(evidence.layout);
  if (at == layouts_.end()) return found;
  found.layout_known = true;
  found.shift_searched = search_shift;
  const Layout& layout = at->second;
  if (evidence.end < evidence.begin || evidence.synced_backwards == 0) return found;
  const std::uint64_t count = evidence.end - evidence.begin;
  if (count > config_.max_interval || evidence.synced_backwards > config_.max_rounds) {
    found.truncated = true;
    return found;
  }
  if (!deltas_.empty()) {
    for (const std::int64_t delta : deltas_) search(evidence, layout, comm_, delta, false, !delta_known(), found);
    if (search_shift && delta_known()) {
      for (std::uint32_t shift = 2; shift <= config_.max_shift; shift += 2)
        search(evidence, layout, comm_, deltas_.front() + shift, true, true, found);
    }
    return found;
  }
  if (hint_) {
    for (const std::uint32_t comm : comms()) search(evidence, layout, comm, *hint_, false, true, found);
    if (!found.list.empty()) return found;
  }
  // Nothing learnt yet: every delta that puts a seen op, of a length that some bucket has, into the interval.
  std::set<std::pair<std::uint32_t, std::int64_t>> tried;
  std::uint64_t looked_at = 0;
  for (const auto& [key, op] : ops_) {
    if (op.bound_to || op.summary.type != CollectiveType::kAllReduce) continue;
    if (op.summary.sizes_version < layout.sizes_version && !op.summary.closed) found.stale = true;
    const bool fits = std::any_of(layout.bucket_bytes.begin(), layout.bucket_bytes.end(),
                                  [&summary = op.summary](std::uint64_t bytes) { return allows(summary, bytes); });
    if (!fits) continue;
    for (std::uint64_t sequence = evidence.begin; sequence < evidence.end; ++sequence) {
      if (++looked_at > kMaxPositions) {
        found.truncated = true;
        return found;
      }
      const auto delta = static_cast<std::int64_t>(key.tag - sequence);
      if (!tried.emplace(key.comm, delta).second) continue;
      if (tried.size() > config_.max_deltas || tried.size() * count > kMaxPositions) {
        found.truncated = true;
        return found;
      }
    }
  }
  for (const auto& [comm, delta] : tried) search(evidence, layout, comm, delta, false, true, found);
  if (tried.empty()) found.unseen = true;
  return found;
}

Judgement Binder::judge(const StepEvidence& evidence, const Assignments& assignments,
                        std::span<const std::vector<WitnessOutcome>> outcomes) const {
  Judgement judgement;
  const auto say = [&](BindVerdict verdict, WaitReason wait = WaitReason::kNone) {
    judgement.verdict = verdict;
    judgement.wait = wait;
    return judgement;
  };
  if (evidence.verdict == StepVerdict::kSkipped) return say(BindVerdict::kSkipped);
  if (evidence.verdict == StepVerdict::kAmbiguous) return say(BindVerdict::kAmbiguous);
  if (evidence.synced_backwards == 0) return say(BindVerdict::kUnwired);
  if (!assignments.layout_known) return say(BindVerdict::kLayoutUnknown);
  if (evidence.step <= forgotten_steps_ || bound_steps_.contains(evidence.step)) return say(BindVerdict::kAmbiguous);
  if (assignments.list.empty()) {
    if (assignments.truncated) return say(BindVerdict::kAmbiguous);
    if (assignments.stale) return say(BindVerdict::kWait, WaitReason::kSummariesStale);
    if (!deltas_.empty() && !assignments.shift_searched) return say(BindVerdict::kWait, WaitReason::kSearchShift);
    if (!deltas_.empty()) return say(BindVerdict::kAnchorLost);
    return say(BindVerdict::kWait, WaitReason::kOpsNotSeen);
  }

  struct Tally {
    bool failed = false, open = false;
    std::uint32_t strong = 0, weak = 0, bucket = 0, position = 0;
  };
  std::vector<Tally> tallies(assignments.list.size());
  for (std::size_t a = 0; a < assignments.list.size(); ++a) {
    Tally& tally = tallies[a];
    for (std::uint32_t i = 0; i < assignments.list[a].buckets.size(); ++i) {
      const WitnessOutcome outcome = a < outcomes.size() && i < outcomes[a].size() ? outcomes[a][i] : WitnessOutcome{};
      switch (outcome.result) {
        case WitnessResult::kMatched:
          ++tally.strong;
          break;
        case WitnessResult::kAllZero:
        case WitnessResult::kNotSampled:
          ++tally.weak;
          break;
        case WitnessResult::kUnknown:
          tally.open = true;
          break;
        case WitnessResult::kMismatched:
          if (!tally.failed) {
            tally.bucket = i;
            tally.position = outcome.position;
          }
          tally.failed = true;
          break;
      }
    }
  }
  const auto choose = [&](std::size_t a, BindVerdict verdict) {
    judgement.assignment = a;
    judgement.strong = tallies[a].strong;
    judgement.weak = tallies[a].weak;
    judgement.bucket = tallies[a].bucket;
    judgement.position = tallies[a].position;
    return say(verdict);
  };

  const bool only_one = assignments.list.size() == 1 && !assignments.truncated && !assignments.stale;
  if (only_one && !assignments.list.front().shifted) {
    const Tally& tally = tallies.front();
    if (tally.failed) return choose(0, BindVerdict::kWitnessMismatch);
    if (tally.open)
      return say(BindVerdict::kWait,
                 assignments.list.front().wildcards() > 0 ? WaitReason::kOpsNotSeen : WaitReason::kWitnessUnknown);
    if (tally.strong == 0 && !(evidence.anchored && delta_known()))
      return say(BindVerdict::kWait, WaitReason::kNotAnchored);
    return choose(0, BindVerdict::kBound);
  }

  // The witness has to choose: one candidate equal and strong in every bucket, all others refuted.
  std::size_t survivors = 0, survivor = 0, open = 0, blocking = 0;
  for (std::size_t a = 0; a < tallies.size(); ++a) {
    if (tallies[a].failed) continue;
    if (tallies[a].open) {
      ++open;
      continue;
    }
    ++survivors;
    survivor = a;
  }
  if (survivors > 1) return say(BindVerdict::kAmbiguous);
  if (survivors == 0) {
    if (open > 0 || assignments.truncated || assignments.stale) {
      if (assignments.stale) return say(BindVerdict::kWait, WaitReason::kSummariesStale);
      if (open == 0) return say(BindVerdict::kAmbiguous);
      return say(BindVerdict::kWait, assignments.unseen ? WaitReason::kOpsNotSeen : WaitReason::kWitnessUnknown);
    }
    const auto unshifted = std::find_if(assignments.list.begin(), assignments.list.end(),
                                        [](const Assignment& assignment) { return !assignment.shifted; });
    if (unshifted == assignments.list.end()) return choose(0, BindVerdict::kWitnessMismatch);
    return choose(static_cast<std::size_t>(unshifted - assignments.list.begin()), BindVerdict::kWitnessMismatch);
  }
  const Assignment& chosen = assignments.list[survivor];
  for (std::size_t a = 0; a < tallies.size(); ++a) {
    if (a == survivor || tallies[a].failed) continue;
    // What the learnt delta offers may be lost for good: then its wildcards can never be refuted, and a shift that is
    // equal in every bucket is believed. Other shifts that nobody has seen whole say nothing either.
    const bool unseen = assignments.list[a].wildcards() > 0;
    if (chosen.shifted && unseen) continue;
    ++blocking;
  }
  if (assignments.truncated) return say(BindVerdict::kAmbiguous);
  if (assignments.stale) return say(BindVerdict::kWait, WaitReason::kSummariesStale);
  if (blocking > 0)
    return say(BindVerdict::kWait, assignments.unseen ? WaitReason::kOpsNotSeen : WaitReason::kWitnessUnknown);
  if (tallies[survivor].weak > 0) return say(BindVerdict::kAmbiguous);
  judgement.by_witness = true;
  return choose(survivor, BindVerdict::kBound);
}

Status Binder::commit(const StepEvidence& evidence, const Assignment& assignment) {
  const std::string where = "step " + std::to_string(evidence.step);
  if (evidence.step <= forgotten_steps_ || bound_steps_.contains(evidence.step))
    return fail(ErrorCode::kOpAlreadyBound, "the step is bound already", where);
  if (assignment.deltas.empty() || assignment.buckets.empty())
    return fail(ErrorCode::kOutOfRange, "the assignment is empty", where);
  for (const BucketOp& bucket : assignment.buckets) {
    const auto at = ops_.find(bucket.op);
    if (at == ops_.end()) continue;
    if (const auto& bound_to = at->second.bound_to)
      return fail(ErrorCode::kOpAlreadyBound, "the op is bound already",
                  where + " tag " + std::to_string(bucket.op.tag), "unbound",
                  "bound to step " + std::to_string(*bound_to));
  }
  for (const BucketOp& bucket : assignment.buckets) {
    auto [at, fresh] = ops_.try_emplace(bucket.op);
    if (fresh) at->second.summary.op = bucket.op;
    at->second.bound_to = evidence.step;
  }
  bound_steps_.insert(evidence.step);
  while (bound_steps_.size() > config_.max_bound_steps) {
    forgotten_steps_ = *bound_steps_.begin();
    bound_steps_.erase(bound_steps_.begin());
  }
  comm_ = assignment.comm;
  deltas_ = assignment.deltas;
  std::sort(deltas_.begin(), deltas_.end());
  if (assignment.shifted) ++counters_.relearnt_deltas;
  ++counters_.bound_steps;
  return {};
}

std::string_view bind_verdict_name(BindVerdict verdict) {
  switch (verdict) {
    case BindVerdict::kBound:
      return "bound";
    case BindVerdict::kWait:
      return "wait";
    case BindVerdict::kAmbiguous:
      return "ambiguous";
    case BindVerdict::kWitnessMismatch:
      return "witness mismatch";
    case BindVerdict::kLayoutUnknown:
      return "layout unknown";
    case BindVerdict::kUnwired:
      return "unwired";
    case BindVerdict::kSkipped:
      return "skipped";
    case BindVerdict::kAnchorLost:
      return "anchor lost";
  }
  return "unknown";
}

}  // namespace gradtap::dataplane
