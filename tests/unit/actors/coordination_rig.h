// CoordinationRig: a Coordination with everything round it played by the test: ops with known content, assemblers that
// answer from it, owners and keeper that answer when told to. Checks the four numbers after every call.
#pragma once

#include <algorithm>
#include <bit>
#include <cstdint>
#include <map>
#include <memory>
#include <optional>
#include <set>
#include <string>
#include <utility>
#include <variant>
#include <vector>

#include "actors/coordination.h"
#include "tests/unit/actors/job_fixture.h"

namespace gradtap::actors::test {

inline constexpr std::uint32_t kComm = 3;
inline constexpr std::int64_t kDelta = 1000;  // tag - sequence, to be learnt

// Never zero, different for every (tag, offset).
inline std::uint32_t word_at(std::uint32_t tag, std::uint64_t byte_offset) {
  return std::bit_cast<std::uint32_t>(1.0F + static_cast<float>((tag * 37ULL + byte_offset * 11) % 4093));
}

struct FakeOp {
  std::uint64_t bytes = 0;
  std::vector<Interval> missing;
  dataplane::OpSummary summary;
};

class CoordinationRig {
 public:
  explicit CoordinationRig(CoordinationConfig config = {}, JobPlanPtr job = nullptr, StepNumber version = 0,
                           ClusterShape shape = {})
      : plan(job ? std::move(job) : plan_of(three_shards(sgd()))),
        layout(layout_of(*plan, {{2}, {1, 0}})),
        core(plan, config, clock, version, {},
             shape.owners.empty() ? single_member(plan->shards.shards().size()) : std::move(shape)),
        bind_ahead(config.bind_ahead_steps) {
    shards = plan->shards.shards().size();
    pump();
  }

  JobPlanPtr plan;
  LayoutPtr layout;
  ManualClock clock;
  Coordination core;
  std::uint64_t bind_ahead;
  std::size_t shards = 0;

  // What the parties round it do by themselves.
  bool answers_words = true;
  bool answers_binds = true;
  bool answers_drains = true;
  bool applies = true;
  bool flushes = true;
  Outcome bind_outcome;

  std::map<std::uint32_t, FakeOp> ops;  // by tag
  std::uint32_t sizes_version = 0;
  std::vector<AskWords> words;
  std::vector<OrderBind> binds;  // all so far
  std::vector<std::uint64_t> drains;
  std::vector<GoPtr> gos;
  std::vector<LayoutId> layouts_asked;
  std::vector<StepNumber> messages_asked;
  std::vector<GoPtr> fetches;              // steps that peers are to be asked for
  std::vector<FetchShard> fetched_shards;  // by owners that are brought up or stuck
  std::vector<AskVersion> versions_asked;
  std::vector<ShardId> released;
  std::vector<ForgetBelow> forgotten;
  std::vector<std::string> notes;

  // -- the job -------------------------------------------------------------------------------------------------
  [[nodiscard]] std::uint64_t begin_of(StepNumber step) const { return 3 + 2 * (step - 1); }
  [[nodiscard]] std::uint32_t tag_of(StepNumber step, std::uint32_t bucket) const {
    return static_cast<std::uint32_t>(static_cast<std::int64_t>(begin_of(step) + bucket) + kDelta);
  }
  [[nodiscard]] Sha256 digest(ShardId shard, StepNumber step) const {
    return sha256(fmt::format("shard {} step {}", shard, step));
  }
  [[nodiscard]] std::shared_ptr<replica::StepMessage> message(StepNumber step) const {
    auto m = std::make_shared<replica::StepMessage>();
    m->seq = step;
    m->step = step;
    m->interval_begin = begin_of(step);
    m->interval_end = begin_of(step) + 2;
    m->layout_id = layout->id();
    m->micro_steps = 1;
    m->synced_backwards = 1;
    m->scalars = scalars_of(*plan, step);
    for (std::uint32_t b = 0; b < layout->bucket_count(); ++b) m->witness.push_back(witness(step, b, tag_of(step, b)));
    return m;
  }
  // What the trainer would have sampled if bucket b of this step were the op with this tag.
  [[nodiscard]] replica::WitnessBucket witness(StepNumber step, std::uint32_t bucket, std::uint32_t tag) const {
    replica::WitnessBucket entry;
    entry.bucket = bucket;
    for (std::uint64_t j = 0; j < 8; ++j)
      entry.bits[j] = word_at(tag, 4 * witness_at(layout->id(), step, bucket, j, layout->bucket_numel(bucket)));
    return entry;
  }

