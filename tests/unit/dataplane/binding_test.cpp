#include "dataplane/binding.h"

#include <optional>

#include <doctest/doctest.h>

#include "common/sha256.h"

using namespace gradtap;
using namespace gradtap::dataplane;

namespace {

// The code of an error, or nothing for a success: reading the error of a success would be undefined.
template <class Outcome>
std::optional<ErrorCode> code_of(const Outcome& outcome) {
  return outcome ? std::nullopt : std::optional(outcome.error().code);
}

using enum WitnessResult;
constexpr std::uint64_t kA = 1000, kB = 2000, kC = 3000;

OpSummary all_reduce(std::uint32_t tag, std::vector<std::uint64_t> lengths, std::uint32_t comm = 0) {
  OpSummary op;
  op.op = {comm, tag};
  op.type = CollectiveType::kAllReduce;
  op.lengths = std::move(lengths);
  op.sizes_version = 1;
  return op;
}
OpSummary other(std::uint32_t tag) {
  OpSummary op;
  op.op = {0, tag};
  op.type = CollectiveType::kBroadcast;
  return op;
}
const LayoutId kLayout = sha256("layout");

StepEvidence step(StepNumber s, std::uint64_t begin, std::uint64_t end, std::uint32_t rounds = 1) {
  StepEvidence evidence;
  evidence.step = s;
  evidence.layout = kLayout;
  evidence.begin = begin;
  evidence.end = end;
  evidence.synced_backwards = rounds;
  return evidence;
}
std::vector<WitnessOutcome> outcomes(std::initializer_list<WitnessResult> results) {
  std::vector<WitnessOutcome> out;
  for (const WitnessResult result : results) out.push_back({result, 0});
  return out;
}
std::vector<std::uint32_t> tags(const Assignment& assignment) {
  std::vector<std::uint32_t> out;
  for (const BucketOp& bucket : assignment.buckets) out.push_back(bucket.op.tag);
  return out;
}
using Outcomes = std::vector<std::vector<WitnessOutcome>>;
using Tags = std::vector<std::uint32_t>;

Binder binder_with(std::vector<std::uint64_t> buckets) {
  Binder binder;
  REQUIRE(binder.add_layout(kLayout, std::move(buckets), 1).has_value());
  return binder;
}
// A binder whose delta is 0, learnt from step 1.
Binder anchored_binder(std::vector<std::uint64_t> buckets) {
  Binder binder = binder_with(buckets);
  for (std::uint32_t i = 0; i < buckets.size(); ++i) binder.update(all_reduce(i, {buckets[i]}));
  const auto found = binder.assignments(step(1, 0, buckets.size()));
  REQUIRE(found.list.size() == 1);
  REQUIRE(binder.commit(step(1, 0, buckets.size()), found.list[0]).has_value());
  REQUIRE(binder.delta_known());
  return binder;
}

}  // namespace

TEST_CASE("one assignment and an equal witness bind; delta is learnt") {
  Binder binder = binder_with({kA, kB});
  binder.update(other(3));
  binder.update(all_reduce(4, {kA}));
  binder.update(all_reduce(5, {kB}));
  const StepEvidence evidence = step(1, 1000, 1002);  // sequence numbers of 1.13 do not start at 0
  const auto found = binder.assignments(evidence);
  REQUIRE(found.list.size() == 1);
  CHECK(tags(found.list[0]) == Tags{4, 5});
  CHECK(binder.judge(evidence, found, {}).verdict == BindVerdict::kWait);
  const Outcomes good = {outcomes({kMatched, kMatched})};
  const Judgement judgement = binder.judge(evidence, found, good);
  CHECK(judgement.verdict == BindVerdict::kBound);
  CHECK(judgement.strong == 2);
  CHECK_FALSE(judgement.by_witness);
  REQUIRE(binder.commit(evidence, found.list[0]).has_value());
  CHECK(binder.deltas() == std::vector<std::int64_t>{-996});
  CHECK_FALSE(binder.commit(evidence, found.list[0]).has_value());  // never twice: the step
  StepEvidence again = evidence;
  again.step = 2;
  CHECK(code_of(binder.commit(again, found.list[0])) == ErrorCode::kOpAlreadyBound);  // never twice: the op
  CHECK(binder.assignments(again).list.empty());
  // The next step needs no search.
  binder.update(all_reduce(6, {kA}));
  binder.update(all_reduce(7, {kB}));
  const auto next = binder.assignments(step(2, 1002, 1004));
  REQUIRE(next.list.size() == 1);
  CHECK(tags(next.list[0]) == Tags{6, 7});
}

