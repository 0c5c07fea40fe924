#include "replica/shard.h"

#include <doctest/doctest.h>

#include "tests/unit/replica/trace_source.h"

namespace gradtap::replica {
namespace {

// Three parameters of 4 elements, the second not optimised, the third frozen; SGD with momentum.
Schema small_model() {
  Schema schema;
  for (const char* name : {"a", "b", "frozen"}) {
    ParameterSpec parameter;
    parameter.name = name;
    parameter.shape = {4};
    parameter.order = {0};
    parameter.numel = 4;
    parameter.group = 0;
    schema.parameters.push_back(parameter);
  }
  schema.parameters[1].group = -1;
  schema.parameters[2].requires_grad = false;
  schema.optimizer.kinds = {StateKind::kMomentumBuffer};
  GroupHyper hyper;
  hyper.lr.value = 0.5;
  hyper.momentum = 0.5;
  schema.optimizer.groups = {hyper};
  REQUIRE(validate(schema));
  return schema;
}

const float kStart[12] = {1, 2, 3, 4, 5, 6, 7, 8, 9, 10, 11, 12};
const float kGradient[12] = {1, 1, 1, 1, 2, 2, 2, 2, 3, 3, 3, 3};

Shard make_shard(const Schema& schema) {
  return *Shard::create(schema, ShardMap::cut(schema, kDefaultShardElements)->shards()[0], {});
}

Shard loaded() {
  Shard shard = make_shard(small_model());
  for (std::uint32_t p = 0; p < 3; ++p) REQUIRE(shard.load_range(p, 0, 0, as_bytes(kStart + std::size_t{4} * p, 4)));
  REQUIRE(shard.finish_baseline(0));
  return shard;
}

StepScalars scalars(StepNumber step) {
  StepScalars result;
  result.step = step;
  result.groups = small_model().optimizer.groups;
  result.param_state.assign(3, ParamState::kWire);
  return result;
}

std::vector<float> values(const Shard& shard, std::size_t kind) {
  return {shard.kind(kind).begin(), shard.kind(kind).end()};
}

}  // namespace

TEST_CASE("a baseline must be whole") {
  Shard shard = make_shard(small_model());
  const auto load = [&](std::uint32_t parameter, std::uint64_t begin, std::size_t kind, std::size_t count) {
    return shard.load_range(parameter, begin, kind, as_bytes(kStart, count)).has_value();
  };
  CHECK_FALSE(load(0, 1, 0, 4));
  CHECK_FALSE(load(0, 5, 0, 0));
  CHECK_FALSE(load(7, 0, 0, 1));
  CHECK_FALSE(load(0, 0, 2, 4));
  CHECK_FALSE(load(0, UINT64_MAX, 0, 2));
  CHECK_FALSE(shard.load_range(0, 0, 0, as_bytes(kStart, 4).first(15)));
  CHECK(load(0, 0, 0, 4));
  CHECK(load(0, 0, 0, 2));        // the same bytes again
  CHECK_FALSE(load(0, 1, 0, 2));  // other bytes
  CHECK(load(1, 0, 0, 4));
  CHECK(load(2, 0, 0, 3));
  CHECK_FALSE(shard.apply(scalars(1), {}));
  const Status hole = shard.finish_baseline(0);
  REQUIRE(!hole);
  CHECK(hole.error().code == ErrorCode::kStateIncomplete);
  CHECK_FALSE(shard.has_version());
  CHECK(shard.load_range(2, 3, 0, as_bytes(kStart + 3, 1)));
  SUBCASE("an optimizer state may be absent, but not in part") {
    CHECK(load(0, 0, 1, 3));
    CHECK_FALSE(shard.finish_baseline(0));
    CHECK(shard.load_range(0, 3, 1, as_bytes(kStart + 3, 1)));
    REQUIRE(shard.finish_baseline(17));
    CHECK(shard.piece_states()[0].present == 1);
    CHECK(shard.piece_states()[1].present == 0);
    CHECK(shard.version() == 17);
  }
  SUBCASE("after it nothing more is loaded") {
    REQUIRE(shard.finish_baseline(0));
    CHECK_FALSE(load(0, 0, 0, 4));
    CHECK_FALSE(shard.finish_baseline(0));
  }
}

TEST_CASE("a step moves what the optimizer owns, and only that") {
  Shard shard = loaded();
  REQUIRE(shard.apply(scalars(1), {contiguous_pieces(shard.range(), kGradient)}));
  CHECK(shard.version() == 1);
  CHECK(values(shard, 0) == std::vector<float>{0.5, 1.5, 2.5, 3.5, 5, 6, 7, 8, 9, 10, 11, 12});
  CHECK(values(shard, 1) == std::vector<float>{1, 1, 1, 1, 0, 0, 0, 0, 0, 0, 0, 0});
  CHECK(shard.piece_states()[0].present == 1);
  CHECK(shard.piece_states()[1].present == 0);
  // A frozen piece needs no gradient.
  std::vector<const float*> pieces = contiguous_pieces(shard.range(), kGradient);
  pieces[2] = nullptr;
  REQUIRE(shard.apply(scalars(2), {pieces}));
  CHECK(values(shard, 1)[0] == 1.5);
  CHECK(values(shard, 0)[0] == -0.25);
}

TEST_CASE("a step that is out of order, incomplete, stale or ambiguous changes nothing") {
  Shard shard = loaded();
  const Sha256 before = shard.digest().sha;
  const std::vector<const float*> pieces = contiguous_pieces(shard.range(), kGradient);
  const auto refused = [&](const StepScalars& step, const std::vector<const float*>& gradient) {
    const Status status = shard.apply(step, {gradient});
    REQUIRE(!status);
    CHECK(shard.version() == 0);
    CHECK(shard.digest().sha == before);
    return status.error().code;
  };
  CHECK(refused(scalars(0), pieces) == ErrorCode::kStepOutOfOrder);
  CHECK(refused(scalars(2), pieces) == ErrorCode::kStepOutOfOrder);
  std::vector<const float*> hole = pieces;
  hole[1] = nullptr;
  CHECK(refused(scalars(1), hole) == ErrorCode::kGradientIncomplete);
  hole.pop_back();
  CHECK(refused(scalars(1), hole) == ErrorCode::kGradientIncomplete);
  StepScalars step = scalars(1);
  step.param_state[0] = ParamState::kStale;
  CHECK(refused(step, pieces) == ErrorCode::kGradientUnwired);
  step = scalars(1);
  step.verdict = Verdict::kAmbiguous;
  CHECK(refused(step, pieces) == ErrorCode::kGradientUnwired);
  step = scalars(1);
  step.param_state.pop_back();
  CHECK(refused(step, pieces) == ErrorCode::kSchemaInvalid);
  step = scalars(1);
  step.groups.clear();
  CHECK(refused(step, pieces) == ErrorCode::kSchemaInvalid);
  step = scalars(1);
  step.groups[0].fused = true;
  CHECK(refused(step, pieces) == ErrorCode::kRecipeUnsupported);
  REQUIRE(shard.apply(scalars(1), {pieces}));
  CHECK_FALSE(shard.apply(scalars(1), {pieces}));  // never twice
}

TEST_CASE("a skipped step moves the version and nothing else, without a gradient") {
  Shard shard = loaded();
  const Sha256 before = shard.digest().sha;
  StepScalars step = scalars(1);
  step.verdict = Verdict::kSkipped;
  REQUIRE(shard.apply(step, {}));
  CHECK(shard.version() == 1);
  CHECK(shard.digest().sha == before);
}

TEST_CASE("a parameter without a gradient stays, and its state stays absent (A1)") {
  Shard shard = loaded();
  StepScalars step = scalars(1);
  step.param_state[0] = ParamState::kNone;
  std::vector<const float*> pieces = contiguous_pieces(shard.range(), kGradient);
  pieces[0] = nullptr;
  REQUIRE(shard.apply(step, {pieces}));
  CHECK(values(shard, 0)[0] == 1);
  CHECK(shard.piece_states()[0].present == 0);
  CHECK_FALSE(shard.kind_present(1));
}

TEST_CASE("absent is not zero: the first step makes another momentum of it (C1)") {
  Shard absent = loaded();
  Shard zero = make_shard(small_model());
  const float zeros[4] = {};
  for (std::uint32_t p = 0; p < 3; ++p) REQUIRE(zero.load_range(p, 0, 0, as_bytes(kStart + std::size_t{4} * p, 4)));
  REQUIRE(zero.load_range(0, 0, 1, as_bytes(zeros, 4)));
  REQUIRE(zero.finish_baseline(0));
  CHECK(values(absent, 1) == values(zero, 1));
  StepScalars damped = scalars(1);
  damped.groups[0].dampening = 0.75;
  REQUIRE(absent.apply(damped, {contiguous_pieces(absent.range(), kGradient)}));
  REQUIRE(zero.apply(damped, {contiguous_pieces(zero.range(), kGradient)}));
  CHECK(values(absent, 1)[0] == 1);
  CHECK(values(zero, 1)[0] == 0.25);
}

TEST_CASE("a full version is given and taken; replay from there gives the same bytes (G7)") {
  Shard shard = loaded();
  REQUIRE(shard.apply(scalars(1), {contiguous_pieces(shard.range(), kGradient)}));
  std::vector<std::vector<std::uint8_t>> stored;
  for (std::size_t k = 0; k < shard.kind_count(); ++k)
    stored.emplace_back(shard.full_kind(k).begin(), shard.full_kind(k).end());
  const std::vector<PieceState> states(shard.piece_states().begin(), shard.piece_states().end());
  const Sha256 digest = shard.digest().sha;

  Shard other = make_shard(small_model());
  const std::vector<ByteSpan> kinds(stored.begin(), stored.end());
  REQUIRE(other.restore(1, states, kinds));
  CHECK(other.version() == 1);
  CHECK(other.digest().sha == digest);
  REQUIRE(shard.apply(scalars(2), {contiguous_pieces(shard.range(), kGradient)}));
  REQUIRE(other.apply(scalars(2), {contiguous_pieces(other.range(), kGradient)}));
  CHECK(other.digest().sha == shard.digest().sha);

  Shard bad = make_shard(small_model());
  CHECK_FALSE(bad.restore(1, states, std::vector<ByteSpan>{kinds[0]}));
  CHECK_FALSE(bad.restore(1, states, std::vector<ByteSpan>{kinds[0], kinds[1].first(4)}));
  CHECK_FALSE(bad.restore(1, states, std::vector<ByteSpan>{kinds[0], {}}));  // present, but not stored
  std::vector<PieceState> impossible = states;
  impossible[0].present = 2;
  CHECK_FALSE(bad.restore(1, impossible, kinds));
  CHECK_FALSE(bad.has_version());
  // A kind that is nowhere present need not be stored.
  CHECK(bad.restore(1, std::vector<PieceState>(3), std::vector<ByteSpan>{kinds[0], {}}));
}

TEST_CASE("one flipped bit anywhere changes the shard's digest") {
  Shard shard = loaded();
  REQUIRE(shard.apply(scalars(1), {contiguous_pieces(shard.range(), kGradient)}));
  const Sha256 digest = shard.digest().sha;
  const std::vector<PieceState> states(shard.piece_states().begin(), shard.piece_states().end());
  for (std::size_t byte = 0; byte < 96; ++byte) {
    std::vector<std::vector<std::uint8_t>> stored;
    for (std::size_t k = 0; k < 2; ++k) stored.emplace_back(shard.full_kind(k).begin(), shard.full_kind(k).end());
    const bool counted = byte < 48 || byte < 64;  // momentum of b and of frozen is absent
    stored[byte / 48][byte % 48] ^= 1;
    Shard other = make_shard(small_model());
    REQUIRE(other.restore(1, states, std::vector<ByteSpan>(stored.begin(), stored.end())));
    CHECK((other.digest().sha != digest) == counted);
  }
}

}  // namespace gradtap::replica
