// Whatever order messages, ops, answers, failures and ticks come in: nothing is bound but the truth, in order, once,
// with every byte there; and when everything has come, everything is verified. The rig checks the four numbers and the
// bound on steps ahead after every single call.
#include <map>
#include <set>
#include <tuple>

#include <doctest/doctest.h>

#include "tests/unit/actors/coordination_rig.h"

namespace gradtap::actors {
namespace {

using test::CoordinationRig;

constexpr StepNumber kSteps = 12;

struct Truth {
  std::shared_ptr<replica::StepMessage> message;
  std::uint32_t tags[2] = {};
  std::uint32_t foreign = 0;  // tag of an op that is none of the step's; 0: there is none
  bool skipped = false;
};

// A job whose intervals hold foreign ops here and there; a foreign op may be as large as a bucket.
std::map<StepNumber, Truth> make_job(const CoordinationRig& rig, SeededRandom& random) {
  std::map<StepNumber, Truth> job;
  std::uint64_t sequence = 3;
  for (StepNumber step = 1; step <= kSteps; ++step) {
    Truth truth;
    truth.message = rig.message(step);
    truth.message->interval_begin = sequence;
    if (step > 1 && random.below(3) == 0) truth.foreign = static_cast<std::uint32_t>(sequence++ + test::kDelta);
    for (std::uint32_t& tag : truth.tags) tag = static_cast<std::uint32_t>(sequence++ + test::kDelta);
    truth.message->interval_end = sequence;
    truth.message->witness = {rig.witness(step, 0, truth.tags[0]), rig.witness(step, 1, truth.tags[1])};
    truth.skipped = random.below(6) == 0;
    if (truth.skipped) truth.message->scalars.verdict = replica::Verdict::kSkipped;
    job[step] = truth;
  }
  return job;
}

struct Run {
  CoordinationRig rig;
  SeededRandom random;
  std::map<StepNumber, Truth> job;
  std::size_t words_done = 0, binds_done = 0, drains_done = 0;
  std::size_t binds_checked = 0, gos_checked = 0;
  std::map<ShardId, StepNumber> applied;
  std::map<ShardId, StepNumber> durable;
  std::map<std::pair<StepNumber, std::uint32_t>, bool> bound;  // (step, bucket) -> the newest order was obeyed

  explicit Run(std::uint64_t seed) : random(seed) {
    rig.answers_words = rig.answers_binds = rig.answers_drains = rig.applies = rig.flushes = false;
    job = make_job(rig, random);
  }

  void op(std::uint32_t tag, std::uint64_t bytes, bool complete) {
    std::vector<Interval> missing;
    if (!complete) missing = {{random.below(bytes / 8) * 4, bytes / 2 + 4 + random.below(bytes / 16) * 4}};
    const auto before = rig.ops.find(tag);
    if (before != rig.ops.end() && before->second.missing.empty()) missing.clear();  // bytes do not go away
    rig.give_op(tag, bytes, missing);
  }
  void ops_of(StepNumber step, bool complete) {
    const Truth& truth = job[step];
    const std::uint32_t which = static_cast<std::uint32_t>(random.below(3));
    if (which < 2)
      op(truth.tags[which], rig.layout->bucket_bytes(which), complete);
    else if (truth.foreign != 0)
      op(truth.foreign, rig.layout->bucket_bytes(truth.foreign % 2), complete);
  }
  void bind_answer(bool ok) {
    check();  // orders are seen before they are answered
    const OrderBind order = rig.binds[binds_done++];
    bound[{order.order.step, order.order.bucket}] = ok;
    Outcome outcome;
    if (!ok) outcome = {false, {ErrorCode::kTimeout, "silent", {}, {}, {}, {}}};
    rig.call([&] { rig.core.on_bind(order.ticket, outcome); });
  }
  void apply_one(ShardId shard) {
    if (applied[shard] < rig.gos.size()) rig.apply(shard, ++applied[shard]);
  }
  void flush_one(ShardId shard) {
    if (durable[shard] < applied[shard]) rig.make_durable(shard, ++durable[shard]);
  }

