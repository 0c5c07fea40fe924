// The side channel's admission: asking the members what they have, at attach and once the step time is known.
#include <algorithm>
#include <utility>

#include "actors/side_channel_state.h"

namespace gradtap::actors::side {

namespace {

constexpr std::chrono::milliseconds kMembersDeadline{1500};

using Shapes = std::vector<capacity::NodeShape>;

// Only members that may own shards count: the others own nothing of a new job.
bool may_own(const SideChannelState& state, const std::string& name) {
  if (!state.options.cluster) return true;
  const auto member = state.options.cluster->index_of(name);
  return member && state.options.cluster->member(*member).state == schema::MemberState::kIn;
}

std::uint32_t owning_members(const ClusterState& cluster) {
  std::uint32_t count = 0;
  for (MemberIndex member = 0; member < cluster.size(); ++member)
    if (cluster.member(member).state == schema::MemberState::kIn) ++count;
  return std::max(1U, count);
}

// This node and every live member that says what it has.
void ask_members(SideChannelPointer self, std::function<void(const Shapes&)> then) {
  const SideChannelState& state = self->state;
  Shapes own;
  if (auto shape = state.options.admission.own(); may_own(state, shape.name)) own.push_back(std::move(shape));
  if (!state.wiring || !state.wiring->membership) return then(own);
  self->request(state.wiring->membership, kMembersDeadline, ask_atom_v, std::string("capacity"), std::string())
      .then(
          [self, own, then](const HttpAnswer& answer) {
            Shapes all = own;
            for (capacity::NodeShape& node : member_shapes(answer.body))
              if (may_own(self->state, node.name)) all.push_back(std::move(node));
            then(all);
          },
          [own, then](const caf::error&) { then(own); });
}

// Judges by the weakest of the nodes. The verdict is kept for status.
capacity::CapacityPlan judge(SideChannelState& state, const Shapes& nodes) {
  Admission& admission = state.admission;
  auto plan = capacity::plan_capacity(admission.job, capacity::weakest(nodes), admission.nodes, admission.share);
  if (!plan) {  // an attach that the model has no sums for is not refused by it
    admission.verdict = plan.error().text();
    return {};
  }
  admission.verdict = capacity::verdict(*plan);
  admission.fits = plan->fits;
  return std::move(*plan);
}

}  // namespace

void admit(SideChannelPointer self, const JobPlan& plan, std::uint64_t step_time_ms,
           std::function<void(const Status&)> then) {
  SideChannelState& state = self->state;
  const AdmissionOptions& options = state.options.admission;
  if (!options.own || plan.schema.elements() == 0) return then({});
  const std::uint64_t up_ms = (state.options.clock->monotonic_ns() - state.started_ns) / 1'000'000;
  if (step_time_ms > 0 && up_ms < options.rates_wait_ms && options.measured && !options.measured())
    return then(fail(ErrorCode::kNodeBusy, "the node is measuring its rates", {}, {}, {}, "try again"));
  state.admission = Admission{};
  Admission& admission = state.admission;
  const ClusterState* cluster = state.options.cluster.get();
  const auto replicas = cluster == nullptr ? 1U : static_cast<std::uint32_t>(cluster->replicas());
  admission.nodes = cluster == nullptr ? 1U : owning_members(*cluster);
  admission.job = job_shape(plan, options.terms, replicas, static_cast<double>(step_time_ms) / 1000);
  admission.share = cluster == nullptr ? 1.0 : fullest_share(plan, cluster->owners(plan.shards.shards().size()));
  admission.measuring = step_time_ms == 0;
  admission.asking = true;
  ask_members(self, [self, then = std::move(then)](const Shapes& nodes) {
    SideChannelState& now = self->state;
    now.admission.asking = false;
    const capacity::CapacityPlan sums = judge(now, nodes);
    if (sums.fits) return then({});
    if (!now.options.admission.terms.refuse) {
      note(self, LogLevel::kWarn, "the job does not fit, and is admitted all the same",
           {{"error", capacity::refusal(sums).text()}});
      return then({});
    }
    now.admission.refusal = capacity::refusal(sums);
    then(std::unexpected(*now.admission.refusal));
  });
}

void count_step(SideChannelPointer self, StepNumber step) {
  Admission& admission = self->state.admission;
  if (!admission.measuring) return;
  const std::uint64_t now_ns = self->state.options.clock->monotonic_ns();
  if (!admission.first_step) {
    admission.first_step = step;
    admission.first_ns = now_ns;
    return;
  }
  if (step < *admission.first_step + kAdmissionSteps) return;
  admission.measuring = false;
  admission.job.step_time_s =
      static_cast<double>(now_ns - admission.first_ns) / 1e9 / static_cast<double>(step - *admission.first_step);
  ask_members(self, [self](const Shapes& nodes) {
    const capacity::CapacityPlan sums = judge(self->state, nodes);
    const auto step_ms = static_cast<std::uint64_t>(self->state.admission.job.step_time_s * 1000);
    if (sums.fits)
      note(self, LogLevel::kInfo, "capacity confirmed at the measured step time",
           {{"verdict", self->state.admission.verdict}, {"step_ms", step_ms}});
    else
      note(self, LogLevel::kWarn, "the job asks for more than the nodes have at the measured step time",
           {{"error", capacity::refusal(sums).text()}, {"step_ms", step_ms}});
  });
}

}  // namespace gradtap::actors::side