TEST_CASE("a mismatch names bucket and position and binds nothing (B3)") {
  const Binder binder = anchored_binder({kA, kB});
  const StepEvidence evidence = step(2, 2, 4);
  const auto found = binder.assignments(evidence);  // nothing seen: two wildcards
  REQUIRE(found.list.size() == 1);
  CHECK(found.list[0].wildcards() == 2);
  Outcomes bad = {outcomes({kMatched, kMismatched})};
  bad[0][1].position = 6;
  const Judgement judgement = binder.judge(evidence, found, bad);
  CHECK(judgement.verdict == BindVerdict::kWitnessMismatch);
  CHECK(judgement.bucket == 1);
  CHECK(judgement.position == 6);
}

TEST_CASE("foreign collectives of other types and lengths are passed over") {
  Binder binder = anchored_binder({kA, kB});
  binder.update(other(2));
  binder.update(all_reduce(3, {kA}));
  binder.update(all_reduce(4, {kC}));
  binder.update(all_reduce(5, {}));
  binder.update(all_reduce(6, {kB}));
  const auto found = binder.assignments(step(2, 2, 7));
  REQUIRE(found.list.size() == 1);
  CHECK(tags(found.list[0]) == Tags{3, 6});
}

TEST_CASE("a foreign op with a bucket's length: the witness decides, or nothing does") {
  Binder binder = anchored_binder({kA});
  binder.update(all_reduce(1, {kA}));
  binder.update(all_reduce(2, {kA}));
  const StepEvidence evidence = step(2, 1, 3);
  const auto found = binder.assignments(evidence);
  REQUIRE(found.list.size() == 2);
  const auto verdict = [&](WitnessResult a, WitnessResult b) {
    const Outcomes both = {outcomes({a}), outcomes({b})};
    return binder.judge(evidence, found, both);
  };
  CHECK(verdict(kMatched, kMismatched).verdict == BindVerdict::kBound);
  CHECK(verdict(kMatched, kMismatched).by_witness);
  CHECK(verdict(kMismatched, kMatched).assignment == 1);
  CHECK(verdict(kMatched, kMatched).verdict == BindVerdict::kAmbiguous);
  CHECK(verdict(kMatched, kAllZero).verdict == BindVerdict::kAmbiguous);
  CHECK(verdict(kMismatched, kMismatched).verdict == BindVerdict::kWitnessMismatch);
  CHECK(verdict(kMatched, kUnknown).verdict == BindVerdict::kWait);
  // Weak is not enough to choose by.
  CHECK(verdict(kAllZero, kMismatched).verdict == BindVerdict::kAmbiguous);
  CHECK(verdict(kNotSampled, kMismatched).verdict == BindVerdict::kAmbiguous);
}

TEST_CASE("an op not seen is a wildcard: it keeps a choice open until it is seen") {
  Binder binder = anchored_binder({kA});
  binder.update(all_reduce(1, {kA}));
  const StepEvidence evidence = step(2, 1, 3);
  auto found = binder.assignments(evidence);
  CHECK(found.list.size() == 2);
  CHECK(found.unseen);
  const Judgement waits = binder.judge(evidence, found, Outcomes{outcomes({kMatched}), outcomes({kUnknown})});
  CHECK(waits.verdict == BindVerdict::kWait);
  CHECK(waits.wait == WaitReason::kOpsNotSeen);
  binder.update(other(2));
  found = binder.assignments(evidence);
  REQUIRE(found.list.size() == 1);
  CHECK(binder.judge(evidence, found, Outcomes{outcomes({kMatched})}).verdict == BindVerdict::kBound);
}

