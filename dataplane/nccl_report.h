// NcclReport: what was found in a capture of RoCE traffic, as JSON and as a verdict for people.
//
// Purpose: the answer to "does my mirror see what it must?". Flows in PSNs, operations in elements, ranges half-open.
// Pure; any thread. Failure behaviour: lists beyond a bound are cut, and the report says so.
#pragma once

#include <string>
#include <vector>

#include <nlohmann/json.hpp>

#include "dataplane/nccl_assembly.h"

namespace gradtap::dataplane {

struct NcclFindings {
  const NcclSurvey& survey;
  const NcclTrafficPlan& plan;
  const std::vector<AssembledOp>& ops;
  NcclAssemblyCounters counters;
  std::vector<std::string> dump_errors;
  bool buckets_given = false;
};

struct NcclVerdict {
  bool good = false;               // everything asked for is there
  std::vector<std::string> lines;  // what is wrong and what to do; the conclusion is the last
};

[[nodiscard]] nlohmann::json nccl_report_json(const NcclFindings& findings);
[[nodiscard]] NcclVerdict nccl_verdict(const NcclFindings& findings);

}  // namespace gradtap::dataplane
