// Both looks at a capture's frames, for tests. One thread.
#pragma once

#include <string>
#include <vector>

#include "dataplane/nccl_assembly.h"

namespace gradtap::dataplane::testing {

struct CapturedFrame {
  std::vector<std::uint8_t> bytes;
  std::uint32_t wire_bytes = 0;
  std::uint64_t time_ns = 0;
};

struct NcclInspection {
  explicit NcclInspection(const std::vector<const CapturedFrame*>& frames, const std::vector<NcclBucket>& buckets,
                          bool completing_send) {
    for (const CapturedFrame* frame : frames) survey.frame(frame->bytes, frame->wire_bytes, frame->time_ns);
    survey.finish();
    plan = plan_nccl_traffic(survey, buckets, {.completing_send = completing_send, .layout = std::nullopt});
    NcclAssembly assembly(survey, plan);
    for (const CapturedFrame* frame : frames) assembly.frame(frame->bytes, frame->wire_bytes, frame->time_ns);
    ops = assembly.finish();
    counters = assembly.counters();
  }
  NcclSurvey survey;
  NcclTrafficPlan plan;
  std::vector<AssembledOp> ops;
  NcclAssemblyCounters counters;
};

}  // namespace gradtap::dataplane::testing