TEST_CASE("weak buckets: accepted beside a strong one if the count is unique; alone only when anchored") {
  Binder binder = anchored_binder({kA, kB});
  binder.update(all_reduce(2, {kA}));
  binder.update(all_reduce(3, {kB}));
  StepEvidence evidence = step(2, 2, 4);
  const auto found = binder.assignments(evidence);
  const Judgement mixed = binder.judge(evidence, found, Outcomes{outcomes({kMatched, kNotSampled})});
  CHECK(mixed.verdict == BindVerdict::kBound);
  CHECK(mixed.strong == 1);
  CHECK(mixed.weak == 1);
  const Outcomes zeros = {outcomes({kAllZero, kAllZero})};
  CHECK(binder.judge(evidence, found, zeros).wait == WaitReason::kNotAnchored);
  evidence.anchored = true;
  CHECK(binder.judge(evidence, found, zeros).verdict == BindVerdict::kBound);

  Binder fresh = binder_with({kA});
  fresh.update(all_reduce(0, {kA}));
  StepEvidence first = step(1, 0, 1);
  first.anchored = true;
  CHECK(fresh.judge(first, fresh.assignments(first), Outcomes{outcomes({kAllZero})}).wait == WaitReason::kNotAnchored);
}

TEST_CASE("accumulation without no_sync: the last round is bound, earlier ones are superseded (A5)") {
  Binder binder = anchored_binder({kA, kB});
  for (const std::uint32_t tag : {2U, 4U, 6U}) binder.update(all_reduce(tag, {kA}));
  for (const std::uint32_t tag : {3U, 5U, 7U}) binder.update(all_reduce(tag, {kB}));
  const auto found = binder.assignments(step(2, 2, 8, 3));
  REQUIRE(found.list.size() == 1);
  CHECK(tags(found.list[0]) == Tags{6, 7});
  CHECK(found.list[0].superseded == std::vector<OpKey>{{0, 2}, {0, 3}, {0, 4}, {0, 5}});
  // One round too many for what is there.
  CHECK(binder.assignments(step(2, 2, 8, 4)).list.empty());
  // With fewer rounds the same ops leave a choice.
  CHECK(binder.assignments(step(2, 2, 8, 2)).list.size() == 3);
}

TEST_CASE("delta unknown: all that what was seen allows, the witness chooses") {
  Binder binder = binder_with({kA, kB});
  for (std::uint32_t tag = 50; tag < 56; tag += 2) {
    binder.update(all_reduce(tag, {kA}));
    binder.update(all_reduce(tag + 1, {kB}));
  }
  const StepEvidence evidence = step(9, 52, 54);
  const auto found = binder.assignments(evidence);
  Outcomes probes;
  std::size_t right = found.list.size();
  for (std::size_t a = 0; a < found.list.size(); ++a) {
    const bool is_right = tags(found.list[a]) == Tags{52, 53};
    if (is_right) right = a;
    probes.push_back(is_right ? outcomes({kMatched, kMatched}) : outcomes({kMismatched, kUnknown}));
  }
  CHECK(found.list.size() == 3);
  REQUIRE(right < found.list.size());
  const Judgement judgement = binder.judge(evidence, found, probes);
  CHECK(judgement.verdict == BindVerdict::kBound);
  CHECK(judgement.assignment == right);
  REQUIRE(binder.commit(evidence, found.list[right]).has_value());
  CHECK(binder.deltas() == std::vector<std::int64_t>{0});
}

