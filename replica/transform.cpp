#include "replica/transform.h"

#include <algorithm>
#include <cmath>

#include <fmt/format.h>

namespace gradtap::replica {
namespace {

bool concerns(const Transform& transform, std::uint32_t parameter) {
  return transform.all || std::binary_search(transform.parameters.begin(), transform.parameters.end(), parameter);
}

}  // namespace

float apply_op(const TransformOp& op, float value) {
  if (op.kind == TransformOp::Kind::kMul) return value * op.factor;
  const float raised = value < op.lower ? op.lower : value;
  return op.upper < raised ? op.upper : raised;
}

Result<TransformChain> TransformChain::create(std::vector<Transform> transforms) {
  for (std::size_t i = 0; i < transforms.size(); ++i) {
    Transform& transform = transforms[i];
    if (transform.op.kind == TransformOp::Kind::kClamp &&
        (std::isnan(transform.op.lower) || std::isnan(transform.op.upper)))
      return fail(ErrorCode::kTransformInvalid, "a clamp has a bound that is not a number",
                  fmt::format("transforms[{}]", i), "bounds that are numbers");
    if (!std::is_sorted(transform.parameters.begin(), transform.parameters.end()) ||
        std::adjacent_find(transform.parameters.begin(), transform.parameters.end()) != transform.parameters.end())
      return fail(ErrorCode::kTransformInvalid, "a transform's parameters are not sorted and unique",
                  fmt::format("transforms[{}].scope", i));
  }
  TransformChain chain;
  chain.transforms_ = std::move(transforms);
  return chain;
}

float TransformChain::apply(float value, std::uint32_t parameter) const {
  for (const Transform& transform : transforms_)
    if (concerns(transform, parameter)) value = apply_op(transform.op, value);
  return value;
}

std::vector<TransformOp> TransformChain::for_parameter(std::uint32_t parameter) const {
  std::vector<TransformOp> ops;
  for (const Transform& transform : transforms_)
    if (concerns(transform, parameter)) ops.push_back(transform.op);
  return ops;
}

}  // namespace gradtap::replica
