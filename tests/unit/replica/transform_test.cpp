#include "replica/transform.h"

#include <bit>
#include <cmath>
#include <limits>

#include <doctest/doctest.h>

#include "replica/kernels.h"

namespace gradtap::replica {
namespace {

constexpr float kNaN = std::numeric_limits<float>::quiet_NaN();
constexpr float kInfinity = std::numeric_limits<float>::infinity();

std::uint32_t bits(float value) {
  return std::bit_cast<std::uint32_t>(value);
}

Transform mul(float factor) {
  Transform transform;
  transform.op.factor = factor;
  return transform;
}

Transform clamp(float lower, float upper) {
  Transform transform;
  transform.op = {TransformOp::Kind::kClamp, 1, lower, upper};
  return transform;
}

}  // namespace

TEST_CASE("clamp is torch's: a NaN passes, zeros keep their sign, crossed bounds give the upper one") {
  const TransformOp op = clamp(-1, 1).op;
  CHECK(apply_op(op, 2) == 1);
  CHECK(apply_op(op, -2) == -1);
  CHECK(apply_op(op, 0.5F) == 0.5F);
  CHECK(std::isnan(apply_op(op, kNaN)));
  CHECK(apply_op(op, kInfinity) == 1);
  CHECK(bits(apply_op(clamp(0.0F, 1).op, -0.0F)) == bits(-0.0F));
  CHECK(bits(apply_op(clamp(-1, -0.0F).op, 0.0F)) == bits(0.0F));
  CHECK(apply_op(clamp(2, 1).op, 0) == 1);
  CHECK(apply_op(clamp(2, 1).op, 5) == 1);
}

TEST_CASE("a chain applies in order and only where it is meant (A19)") {
  Transform some = clamp(-1, 1);
  some.all = false;
  some.parameters = {1, 3};
  const auto chain = TransformChain::create({mul(3), some, mul(0.5F)});
  REQUIRE(chain);
  CHECK(chain->apply(1, 0) == 1.5F);
  CHECK(chain->apply(1, 1) == 0.5F);
  CHECK(chain->apply(1, 3) == 0.5F);
  CHECK(chain->for_parameter(2).size() == 2);
  CHECK(chain->for_parameter(3).size() == 3);
  // One rounding to float32 for each multiplication.
  CHECK(TransformChain::create({mul(0.1F), mul(3)})->apply(1, 0) == 0.1F * 3);
}

TEST_CASE("a chain that cannot be is refused") {
  CHECK_FALSE(TransformChain::create({clamp(kNaN, 1)}));
  CHECK_FALSE(TransformChain::create({clamp(0, kNaN)}));
  Transform twice = mul(2);
  twice.all = false;
  twice.parameters = {1, 1};
  const auto chain = TransformChain::create({mul(1), twice});
  REQUIRE(!chain);
  CHECK(chain.error().code == ErrorCode::kTransformInvalid);
  CHECK(chain.error().where == "transforms[1].scope");
}

TEST_CASE("the vector form equals the scalar form in both builds, and leaves its input alone") {
  std::vector<float> in = {0.0F, -0.0F, 1e-45F, -1e-40F, 0.3F, -0.3F, 2, -2, kInfinity, -kInfinity, 1e38F, -1e38F};
  while (in.size() < 67) in.push_back(in[in.size() % 12] * 1.7F);
  const std::vector<float> before = in;
  const std::vector<Transform> chain = {mul(1.1F), clamp(-0.3F, 0.3F), clamp(-kInfinity, 0.25F), mul(-0.0F)};
  for (std::size_t length = 1; length <= chain.size(); ++length) {
    std::vector<KernelOp> ops;
    for (std::size_t i = 0; i < length; ++i)
      ops.push_back(
          {chain[i].op.kind == TransformOp::Kind::kClamp, chain[i].op.factor, chain[i].op.lower, chain[i].op.upper});
    for (const Kernels* kernels : {&generic_kernels(), avx2_kernels()}) {
      if (kernels == nullptr) continue;
      std::vector<float> out(in.size());
      kernels->transform(ops.data(), ops.size(), in.data(), out.data(), in.size());
      for (std::size_t i = 0; i < in.size(); ++i) {
        float expected = in[i];
        for (std::size_t k = 0; k < length; ++k) expected = apply_op(chain[k].op, expected);
        CHECK(bits(out[i]) == bits(expected));
      }
    }
  }
  CHECK(std::equal(in.begin(), in.end(), before.begin(), [](float a, float b) { return bits(a) == bits(b); }));
}

}  // namespace gradtap::replica
