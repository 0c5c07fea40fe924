// Admission: whether the job that attaches fits the nodes that are there (PROTOCOLS 7.2; docs/capacity.md).
//
// Pure; any thread. The sums are capacity's; here stands which numbers of an attach, of the configuration and of the
// members go into them. A job without elements, and what nobody knows, is never refused. Failure behaviour: none; the
// plan says whether it fits.
#pragma once

#include <cstdint>
#include <string>
#include <string_view>
#include <vector>

#include "actors/placement.h"
#include "capacity/plan.h"
#include "common/config.h"
#include "recovery/job_plan.h"

namespace gradtap::actors {

inline constexpr std::uint64_t kAdmissionSteps = 20;  // over which an undeclared step time is measured

struct AdmissionTerms {
  bool refuse = true;  // false: what does not fit is only named
  std::uint64_t full_every_steps = 64;
  std::uint64_t keep_fulls = 2;
  std::uint64_t publish_interval_steps = 1;
  std::uint32_t mirrored_edges = 0;  // 0: all
  std::string frame = "tcp-1500";
};
[[nodiscard]] AdmissionTerms admission_terms(const NodeConfig& config, const JobSection& job);

[[nodiscard]] capacity::JobShape job_shape(const recovery::JobPlan& plan, const AdmissionTerms& terms,
                                           std::uint32_t replicas, double step_time_s);
// What the fullest member owns of the state, by the owners of each shard.
[[nodiscard]] double fullest_share(const recovery::JobPlan& plan, const std::vector<std::vector<MemberIndex>>& owners);
// What members said of themselves ({name: rates}); what is not well formed is left out.
[[nodiscard]] std::vector<capacity::NodeShape> member_shapes(std::string_view answers_json);

}  // namespace gradtap::actors
