// Small jobs for the tests of this floor: those of tests/unit/recovery, layouts and witness positions.
#pragma once

#include <cstdint>
#include <memory>
#include <vector>

#include <doctest/doctest.h>

#include "actors/messages.h"
#include "tests/unit/recovery/job_fixture.h"

namespace gradtap::actors::test {

using namespace recovery::test;

inline LayoutPtr layout_of(const JobPlan& plan, std::vector<std::vector<std::uint32_t>> buckets) {
  std::vector<std::vector<replica::LayoutEntry>> entries;
  for (const auto& bucket : buckets) {
    entries.emplace_back();
    for (const std::uint32_t p : bucket) entries.back().push_back({p, plan.schema.parameters[p].numel});
  }
  auto layout = replica::Layout::create(std::move(entries), plan.schema);
  if (!layout) FAIL(layout.error().text());
  return std::make_shared<const replica::Layout>(std::move(*layout));
}

// docs/side-channel.md, "Step message", written down a second time.
inline std::uint64_t witness_at(const LayoutId& layout, StepNumber step, std::uint64_t bucket, std::uint64_t j,
                                std::uint64_t numel) {
  std::uint64_t salt = 0;
  for (int i = 0; i < 8; ++i) salt = salt << 8 | layout[static_cast<std::size_t>(i)];
  std::uint64_t x = salt + (step * 64 + bucket * 8 + j + 1) * 0x9E3779B97F4A7C15ULL;
  x = (x ^ x >> 30) * 0xBF58476D1CE4E5B9ULL;
  x = (x ^ x >> 27) * 0x94D049BB133111EBULL;
  x = x ^ x >> 31;
  return x % numel;
}

}  // namespace gradtap::actors::test
