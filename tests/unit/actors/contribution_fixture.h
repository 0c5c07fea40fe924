// Contributions as an assembler cuts them out of a bucket, with content that is a function of step and place.
#pragma once

#include <memory>

#include "dataplane/op_bytes.h"
#include "tests/unit/actors/job_fixture.h"

namespace gradtap::actors::test {

struct Contributor {
  JobPlanPtr plan;
  LayoutPtr layout;
  std::shared_ptr<dataplane::OpBufferPool> pool = dataplane::OpBufferPool::create(std::size_t{1} << 28);

  // `content`: the step whose gradient the bytes are; 0: that of `step`.
  [[nodiscard]] ContributionPtr make(StepNumber step, std::uint32_t bucket, ShardId shard, LineageId lineage = 1,
                                     std::uint64_t order = 1, StepNumber content = 0) const {
    const std::uint64_t numel = layout->bucket_numel(bucket);
    auto buffer = pool->acquire(numel * 4);
    REQUIRE(buffer);
    auto* const values = reinterpret_cast<float*>(buffer.data());
    std::uint64_t at = 0;
    for (const replica::LayoutEntry& entry : layout->bucket(bucket))
      for (std::uint64_t i = 0; i < entry.numel; ++i)
        values[at++] = gradient_at(content == 0 ? step : content, entry.parameter, i);
    auto contribution = std::make_shared<Contribution>();
    contribution->step = step;
    contribution->bucket = bucket;
    contribution->shard = shard;
    contribution->lineage = lineage;
    contribution->order = order;
    contribution->bytes = std::make_shared<const dataplane::OpBytes>(std::move(buffer), numel * 4);
    for (const replica::Slice& slice : plan->shards.slices(*layout, bucket))
      if (slice.shard == shard) contribution->slices.push_back(slice);
    return contribution;
  }
};

// A shard's gradient as a log record holds it.
[[nodiscard]] inline std::vector<std::uint8_t> gradient_bytes(const JobPlan& plan, ShardId shard, StepNumber step) {
  const auto values = shard_gradient(plan, shard, step);
  const auto* const bytes = reinterpret_cast<const std::uint8_t*>(values.data());
  return {bytes, bytes + values.size() * sizeof(float)};
}

}  // namespace gradtap::actors::test