  // -- inputs --------------------------------------------------------------------------------------------------
  void give_layout() {
    call([&] { core.on_layout(layout); });
  }
  void give_message(const std::shared_ptr<replica::StepMessage>& m) {
    call([&] { core.on_step(m); });
  }
  void give_message(StepNumber step) { give_message(message(step)); }
  void give_op(std::uint32_t tag, std::uint64_t bytes, std::vector<Interval> missing = {}) {
    FakeOp& op = ops[tag];
    op.bytes = bytes;
    op.missing = std::move(missing);
    op.summary.op = {kComm, tag};
    op.summary.type = dataplane::CollectiveType::kAllReduce;
    op.summary.lengths = {bytes};
    op.summary.complete = op.missing.empty();
    give_summary(tag);
  }
  void give_summary(std::uint32_t tag) {
    ops[tag].summary.sizes_version = sizes_version;
    call([&] { core.on_ops(std::span(&ops[tag].summary, 1)); });
  }
  void give_op_of(StepNumber step, std::uint32_t bucket, std::vector<Interval> missing = {}) {
    give_op(tag_of(step, bucket), layout->bucket_bytes(bucket), std::move(missing));
  }
  void give_ops_of(StepNumber step) {
    for (std::uint32_t b = 0; b < layout->bucket_count(); ++b) give_op_of(step, b);
  }
  void pass_ms(std::uint64_t ms) {
    clock.advance_ms(ms);
    call([&] { core.tick(); });
  }
  // Past the grace period and both drains.
  void make_definitive() {
    pass_ms(250);
    pass_ms(50);
    pass_ms(50);
  }
  void answer_words(const AskWords& ask) {
    WordAnswer answer;
    const auto op = ops.find(ask.query.op.tag);
    const bool known = op != ops.end() && ask.query.op.comm == kComm && op->second.bytes == ask.query.op_bytes;
    if (known)
      answer.missing = op->second.missing;
    else
      answer.missing = {{0, ask.query.op_bytes}};
    for (const std::uint64_t offset : ask.query.byte_offsets) {
      const bool hole = std::any_of(answer.missing.begin(), answer.missing.end(), [&](const Interval& range) {
        return offset + 4 > range.begin && offset < range.end;
      });
      answer.words.push_back(hole ? std::nullopt : std::optional(word_at(ask.query.op.tag, offset)));
    }
    call([&] { core.on_words(ask.ticket, answer); });
  }
  void apply(ShardId shard, StepNumber step) {
    call([&] { core.on_applied({shard, step, digest(shard, step), {}}); });
  }
  void make_durable(ShardId shard, StepNumber step) {
    call([&] { core.on_durable({shard, step, {}}); });
  }
  void apply_everywhere(StepNumber step) {
    for (ShardId shard = 0; shard < shards; ++shard) apply(shard, step);
    if (flushes)
      for (ShardId shard = 0; shard < shards; ++shard) make_durable(shard, step);
  }

  // -- what it says --------------------------------------------------------------------------------------------
  [[nodiscard]] std::optional<Gap> gap(GapReason reason) const {
    for (const Gap& gap : core.gaps())
      if (gap.reason == reason) return gap;
    return std::nullopt;
  }
  [[nodiscard]] std::uint64_t number(const char* name) const { return core.status()[name].get<std::uint64_t>(); }
  [[nodiscard]] std::uint64_t binding(const char* name) const {
    return core.status()["binding"][name].get<std::uint64_t>();
  }
  [[nodiscard]] std::vector<StepNumber> steps_gone() const {
    std::vector<StepNumber> steps;
    for (const GoPtr& go : gos) steps.push_back(go->scalars.step);
    return steps;
  }

  template <class F>
  void call(F input) {
    input();
    check_numbers();
    pump();
  }

  void pump() {
    if (pumping_) return;  // the loop below takes what a nested call brought
    pumping_ = true;
    for (auto commands = core.take_commands(); !commands.empty(); commands = core.take_commands())
      for (Command& command : commands) std::visit([this](auto& c) { carry_out(c); }, command);
    pumping_ = false;
  }

 private:
  void carry_out(FetchShard& fetch) { fetched_shards.push_back(fetch); }
  void carry_out(AskVersion& ask) { versions_asked.push_back(ask); }
  void carry_out(ReleaseShard& release) { released.push_back(release.shard); }
  void carry_out(AskWords& ask) {
    words.push_back(ask);
    if (answers_words) answer_words(ask);
  }
  void carry_out(OrderBind& order) {
    binds.push_back(order);
    if (answers_binds) call([&] { core.on_bind(order.ticket, bind_outcome); });
  }
  void carry_out(AskDrain& drain) {
    drains.push_back(drain.ticket);
    if (answers_drains) call([&] { core.on_drained(drain.ticket); });
  }
  void carry_out(GiveGo& go) {
    gos.push_back(go.go);
    if (applies) apply_everywhere(go.go->scalars.step);
  }
  void carry_out(ForgetBelow& forget) { forgotten.push_back(forget); }
  void carry_out(AskLayout& ask) { layouts_asked.push_back(ask.layout); }
  void carry_out(AskMessages& ask) { messages_asked.push_back(ask.after); }
  void carry_out(FetchStep& fetch) { fetches.push_back(fetch.go); }
  void carry_out(PublishSizes& publish) { sizes_version = publish.sizes->version(); }
  void carry_out(NoteEvent& note) { notes.push_back(note.text); }

  void check_numbers() {
    const json status = core.status();
    const auto published = status["published"].get<std::uint64_t>();
    const auto durable = status["durable"].get<std::uint64_t>();
    const auto verified = status["verified"].get<std::uint64_t>();
    const auto training = status["training"].get<std::uint64_t>();
    const auto bound = status["bound"].get<std::uint64_t>();
    REQUIRE(published <= durable);
    REQUIRE(durable <= verified);
    REQUIRE(verified <= training);
    const auto applied_here = status["applied_here"].get<std::uint64_t>();
    const bool alone = core.shape().names.size() == 1;
    // Owners of a cluster may have a step from a peer while it is still being bound.
    if (alone) REQUIRE(applied_here <= bound);
    if (alone) REQUIRE(verified == applied_here);
    if (applied_here < bound) REQUIRE(bound - applied_here <= bind_ahead);
    REQUIRE(verified >= verified_before_);
    REQUIRE(durable >= durable_before_);
    verified_before_ = verified;
    durable_before_ = durable;
    // A difference is never without a reason; what keeps a peer back it says itself.
    const auto stages = [&](GapStage stage) {
      const auto gaps = core.gaps();
      return std::any_of(gaps.begin(), gaps.end(),
                         [&](const Gap& gap) { return gap_reason_stage(gap.reason) == stage; });
    };
    if (alone && verified < training) REQUIRE(stages(GapStage::kVerify));
  }

  bool pumping_ = false;
  std::uint64_t verified_before_ = 0;
  std::uint64_t durable_before_ = 0;
};

}  // namespace gradtap::actors::test
