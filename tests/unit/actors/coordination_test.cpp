#include "actors/coordination.h"

#include <doctest/doctest.h>

#include "tests/unit/actors/coordination_rig.h"

namespace gradtap::actors {
namespace {

using test::CoordinationRig;
using test::json;
using test::kComm;
using Steps = std::vector<StepNumber>;

bool contains(const std::optional<Gap>& gap, std::string_view text) {
  return gap && gap->evidence.find(text) != std::string::npos;
}

// A rig at step `steps`, everything bound, applied and durable.
void run_steps(CoordinationRig& rig, StepNumber steps) {
  rig.give_layout();
  for (StepNumber step = 1; step <= steps; ++step) {
    rig.give_ops_of(step);
    rig.give_message(step);
  }
  REQUIRE(rig.core.verified() == steps);
}

}  // namespace

TEST_CASE("steps are bound in order, and the offset of tags is learnt") {
  CoordinationRig rig;
  run_steps(rig, 5);
  CHECK(rig.steps_gone() == Steps{1, 2, 3, 4, 5});
  REQUIRE(rig.binds.size() == 10);
  for (std::size_t i = 0; i < 10; ++i) {
    const BindOrder& order = rig.binds[i].order;
    CHECK(order.step == 1 + i / 2);
    CHECK(order.bucket == i % 2);
    CHECK(order.op == dataplane::OpKey{kComm, rig.tag_of(order.step, order.bucket)});
    // Bucket 0 is c (66000), bucket 1 is b, a (5 + 70000).
    CHECK(order.op_bytes == (order.bucket == 0 ? 264'000U : 280'020U));
    std::uint64_t at = 0;
    for (const replica::Slice& slice : *order.slices) {
      CHECK(slice.bucket_offset == at);
      at += slice.elements;
    }
    CHECK(at * 4 == order.op_bytes);
  }
  CHECK(rig.core.status()["binding"]["delta"] == json::array({1000}));
  CHECK(rig.binding("strong_buckets") == 10);
  CHECK(rig.binding("weak_buckets") == 0);
  CHECK(rig.binding("drains") == 0);
  CHECK(rig.core.training() == 5);
  CHECK(rig.core.durable() == 5);
  CHECK(rig.core.base_durable());
  REQUIRE(!rig.forgotten.empty());
  CHECK(rig.forgotten.back().comm == kComm);
  CHECK(rig.forgotten.back().tag == rig.tag_of(5, 1) + 1);
  // Only what no recovery point explains is left.
  REQUIRE(rig.core.gaps().size() == 1);
  CHECK(rig.core.gaps().front().reason == GapReason::kPublishInterval);
}

TEST_CASE("a message and an op that come twice change nothing") {
  CoordinationRig rig;
  rig.give_layout();
  rig.give_ops_of(1);
  rig.give_message(1);
  rig.give_message(1);
  rig.give_ops_of(1);
  rig.give_message(1);
  CHECK(rig.steps_gone() == Steps{1});
  CHECK(rig.binds.size() == 2);
}

TEST_CASE("a layout that is not known is asked for, and its step bound when it comes") {
  CoordinationRig rig;
  rig.give_ops_of(1);
  rig.give_message(1);
  CHECK(rig.gos.empty());
  CHECK(rig.gap(GapReason::kLayoutUnknown));
  REQUIRE(rig.layouts_asked.size() == 1);
  CHECK(rig.layouts_asked[0] == rig.layout->id());
  // Asked again only after a while.
  rig.give_ops_of(1);
  CHECK(rig.layouts_asked.size() == 1);
  rig.clock.advance_ms(1500);
  rig.give_ops_of(1);
  CHECK(rig.layouts_asked.size() == 2);
  rig.give_layout();
  CHECK(rig.sizes_version > 0);
  rig.give_ops_of(1);  // assemblers look again with the new sizes
  CHECK(rig.core.verified() == 1);
  CHECK_FALSE(rig.gap(GapReason::kLayoutUnknown));
}

TEST_CASE("layouts beyond the bound make another one go, counted") {
  CoordinationConfig config;
  config.layouts_max = 2;
  CoordinationRig rig(config);
  const auto binding = [&] { return rig.core.status()["binding"]; };
  rig.give_layout();
  for (const auto& buckets : {std::vector<std::vector<std::uint32_t>>{{0}, {1, 2}}, {{0, 1}, {2}}, {{1}, {0, 2}}}) {
    rig.layout = test::layout_of(*rig.plan, buckets);
    rig.give_layout();
    CHECK(binding()["layouts"] == 2);
  }
  CHECK(binding()["layouts_evicted"] == 2);
}

TEST_CASE("ops that come after the step message are waited for") {
  CoordinationRig rig;
  rig.give_layout();
  rig.give_message(1);
  CHECK(rig.gap(GapReason::kInFlight));
  rig.give_op_of(1, 0);
  CHECK(rig.binds.empty());
  rig.give_op_of(1, 1, {{4, 8}});
  CHECK(rig.binds.empty());
  CHECK(rig.gap(GapReason::kInFlight));
  rig.give_op_of(1, 1);
  CHECK(rig.core.verified() == 1);
  CHECK_FALSE(rig.gap(GapReason::kInFlight));
}

TEST_CASE("bytes that do not come are definitely lost after the grace and two drains, and late ones clear it") {
  CoordinationRig rig;
  run_steps(rig, 1);
  rig.answers_drains = false;
  rig.give_op_of(2, 0);
  rig.give_op_of(2, 1, {{8, 20}, {1000, 2000}});
  rig.give_message(2);
  rig.pass_ms(199);
  CHECK(rig.drains.empty());
  rig.pass_ms(1);
  REQUIRE(rig.drains.size() == 1);
  rig.pass_ms(50);
  CHECK(rig.drains.size() == 1);  // one at a time
  CHECK_FALSE(rig.gap(GapReason::kLostDefinitive));
  rig.call([&] { rig.core.on_drained(rig.drains[0]); });
  CHECK_FALSE(rig.gap(GapReason::kLostDefinitive));
  rig.pass_ms(50);
  REQUIRE(rig.drains.size() == 2);
  rig.call([&] { rig.core.on_drained(rig.drains[0]); });  // an old answer
  CHECK_FALSE(rig.gap(GapReason::kLostDefinitive));
  rig.call([&] { rig.core.on_drained(rig.drains[1]); });
  const auto lost = rig.gap(GapReason::kLostDefinitive);
  REQUIRE(lost);
  CHECK(lost->since_step == 2);
  CHECK(contains(lost, "tag 1006"));
  CHECK(contains(lost, "[8,20) [1000,2000)"));
  CHECK(rig.number("lag_steps") == 1);
  CHECK(rig.core.status()["state"] == "held");
  rig.pass_ms(5000);
  CHECK(rig.drains.size() == 2);
  CHECK(rig.steps_gone() == Steps{1});
  rig.give_op_of(2, 1, {{8, 20}});
  CHECK(contains(rig.gap(GapReason::kLostDefinitive), "[8,20)"));
  CHECK_FALSE(contains(rig.gap(GapReason::kLostDefinitive), "[1000,2000)"));
  rig.give_op_of(2, 1);
  CHECK(rig.core.verified() == 2);
  CHECK_FALSE(rig.gap(GapReason::kLostDefinitive));
  CHECK(rig.core.status()["state"] == "tracking");
}

TEST_CASE("what the wire shows and nobody decodes is named instead of a loss") {
  CoordinationRig rig;
  run_steps(rig, 1);
  rig.answers_drains = false;
  rig.give_message(2);
  rig.pass_ms(200);
  for (int i = 0; i < 2; ++i) {
    rig.call([&] { rig.core.on_drained(rig.drains.back(), true, "LL128: seen; set NCCL_PROTO=LL,Simple"); });
    rig.pass_ms(50);
  }
  const auto named = rig.gap(GapReason::kUnsupported);
  REQUIRE(named);
  CHECK(named->since_step == 2);
  CHECK(contains(named, "set NCCL_PROTO=LL,Simple"));
  CHECK_FALSE(rig.gap(GapReason::kLostDefinitive));
  rig.give_op_of(2, 0);
  rig.give_op_of(2, 1);
  CHECK(rig.core.verified() == 2);  // it was not all that the wire carried
  CHECK_FALSE(rig.gap(GapReason::kUnsupported));
}

TEST_CASE("a queue that was not found empty proves no loss") {
  CoordinationRig rig;
  run_steps(rig, 1);
  rig.answers_drains = false;
  rig.give_op_of(2, 0);
  rig.give_message(2);
  rig.pass_ms(250);
  for (int i = 0; i < 5; ++i) {
    REQUIRE(rig.drains.size() == static_cast<std::size_t>(i) + 1);
    rig.call([&] { rig.core.on_drained(rig.drains.back(), false); });
    CHECK_FALSE(rig.gap(GapReason::kLostDefinitive));
    rig.pass_ms(50);
  }
}

TEST_CASE("an op of which no frame was seen is lost whole") {
  CoordinationRig rig;
  run_steps(rig, 1);
  rig.give_op_of(2, 0);
  rig.give_message(2);
  rig.clock.advance_ms(1);
  rig.make_definitive();
  CHECK(contains(rig.gap(GapReason::kLostDefinitive), "tag 1006"));
  CHECK(contains(rig.gap(GapReason::kLostDefinitive), "no frame seen"));
  CHECK(contains(rig.gap(GapReason::kLostDefinitive), "[0,280020)"));
  CHECK(rig.steps_gone() == Steps{1});
}

TEST_CASE("copies that differ hold the step at once") {
  CoordinationRig rig;
  run_steps(rig, 1);
  rig.give_op_of(2, 0);
  rig.give_op_of(2, 1, {{0, 4}});
  rig.ops[rig.tag_of(2, 1)].summary.conflict = true;
  rig.give_summary(rig.tag_of(2, 1));
  rig.give_message(2);
  CHECK(contains(rig.gap(GapReason::kConflict), "tag 1006"));
  rig.make_definitive();
  CHECK(rig.gap(GapReason::kConflict));
  CHECK(rig.steps_gone() == Steps{1});
}

TEST_CASE("an op that was shed is named with its reason") {
  CoordinationRig rig;
  run_steps(rig, 1);
  rig.give_op_of(2, 0);
  rig.give_op_of(2, 1, {{0, 280'020}});
  rig.ops[rig.tag_of(2, 1)].summary.closed = true;
  rig.ops[rig.tag_of(2, 1)].summary.shed = dataplane::ShedReason::kWindowBytes;
  rig.give_summary(rig.tag_of(2, 1));
  rig.give_message(2);
  CHECK(contains(rig.gap(GapReason::kOverloadShed), "tag 1006"));
  rig.make_definitive();
  CHECK(rig.steps_gone() == Steps{1});
}

TEST_CASE("a gradient that is not what the trainer saw is never bound") {
  CoordinationRig rig;
  run_steps(rig, 1);
  auto message = rig.message(2);
  message->witness[1].bits[5] ^= 1;  // one bit of one value
  rig.give_ops_of(2);
  rig.give_message(message);
  const auto mismatch = rig.gap(GapReason::kWitnessMismatch);
  REQUIRE(mismatch);
  CHECK(contains(mismatch, "bucket 1 tag 1006 position 5"));
  rig.make_definitive();
  for (int i = 0; i < 5; ++i) {
    rig.give_ops_of(2);
    rig.pass_ms(1000);
    rig.give_message(3);
    rig.give_ops_of(3);
  }
  CHECK(rig.gap(GapReason::kWitnessMismatch));
  CHECK(rig.steps_gone() == Steps{1});
  CHECK(rig.binds.size() == 2);
}

TEST_CASE("among assignments that fit, the witness chooses") {
  CoordinationRig rig;
  run_steps(rig, 1);
  // The interval holds a foreign op as large as bucket 0 before the step's own.
  auto message = rig.message(2);
  message->interval_end += 1;
  message->witness = {rig.witness(2, 0, 1006), rig.witness(2, 1, 1007)};
  SUBCASE("one of them matches") {
    rig.give_message(message);
    rig.give_op(1005, 264'000);
    rig.give_op(1006, 264'000);
    rig.give_op(1007, 280'020);
    REQUIRE(rig.steps_gone() == Steps{1, 2});
    CHECK(rig.binds[2].order.op.tag == 1006);
    CHECK(rig.binds[3].order.op.tag == 1007);
    CHECK(rig.binding("by_witness") == 1);
  }
  SUBCASE("no witness, no choice") {
    message->witness.clear();
    rig.give_message(message);
    rig.give_op(1005, 264'000);
    rig.give_op(1006, 264'000);
    rig.give_op(1007, 280'020);
    rig.make_definitive();
    CHECK(rig.gap(GapReason::kOpAmbiguous));
    CHECK(rig.steps_gone() == Steps{1});
  }
}

TEST_CASE("transforms and gradients that the optimizer never saw are part of the comparison") {
  CoordinationRig rig;
  rig.give_layout();
  auto message = rig.message(1);
  replica::Transform half;
  half.op.factor = 0.5F;
  message->scalars.transforms = *replica::TransformChain::create({half});
  for (auto& bucket : message->witness)
    for (std::uint32_t& bits : bucket.bits) bits = std::bit_cast<std::uint32_t>(std::bit_cast<float>(bits) / 2);
  rig.give_ops_of(1);
  SUBCASE("halved on both sides") {
    rig.give_message(message);
    CHECK(rig.core.verified() == 1);
  }
  SUBCASE("halved on one side") {
    message->scalars.transforms = {};
    rig.give_message(message);
    CHECK(rig.gap(GapReason::kWitnessMismatch));
  }
}

TEST_CASE("a step of two optimizer calls, and one without a collective, are held with their reason") {
  CoordinationRig rig;
  run_steps(rig, 1);
  auto message = rig.message(2);
  GapReason reason{};
  SUBCASE("ambiguous") {
    message->scalars.verdict = replica::Verdict::kAmbiguous;
    reason = GapReason::kOpAmbiguous;
  }
  SUBCASE("unwired") {
    message->synced_backwards = 0;
    reason = GapReason::kUnwired;
  }
  SUBCASE("reduced in another pass than the last (A3)") {
    message->scalars.param_state.assign(message->scalars.param_state.size(), replica::ParamState::kStale);
    for (auto& bucket : message->witness)
      for (auto& bits : bucket.bits) bits ^= 1;
    reason = GapReason::kUnwired;
  }
  rig.give_ops_of(2);
  rig.give_message(message);
  CHECK(rig.gap(reason));
  rig.make_definitive();
  CHECK(rig.gap(reason));
  rig.give_ops_of(3);
  rig.give_message(3);
  CHECK(rig.steps_gone() == Steps{1});
  CHECK(rig.binds.size() == 2);
}

TEST_CASE("skipped steps go on without ops") {
  CoordinationRig rig;
  run_steps(rig, 1);
  for (StepNumber step = 2; step <= 3; ++step) {
    auto message = rig.message(step);
    message->scalars.verdict = replica::Verdict::kSkipped;
    if (step == 3) rig.give_ops_of(step);  // with or without what was on the wire
    rig.give_message(message);
  }
  CHECK(rig.steps_gone() == Steps{1, 2, 3});
  CHECK(rig.gos[1]->scalars.verdict == replica::Verdict::kSkipped);
  CHECK(rig.binds.size() == 2);
  CHECK(rig.binding("skipped_steps") == 2);
  rig.give_ops_of(4);
  rig.give_message(4);
  CHECK(rig.core.verified() == 4);
}

TEST_CASE("a message that the client dropped is a gap for good") {
  CoordinationRig rig;
  run_steps(rig, 1);
  ClientNotice notice;
  notice.dropped_steps = {2, 1};
  rig.call([&] { rig.core.on_notice(notice); });
  rig.give_ops_of(2);
  rig.give_ops_of(3);
  rig.give_message(3);
  CHECK(contains(rig.gap(GapReason::kScalarsMissing), "step 2"));
  rig.make_definitive();
  CHECK(rig.gap(GapReason::kScalarsMissing));
  CHECK(rig.core.training() == 3);
  CHECK(rig.steps_gone() == Steps{1});
}

TEST_CASE("a message that does not come is missed after the grace") {
  CoordinationRig rig;
  run_steps(rig, 1);
  rig.give_ops_of(3);
  rig.give_message(3);
  rig.pass_ms(100);
  CHECK_FALSE(rig.gap(GapReason::kScalarsMissing));
  SUBCASE("and silence follows") {
    rig.pass_ms(150);
    CHECK(contains(rig.gap(GapReason::kScalarsMissing), "step 2"));
  }
  SUBCASE("and others follow quickly") {
    for (StepNumber step = 4; step < 10; ++step) {
      rig.give_message(step);
      rig.pass_ms(50);
    }
    CHECK(contains(rig.gap(GapReason::kScalarsMissing), "step 2"));
  }
  rig.give_ops_of(2);
  rig.give_message(2);
  CHECK(rig.core.verified() == 3);
  CHECK_FALSE(rig.gap(GapReason::kScalarsMissing));
}

TEST_CASE("a mirror that says nothing is told from lost bytes") {
  CoordinationRig rig;
  rig.give_layout();
  rig.give_ops_of(1);
  rig.clock.advance_ms(5);
  rig.give_message(1);
  rig.clock.advance_ms(5);
  rig.give_message(2);
  rig.make_definitive();
  CHECK(rig.gap(GapReason::kTapDown));
  CHECK_FALSE(rig.gap(GapReason::kLostDefinitive));
  rig.give_ops_of(2);
  CHECK(rig.core.verified() == 2);
  CHECK_FALSE(rig.gap(GapReason::kTapDown));
}

TEST_CASE("a bind that fails gives no go, and is tried again") {
  CoordinationRig rig;
  rig.give_layout();
  rig.give_ops_of(1);
  rig.bind_outcome = {false, {ErrorCode::kOpConflict, "late conflict", {}, {}, {}, {}}};
  rig.give_message(1);
  CHECK(rig.gos.empty());
  CHECK(contains(rig.gap(GapReason::kConflict), "late conflict"));
  rig.bind_outcome = {};
  const std::size_t before = rig.binds.size();
  for (std::size_t i = 0; i < before; ++i) rig.call([&] { rig.core.on_bind(rig.binds[i].ticket, {}); });
  CHECK(rig.gos.empty());  // old answers are nothing
  rig.give_ops_of(1);
  CHECK(rig.steps_gone() == Steps{1});
  CHECK_FALSE(rig.gap(GapReason::kConflict));
}

TEST_CASE("one failed bucket of two is enough") {
  CoordinationRig rig;
  rig.give_layout();
  rig.answers_binds = false;
  rig.give_ops_of(1);
  rig.give_message(1);
  REQUIRE(rig.binds.size() == 2);
  rig.call([&] { rig.core.on_bind(rig.binds[1].ticket, {}); });
  CHECK(rig.gos.empty());
  rig.call([&] { rig.core.on_bind(rig.binds[0].ticket, {false, {ErrorCode::kTimeout, "silent", {}, {}, {}, {}}}); });
  CHECK(rig.gos.empty());
  // Silence says nothing about the op: both are ordered again, under numbers of their own.
  REQUIRE(rig.binds.size() == 4);
  CHECK(rig.binds[2].order.number > rig.binds[1].order.number);
  for (std::size_t i = 2; i < 4; ++i) rig.call([&] { rig.core.on_bind(rig.binds[i].ticket, {}); });
  REQUIRE(rig.gos.size() == 1);
  CHECK(rig.gos[0]->first_order == rig.binds[2].order.number);
}

TEST_CASE("an assembler that does not answer is asked again") {
  CoordinationRig rig;
  rig.give_layout();
  rig.answers_words = false;
  rig.give_ops_of(1);
  rig.give_message(1);
  REQUIRE(rig.words.size() == 2);
  rig.answer_words(rig.words[0]);
  CHECK(rig.words.size() == 2);
  rig.call([&] { rig.core.on_words(rig.words[1].ticket, std::nullopt); });
  CHECK(rig.gos.empty());
  REQUIRE(rig.words.size() == 4);
  rig.answer_words(rig.words[0]);  // of the first round
  rig.answer_words(rig.words[2]);
  CHECK(rig.binds.empty());
  rig.answer_words(rig.words[3]);
  CHECK(rig.steps_gone() == Steps{1});
}

TEST_CASE("no more steps are bound ahead than allowed") {
  CoordinationConfig config;
  config.bind_ahead_steps = 3;
  CoordinationRig rig(config);
  rig.applies = false;
  rig.give_layout();
  for (StepNumber step = 1; step <= 8; ++step) {
    rig.give_ops_of(step);
    rig.give_message(step);
  }
  CHECK(rig.steps_gone() == Steps{1, 2, 3});
  CHECK(rig.gap(GapReason::kApplyLag));
  CHECK(rig.core.verified() == 0);
  rig.apply(0, 1);
  rig.apply(1, 1);
  CHECK(rig.core.verified() == 0);  // the third shard is not there yet
  CHECK(rig.gos.size() == 3);
  rig.apply(2, 1);
  CHECK(rig.core.verified() == 1);
  CHECK(rig.steps_gone() == Steps{1, 2, 3, 4});
  CHECK(rig.core.durable() == 0);
}

TEST_CASE("step messages that wait are bounded") {
  CoordinationConfig config;
  config.pending_steps_max = 4;
  CoordinationRig rig(config);
  for (StepNumber step = 1; step <= 10; ++step) rig.give_message(step);
  CHECK(rig.binding("messages_pending") == 4);
  CHECK(rig.binding("messages_refused") == 6);
  CHECK(rig.core.training() == 10);
  rig.give_layout();
  for (StepNumber step = 1; step <= 10; ++step) rig.give_ops_of(step);
  CHECK(rig.core.verified() == 4);
  CHECK(contains(rig.gap(GapReason::kScalarsMissing), "step 5"));
  rig.give_message(5);  // it came again
  CHECK(rig.core.verified() == 5);
}

TEST_CASE("the state root is the SHA-256 of the shard digests in shard order, the base's included") {
  CoordinationConfig config;
  config.roots_kept = 4;
  CoordinationRig rig(config);
  rig.applies = false;
  const auto expected = [&](StepNumber step) {
    return to_hex(test::sha_of_all({rig.digest(0, step), rig.digest(1, step), rig.digest(2, step)}));
  };
  for (const ShardId shard : {2U, 0U, 1U}) rig.apply(shard, 0);
  CHECK(rig.core.roots(0, 9) == json{{"digests", {{{"step", 0}, {"root", expected(0)}}}}});
  rig.give_layout();
  for (StepNumber step = 1; step <= 6; ++step) {
    rig.give_ops_of(step);
    rig.give_message(step);
    for (const ShardId shard : {1U, 2U, 0U}) {
      CHECK(rig.core.roots(step, step)["digests"].empty());
      rig.apply(shard, step);
    }
    CHECK(rig.core.roots(step, step)["digests"][0]["root"] == expected(step));
  }
  const json kept = rig.core.roots(0, 100)["digests"];
  REQUIRE(kept.size() == 4);
  CHECK(kept[0]["step"] == 3);
  CHECK(rig.core.roots(4, 5)["digests"].size() == 2);
  CHECK(rig.core.roots(5, 4)["digests"].empty());
}

TEST_CASE("what the store cannot write is said, until it can") {
  CoordinationRig rig;
  rig.flushes = false;
  run_steps(rig, 2);
  rig.call([&] { rig.core.on_durable({1, 1, {false, {ErrorCode::kStoreFull, "full", {}, {}, {}, {}}}}); });
  CHECK(contains(rig.gap(GapReason::kStorageFull), "full"));
  rig.call([&] { rig.core.on_durable({1, 1, {false, {ErrorCode::kStoreWrite, "broken", {}, {}, {}, {}}}}); });
  CHECK(contains(rig.gap(GapReason::kStorageError), "broken"));
  CHECK_FALSE(rig.gap(GapReason::kStorageFull));
  CHECK(rig.core.durable() == 0);
  rig.make_durable(1, 2);
  CHECK_FALSE(rig.gap(GapReason::kStorageError));
  CHECK(rig.core.durable() == 0);
  CHECK_FALSE(rig.core.base_durable());
  rig.make_durable(0, 2);
  rig.make_durable(2, 1);
  CHECK(rig.core.base_durable());
  CHECK(rig.core.durable() == 1);
  rig.make_durable(9, 7);  // no such shard
  CHECK(rig.core.durable() == 1);
  rig.pass_ms(50);
  rig.pass_ms(2500);
  CHECK(rig.gap(GapReason::kFlushLag));
  rig.make_durable(2, 2);
  CHECK(rig.core.durable() == 2);
  CHECK_FALSE(rig.gap(GapReason::kFlushLag));
}

TEST_CASE("a shard that cannot apply stops the binding") {
  CoordinationRig rig;
  rig.applies = false;
  rig.give_layout();
  rig.give_ops_of(1);
  rig.give_message(1);
  Error error{ErrorCode::kGradientUnwired, "not on the wire", {}, {}, {}, {}};
  GapReason reason = GapReason::kUnwired;
  SUBCASE("unwired") {}
  SUBCASE("another error") {
    error.code = ErrorCode::kRecipeUnsupported;
    reason = GapReason::kUnsupported;
  }
  rig.call([&] { rig.core.on_applied({0, 1, {}, {false, error}}); });
  REQUIRE(rig.gap(reason));
  CHECK(contains(rig.gap(reason), "shard 0"));
  rig.apply(1, 1);
  rig.apply(2, 1);
  rig.apply(77, 1);  // no such shard
  rig.give_ops_of(2);
  rig.give_message(2);
  CHECK(rig.core.verified() == 0);
  CHECK(rig.steps_gone() == Steps{1});
}

TEST_CASE("a client that left or fell silent is said") {
  CoordinationRig rig;
  run_steps(rig, 1);
  ClientNotice notice;
  SUBCASE("closed") {
    notice.detached = true;
    notice.reason = "close";
    rig.call([&] { rig.core.on_notice(notice); });
    rig.pass_ms(120'000);
    CHECK_FALSE(rig.gap(GapReason::kClientDisabled));
    CHECK_FALSE(rig.gap(GapReason::kTrainerSilent));
  }
  SUBCASE("disabled itself") {
    notice.detached = true;
    notice.reason = "queue overflow";
    rig.call([&] { rig.core.on_notice(notice); });
    CHECK(contains(rig.gap(GapReason::kClientDisabled), "queue overflow"));
  }
  SUBCASE("silent") {
    rig.pass_ms(59'999);
    CHECK_FALSE(rig.gap(GapReason::kTrainerSilent));
    rig.pass_ms(2);
    CHECK(rig.gap(GapReason::kTrainerSilent));
    rig.give_message(2);
    CHECK_FALSE(rig.gap(GapReason::kTrainerSilent));
  }
}

TEST_CASE("state that nobody replays is named") {
  json body = test::three_shards(test::sgd());
  body["inventory"] = {{{"name", "model.a"}, {"class", "replayed"}, {"type", "Parameter"}},
                       {{"name", "loader.queue"}, {"class", "unknown"}, {"type", "X"}}};
  CoordinationRig rig({}, test::plan_of(body));
  CHECK(contains(rig.gap(GapReason::kUnknownState), "loader.queue"));
  CHECK_FALSE(contains(rig.gap(GapReason::kUnknownState), "model.a"));
}

TEST_CASE("ports that cannot show every byte are named from the start") {
  CoordinationConfig config;
  config.coverage_hole = "1 of 4 chunks";
  CoordinationRig rig(config);
  const auto gaps = rig.core.gaps();
  REQUIRE_FALSE(gaps.empty());
  CHECK(gaps.front().reason == GapReason::kCoverageHole);
  CHECK(gaps.front().evidence == "1 of 4 chunks");
  CoordinationRig whole;
  for (const Gap& gap : whole.core.gaps()) CHECK(gap.reason != GapReason::kCoverageHole);
}

TEST_CASE("a coordination that begins at a later version goes on from there") {
  CoordinationRig rig({}, nullptr, 7);
  rig.give_layout();
  for (ShardId shard = 0; shard < 3; ++shard) {
    rig.apply(shard, 7);
    rig.make_durable(shard, 7);
  }
  rig.give_message(5);
  rig.give_ops_of(8);
  rig.give_message(8);
  CHECK(rig.steps_gone() == Steps{8});
  CHECK(rig.core.roots(0, 9)["digests"].size() == 2);
  CHECK(rig.core.durable() == 8);
}

}  // namespace gradtap::actors