  void event() {
    switch (random.below(12)) {
      case 0:
        rig.give_message(job[1 + random.below(kSteps)].message);
        break;
      case 1:
      case 2:
      case 3:
        ops_of(std::min<StepNumber>(kSteps, rig.gos.size() + 1 + random.below(3)), random.below(3) != 0);
        break;
      case 4:
        rig.pass_ms(random.below(150));
        break;
      case 5:
      case 6:
        if (words_done < rig.words.size()) {
          const AskWords ask = rig.words[words_done++];
          if (random.below(10) == 0)
            rig.call([&] { rig.core.on_words(ask.ticket, std::nullopt); });
          else
            rig.answer_words(ask);
        }
        break;
      case 7:
        if (binds_done < rig.binds.size()) bind_answer(random.below(8) != 0);
        break;
      case 8:
        if (drains_done < rig.drains.size()) rig.call([&] { rig.core.on_drained(rig.drains[drains_done++]); });
        break;
      case 9:
        apply_one(static_cast<ShardId>(random.below(3)));
        break;
      case 10:
        flush_one(static_cast<ShardId>(random.below(3)));
        break;
      default:  // answers to nobody's question
        rig.call([&] { rig.core.on_drained(random.below(100)); });
        rig.call([&] { rig.core.on_bind(random.below(20) + 1'000'000, {}); });
        rig.call([&] { rig.core.on_words(random.below(20) + 1'000'000, WordAnswer{}); });
    }
    check();
  }

  void check() {
    for (; binds_checked < rig.binds.size(); ++binds_checked) {
      const BindOrder& order = rig.binds[binds_checked].order;
      REQUIRE(order.op.tag == job[order.step].tags[order.bucket]);
      REQUIRE(order.op_bytes == rig.layout->bucket_bytes(order.bucket));
      REQUIRE(rig.ops[order.op.tag].missing.empty());
      REQUIRE_FALSE(job[order.step].skipped);
      bound[{order.step, order.bucket}] = false;
    }
    for (; gos_checked < rig.gos.size(); ++gos_checked) {
      const StepNumber step = rig.gos[gos_checked]->scalars.step;
      REQUIRE(step == gos_checked + 1);
      if (job[step].skipped) continue;
      for (std::uint32_t bucket = 0; bucket < 2; ++bucket) REQUIRE(bound[{step, bucket}]);
    }
  }

  // Everything comes, everybody answers.
  void finish() {
    for (auto& [step, truth] : job) {
      rig.give_message(truth.message);
      if (truth.foreign != 0) op(truth.foreign, rig.layout->bucket_bytes(truth.foreign % 2), true);
      for (std::uint32_t bucket = 0; bucket < 2; ++bucket)
        op(truth.tags[bucket], rig.layout->bucket_bytes(bucket), true);
    }
    for (int i = 0; i < 2000 && rig.core.durable() < kSteps; ++i) {
      while (words_done < rig.words.size()) rig.answer_words(rig.words[words_done++]);
      while (binds_done < rig.binds.size()) bind_answer(true);
      while (drains_done < rig.drains.size()) rig.call([&] { rig.core.on_drained(rig.drains[drains_done++]); });
      for (ShardId shard = 0; shard < 3; ++shard) apply_one(shard);
      for (ShardId shard = 0; shard < 3; ++shard) flush_one(shard);
      rig.pass_ms(60);
      check();
    }
  }
};

}  // namespace

TEST_CASE("random events never bind but the truth, and in the end everything is durable") {
  std::uint64_t early = 0;
  for (std::uint64_t seed = 1; seed <= 150; ++seed) {
    CAPTURE(seed);
    Run run(seed);
    run.rig.give_layout();
    for (int i = 0; i < 400; ++i) run.event();
    early += run.rig.core.verified();
    run.finish();
    CHECK(run.rig.core.verified() == kSteps);
    CHECK(run.rig.core.durable() == kSteps);
    CHECK(run.rig.gos.size() == kSteps);
  }
  CHECK(early > 150);  // the random part did get somewhere
}

}  // namespace gradtap::actors