TEST_CASE("several deltas that name the same ops are one assignment; later steps reduce them") {
  Binder binder = binder_with({kA});
  binder.update(other(3));
  binder.update(other(4));
  binder.update(all_reduce(5, {kA}));
  binder.update(other(6));
  binder.update(other(7));
  const auto first = binder.assignments(step(1, 3, 6));
  REQUIRE(first.list.size() == 1);
  CHECK(first.list[0].deltas == std::vector<std::int64_t>{0, 1, 2});
  REQUIRE(binder.commit(step(1, 3, 6), first.list[0]).has_value());
  CHECK_FALSE(binder.delta_known());
  binder.update(all_reduce(8, {kA}));
  binder.update(all_reduce(9, {kC}));
  binder.update(other(10));
  const auto second = binder.assignments(step(2, 8, 9));
  REQUIRE(second.list.size() == 1);
  CHECK(second.list[0].deltas == std::vector<std::int64_t>{0});
}

TEST_CASE("two contexts are told apart by the witness") {
  Binder binder = binder_with({kA});
  binder.update(all_reduce(0, {kA}, 0));
  binder.update(all_reduce(0, {kA}, 1));
  const StepEvidence evidence = step(1, 0, 1);
  const auto found = binder.assignments(evidence);
  REQUIRE(found.list.size() == 2);
  const Judgement judgement = binder.judge(evidence, found, Outcomes{outcomes({kMismatched}), outcomes({kMatched})});
  CHECK(judgement.verdict == BindVerdict::kBound);
  REQUIRE(binder.commit(evidence, found.list[judgement.assignment]).has_value());
  CHECK(binder.comm() == 1);
  binder.update(all_reduce(1, {kA}, 0));
  binder.update(all_reduce(1, {kA}, 1));
  CHECK(binder.assignments(step(2, 1, 2)).list.size() == 1);
}

TEST_CASE("monitored_barrier: a shift by +2 is learnt again by the witness, any other is ANCHOR_LOST") {
  Binder binder = anchored_binder({kA, kB});
  SUBCASE("+2") {
    binder.update(other(2));
    binder.update(other(3));
    binder.update(all_reduce(4, {kA}));
    binder.update(all_reduce(5, {kB}));
    const StepEvidence evidence = step(2, 2, 4);
    auto found = binder.assignments(evidence);
    CHECK(found.list.empty());
    CHECK(binder.judge(evidence, found, {}).wait == WaitReason::kSearchShift);
    found = binder.assignments(evidence, true);
    REQUIRE(found.list.size() >= 1);
    CHECK(tags(found.list[0]) == Tags{4, 5});
    CHECK(found.list[0].shifted);
    const Outcomes weak = {outcomes({kMatched, kAllZero})};
    CHECK(binder.judge(evidence, found, weak).verdict != BindVerdict::kBound);
    const Outcomes strong = {outcomes({kMatched, kMatched})};
    const Judgement judgement = binder.judge(evidence, found, strong);
    CHECK(judgement.verdict == BindVerdict::kBound);
    REQUIRE(binder.commit(evidence, found.list[judgement.assignment]).has_value());
    CHECK(binder.deltas() == std::vector<std::int64_t>{2});
    CHECK(binder.counters().relearnt_deltas == 1);
  }
  SUBCASE("+2, and the tags in between were never seen") {
    binder.update(all_reduce(4, {kA}));
    binder.update(all_reduce(5, {kB}));
    const StepEvidence evidence = step(2, 2, 4);
    const auto found = binder.assignments(evidence, true);
    Outcomes probes;
    for (const Assignment& assignment : found.list)
      probes.push_back(tags(assignment) == Tags{4, 5} ? outcomes({kMatched, kMatched})
                                                      : outcomes({kUnknown, kUnknown}));
    const Judgement judgement = binder.judge(evidence, found, probes);
    REQUIRE(judgement.verdict == BindVerdict::kBound);
    CHECK(tags(found.list[judgement.assignment]) == Tags{4, 5});
  }
  SUBCASE("+1") {
    binder.update(other(2));
    binder.update(all_reduce(3, {kA}));
    binder.update(all_reduce(4, {kB}));
    for (std::uint32_t tag = 5; tag < 100; ++tag) binder.update(other(tag));
    const StepEvidence evidence = step(2, 2, 4);
    const auto found = binder.assignments(evidence, true);
    CHECK(found.list.empty());
    CHECK(binder.judge(evidence, found, {}).verdict == BindVerdict::kAnchorLost);
  }
}

