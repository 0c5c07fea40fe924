// One optimizer step over 50 M elements, against a triad over the same memory: the apply stage should be memory bound.
#include <vector>

#include <benchmark/benchmark.h>

#include "replica/digest.h"
#include "replica/shard.h"

namespace {

using namespace gradtap;
using namespace gradtap::replica;

constexpr std::uint64_t kElements = 50'000'000;

Schema model(OptimizerClass type) {
  Schema schema;
  schema.parameters.push_back({"w", {kElements}, {0}, kElements, true, 0, 0, {}, std::nullopt});
  schema.optimizer.type = type;
  if (type == OptimizerClass::kSgd)
    schema.optimizer.kinds = {StateKind::kMomentumBuffer};
  else
    schema.optimizer.kinds = {StateKind::kExpAvg, StateKind::kExpAvgSq};
  GroupHyper hyper;
  hyper.lr.value = 1e-3;
  hyper.beta1 = 0.9;
  hyper.beta2 = 0.999;
  hyper.eps = 1e-8;
  hyper.weight_decay = 0.01;
  hyper.momentum = type == OptimizerClass::kSgd ? 0.9 : 0;
  schema.optimizer.groups = {hyper};
  return schema;
}

Shard baseline(const Schema& schema, const ShardMap& map) {
  Shard shard = *Shard::create(schema, map.shards()[0], {true, true, false});
  const std::vector<float> zeros(1 << 16, 0.5F);
  for (std::uint64_t at = 0; at < kElements; at += zeros.size()) {
    const std::uint64_t count = std::min<std::uint64_t>(zeros.size(), kElements - at);
    if (!shard.load_range(0, at, 0, {reinterpret_cast<const std::uint8_t*>(zeros.data()), count * 4})) std::abort();
  }
  if (!shard.finish_baseline(0)) std::abort();
  return shard;
}

void apply(benchmark::State& state, OptimizerClass type, bool clip) {
  const Schema schema = model(type);
  const ShardMap map = *ShardMap::cut(schema, kElements);
  Shard shard = baseline(schema, map);
  const std::vector<float> gradient(kElements, 1e-3F);
  const std::vector<const float*> pieces = contiguous_pieces(map.shards()[0], gradient.data());
  StepScalars scalars;
  scalars.groups = schema.optimizer.groups;
  scalars.param_state = {ParamState::kWire};
  if (clip) {
    Transform mul;
    mul.op.factor = 0.5F;
    scalars.transforms = *TransformChain::create({mul});
  }
  scalars.step = 1;
  if (!shard.apply(scalars, {pieces})) std::abort();  // touches the optimizer state for the first time
  for (auto _ : state) {
    scalars.step = shard.version() + 1;
    if (!shard.apply(scalars, {pieces})) std::abort();
  }
  state.SetItemsProcessed(static_cast<std::int64_t>(state.iterations()) * static_cast<std::int64_t>(kElements));
}

void triad(benchmark::State& state) {
  std::vector<float> a(kElements, 0), b(kElements, 1), c(kElements, 2);
  for (auto _ : state) {
    for (std::uint64_t i = 0; i < kElements; ++i) a[i] = b[i] + 3.0F * c[i];
    benchmark::ClobberMemory();
  }
  state.SetItemsProcessed(static_cast<std::int64_t>(state.iterations()) * static_cast<std::int64_t>(kElements));
}

void digest(benchmark::State& state) {
  const Schema schema = model(OptimizerClass::kAdamW);
  const ShardMap map = *ShardMap::cut(schema, kElements);
  Shard shard = baseline(schema, map);
  std::vector<PieceState> present = {{1, 3}};
  const std::vector<ByteSpan> kinds = {shard.full_kind(0), shard.full_kind(0), shard.full_kind(0)};
  Shard full = *Shard::create(schema, map.shards()[0], {true, true, false});
  if (!full.restore(1, present, kinds)) std::abort();
  for (auto _ : state) benchmark::DoNotOptimize(full.digest());
  state.SetItemsProcessed(static_cast<std::int64_t>(state.iterations()) * static_cast<std::int64_t>(kElements));
}

BENCHMARK(triad)->Unit(benchmark::kMillisecond);
BENCHMARK_CAPTURE(apply, adamw, OptimizerClass::kAdamW, false)->Unit(benchmark::kMillisecond);
BENCHMARK_CAPTURE(apply, adamw_clipped, OptimizerClass::kAdamW, true)->Unit(benchmark::kMillisecond);
BENCHMARK_CAPTURE(apply, sgd, OptimizerClass::kSgd, false)->Unit(benchmark::kMillisecond);
BENCHMARK(digest)->Unit(benchmark::kMillisecond);

}  // namespace
