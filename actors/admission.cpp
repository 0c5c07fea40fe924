#include "actors/admission.h"

#include <algorithm>
#include <map>

#include <nlohmann/json.hpp>

#include "capacity/node_json.h"

namespace gradtap::actors {

AdmissionTerms admission_terms(const NodeConfig& config, const JobSection& job) {
  AdmissionTerms terms;
  terms.refuse = config.limits.admission;
  terms.full_every_steps = config.store.full_every_steps;
  terms.keep_fulls = config.store.keep_fulls;
  terms.publish_interval_steps = job.publish_interval_steps;
  terms.mirrored_edges = static_cast<std::uint32_t>(job.mirrored.size());
  terms.frame = job.transport == WireTransport::kGloo ? "tcp-1500" : "roce-1024";
  return terms;
}

capacity::JobShape job_shape(const recovery::JobPlan& plan, const AdmissionTerms& terms, std::uint32_t replicas,
                             double step_time_s) {
  capacity::JobShape job;
  job.parameters = static_cast<double>(plan.schema.elements());
  job.gradient_bytes = sizeof(float);
  job.state = {{"param", sizeof(float)}};
  for (const replica::StateKind kind : plan.schema.optimizer.kinds)
    job.state.emplace_back(replica::state_kind_name(kind), sizeof(float));
  job.ranks = plan.world;
  job.step_time_s = step_time_s;
  job.mirrored_edges = terms.mirrored_edges > 0 ? terms.mirrored_edges : plan.world;
  if (const auto frame = capacity::frame_shape(terms.frame)) job.frame = *frame;
  // What the mirror puts around frames is not known here: the most that one does.
  if (const auto bytes = capacity::encapsulation_bytes("erspan3")) job.encapsulation_bytes = *bytes;
  job.replicas = replicas;
  job.shards = plan.shards.shards().size();
  job.publish_interval_steps = terms.publish_interval_steps;
  job.full_every_steps = terms.full_every_steps;
  job.keep_fulls = terms.keep_fulls;
  return job;
}

double fullest_share(const recovery::JobPlan& plan, const std::vector<std::vector<MemberIndex>>& owners) {
  std::map<MemberIndex, std::uint64_t> owned;
  std::uint64_t all = 0;
  const auto& shards = plan.shards.shards();
  for (std::size_t shard = 0; shard < shards.size(); ++shard) {
    all += shards[shard].elements;
    if (shard >= owners.size()) continue;
    for (const MemberIndex member : owners[shard]) owned[member] += shards[shard].elements;
  }
  std::uint64_t most = 0;
  for (const auto& [member, elements] : owned) most = std::max(most, elements);
  return all == 0 || most == 0 ? 1.0 : static_cast<double>(most) / static_cast<double>(all);
}

std::vector<capacity::NodeShape> member_shapes(std::string_view answers_json) {
  std::vector<capacity::NodeShape> nodes;
  const auto answers = nlohmann::json::parse(answers_json, nullptr, false);
  if (!answers.is_object()) return nodes;
  for (const auto& [name, body] : answers.items())
    if (auto node = capacity::node_from_json(body)) {
      node->name = name;
      nodes.push_back(std::move(*node));
    }
  return nodes;
}

}  // namespace gradtap::actors