TEST_CASE("verdicts that need no ops") {
  const Binder binder = anchored_binder({kA});
  StepEvidence evidence = step(2, 1, 2);
  const auto judge = [&] { return binder.judge(evidence, binder.assignments(evidence), {}).verdict; };
  evidence.verdict = StepVerdict::kSkipped;
  CHECK(judge() == BindVerdict::kSkipped);
  evidence.verdict = StepVerdict::kAmbiguous;
  CHECK(judge() == BindVerdict::kAmbiguous);
  evidence.verdict = StepVerdict::kApplied;
  evidence.synced_backwards = 0;
  CHECK(judge() == BindVerdict::kUnwired);
  evidence.synced_backwards = 1;
  evidence.layout = sha256("another");
  CHECK(judge() == BindVerdict::kLayoutUnknown);
}

TEST_CASE("summaries older than the layout's sizes exclude nothing, and decide nothing") {
  Binder binder = anchored_binder({kA});
  const LayoutId later = sha256("later");
  REQUIRE(binder.add_layout(later, {kB}, 2).has_value());
  binder.update(all_reduce(1, {}));
  StepEvidence evidence = step(2, 1, 2);
  evidence.layout = later;
  auto found = binder.assignments(evidence);
  CHECK(found.stale);
  CHECK(binder.judge(evidence, found, Outcomes{outcomes({kMatched})}).wait == WaitReason::kSummariesStale);
  OpSummary fresh = all_reduce(1, {kB});
  fresh.sizes_version = 2;
  binder.update(fresh);
  found = binder.assignments(evidence);
  REQUIRE(found.list.size() == 1);
  CHECK(binder.judge(evidence, found, Outcomes{outcomes({kMatched})}).verdict == BindVerdict::kBound);
}

TEST_CASE("hostile evidence is bounded") {
  BinderConfig config;
  config.max_ops = 100;
  Binder binder(config);
  REQUIRE(binder.add_layout(kLayout, std::vector<std::uint64_t>(4, kA), 1).has_value());
  for (std::uint32_t tag = 0; tag < 1000; ++tag) binder.update(all_reduce(tag, {kA}));
  CHECK(binder.counters().forgotten_ops == 900);
  const auto found = binder.assignments(step(1, 0, 200));
  CHECK(found.list.size() <= 64);
  CHECK(found.truncated);
  std::vector<std::vector<WitnessOutcome>> all(found.list.size(),
                                               outcomes({kMismatched, kUnknown, kUnknown, kUnknown}));
  all[0] = outcomes({kMatched, kMatched, kMatched, kMatched});
  CHECK(binder.judge(step(1, 0, 200), found, all).verdict == BindVerdict::kAmbiguous);
  CHECK(binder.assignments(step(1, 0, ~0ULL)).list.empty());
  CHECK(binder.assignments(step(1, 5, 2)).list.empty());
  CHECK(binder.assignments(step(1, 0, 100, ~0U)).list.empty());
  CHECK_FALSE(binder.add_layout(sha256("x"), {}).has_value());
  // Forgotten ops do not come back as wildcards.
  binder.update(all_reduce(3, {kA}));
  for (const Assignment& assignment : binder.assignments(step(1, 895, 905)).list)
    for (const BucketOp& bucket : assignment.buckets) CHECK(bucket.op.tag >= 900);
}
