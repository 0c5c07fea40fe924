// The two builds of the kernels give the same bits; cutting a tensor anywhere gives the same bits; and the digest does
// not depend on how many arrays are digested at once.
#include <bit>
#include <cstring>

#include <doctest/doctest.h>

#include "common/random.h"
#include "replica/digest.h"
#include "replica/recipe.h"

namespace gradtap::replica {
namespace {

// Any finite bit pattern of moderate size, zeros and subnormals among them.
float wild(SeededRandom& random) {
  const std::uint64_t r = random.next();
  if (r % 16 == 0) return (r & 32) != 0 ? 0.0F : -0.0F;
  if (r % 16 == 1) return std::bit_cast<float>(static_cast<std::uint32_t>(r >> 40));  // subnormal
  const auto mantissa_and_sign = static_cast<std::uint32_t>(r >> 32) & 0x807fffffU;
  const auto exponent = static_cast<std::uint32_t>(100 + r % 48);
  return std::bit_cast<float>(mantissa_and_sign | exponent << 23);
}

std::vector<float> wild_array(SeededRandom& random, std::size_t count, bool positive = false) {
  std::vector<float> values(count);
  for (float& value : values) {
    value = wild(random);
    if (positive) value = std::bit_cast<float>(std::bit_cast<std::uint32_t>(value) & 0x7fffffffU);
  }
  return values;
}

struct State {
  std::vector<float> param, s0, s1, s2;
  friend bool operator==(const State& a, const State& b) {
    const auto same = [](const std::vector<float>& x, const std::vector<float>& y) {
      return x.size() == y.size() && (x.empty() || std::memcmp(x.data(), y.data(), x.size() * 4) == 0);
    };
    return same(a.param, b.param) && same(a.s0, b.s0) && same(a.s1, b.s1) && same(a.s2, b.s2);
  }
};

GroupHyper random_hyper(SeededRandom& random, OptimizerClass type) {
  const auto unit = [&] { return static_cast<double>(random.next() >> 11) / 9007199254740992.0; };
  GroupHyper hyper;
  hyper.lr.value = unit() * 0.1;
  hyper.lr.f32_tensor = random.below(4) == 0;
  if (hyper.lr.f32_tensor) hyper.lr.value = static_cast<double>(static_cast<float>(hyper.lr.value));
  hyper.beta1 = unit();
  hyper.beta2 = 0.5 + unit() / 2.1;
  hyper.eps = 1e-8;
  hyper.weight_decay = random.below(2) == 0 ? 0 : unit() * 0.1;
  hyper.maximize = random.below(2) == 0;
  hyper.amsgrad = type != OptimizerClass::kSgd && random.below(2) == 0;
  if (type == OptimizerClass::kSgd) {
    hyper.momentum = random.below(3) == 0 ? 0 : unit();
    hyper.nesterov = hyper.momentum != 0 && random.below(2) == 0;
    hyper.dampening = hyper.nesterov ? 0 : unit();
  }
  return hyper;
}

TensorRange range_of(State& state, std::uint64_t begin, std::uint64_t count) {
  TensorRange range;
  range.param = state.param.data() + begin;
  range.momentum = state.s0.data() + begin;
  range.exp_avg = state.s0.data() + begin;
  range.exp_avg_sq = state.s1.data() + begin;
  range.max_exp_avg_sq = state.s2.data() + begin;
  range.begin = begin;
  range.count = count;
  range.tensor_numel = state.param.size();
  return range;
}

}  // namespace

TEST_CASE("both builds and every cut of a tensor give the same bits") {
  if (avx2_kernels() == nullptr) MESSAGE("SKIPPED comparison with AVX2 kernels: this CPU has none");
  SeededRandom random(20240611);
  for (int round = 0; round < 600; ++round) {
    CAPTURE(round);
    const auto type = static_cast<OptimizerClass>(random.below(3));
    const Recipe recipe = all_recipes()[random.below(8)];
    const GroupHyper hyper = random_hyper(random, type);
    const std::size_t n = 1 + random.below(round % 20 == 0 ? 5000 : 70);
    const State start{wild_array(random, n), wild_array(random, n), wild_array(random, n, true),
                      wild_array(random, n, true)};
    const std::vector<float> gradient = wild_array(random, n);
    const std::vector<float> kept = gradient;
    const std::uint64_t counter = 1 + random.below(1000);
    const bool absent = random.below(4) == 0;
    std::vector<TransformOp> transforms(random.below(3));
    for (TransformOp& op : transforms) {
      op.kind = random.below(2) == 0 ? TransformOp::Kind::kMul : TransformOp::Kind::kClamp;
      op.factor = wild(random);
      op.lower = -0.5F;
      op.upper = 0.25F;
    }

    State generic = start, vector = start, cut = start;
    apply_range({type, recipe, &generic_kernels()}, hyper, counter, absent, transforms, range_of(generic, 0, n),
                gradient.data());
    apply_range({type, recipe, &best_kernels()}, hyper, counter, absent, transforms, range_of(vector, 0, n),
                gradient.data());
    for (std::uint64_t at = 0; at < n;) {
      const std::uint64_t count = std::min<std::uint64_t>(n - at, 1 + random.below(n));
      apply_range({type, recipe, &best_kernels()}, hyper, counter, absent, transforms, range_of(cut, at, count),
                  gradient.data() + at);
      at += count;
    }
    CHECK(generic == vector);
    CHECK(generic == cut);
    CHECK(std::memcmp(kept.data(), gradient.data(), n * 4) == 0);
  }
}

TEST_CASE("the digest equals its definition, for any length, number of arrays and build") {
  SeededRandom random(7);
  for (const std::uint64_t count : {std::uint64_t{1}, std::uint64_t{2}, std::uint64_t{5}, std::uint64_t{1000},
                                    kBlockElements - 1, kBlockElements}) {
    std::vector<std::vector<float>> arrays;
    std::vector<BlockDigest> expected;
    for (int a = 0; a < 4; ++a) {
      std::vector<float> words(count);
      BlockDigest sum{};
      for (std::uint64_t j = 0; j < count; ++j) {
        const auto word = static_cast<std::uint32_t>(random.next());
        words[j] = std::bit_cast<float>(word);
        for (std::uint64_t k = 0; k < 2; ++k)
          sum[k] += word * (splitmix64_mix((2 * j + k + 1) * 0x9E3779B97F4A7C15ULL) | 1);
      }
      arrays.push_back(words);
      expected.push_back(sum);
    }
    for (const Kernels* kernels : {&generic_kernels(), &best_kernels()})
      for (std::size_t streams = 1; streams <= 4; ++streams) {
        std::vector<const float*> pointers;
        for (std::size_t s = 0; s < streams; ++s) pointers.push_back(arrays[s].data());
        std::vector<BlockDigest> found(streams);
        block_digests(*kernels, pointers, count, found);
        for (std::size_t s = 0; s < streams; ++s) CHECK(found[s] == expected[s]);
      }
    CHECK(block_digest(best_kernels(), arrays[3].data(), count) == expected[3]);
  }
}

}  // namespace gradtap::replica
