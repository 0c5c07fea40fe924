#include "capacity/plan.h"

#include <algorithm>

#include <fmt/format.h>

namespace gradtap::capacity {
namespace {

bool all_fit(const std::vector<Row>& rows) {
  return std::all_of(rows.begin(), rows.end(), [](const Row& row) { return row.fits(); });
}

double pressure(const Row& row) {
  return row.judged() ? row.utilisation() / row.limit : 0;
}

const char* plural(std::uint32_t count) {
  return count == 1 ? "" : "s";
}

}  // namespace

Result<CapacityPlan> plan_capacity(const JobShape& job, const NodeShape& node, std::uint32_t nodes,
                                   std::optional<double> share) {
  GRADTAP_TRY(check(job));
  if (nodes > kNodesMax)
    return fail(ErrorCode::kOutOfRange, "too many nodes", "nodes", "at most " + std::to_string(kNodesMax),
                std::to_string(nodes));
  CapacityPlan plan;
  const auto at = [&](std::uint32_t count) {
    const bool mapped = share && count == nodes;
    return rows(job, node, count, mapped ? *share : owned_share(job, count));
  };
  // A job whose map is given may fit with it and not with the cut that a fresh map would have, and the other way round:
  // what does not fit on the nodes that there are needs more of them.
  const bool fits_here = nodes > 0 && all_fit(at(nodes));
  if (fits_here) plan.nodes_needed = nodes;
  for (std::uint32_t count = nodes > 0 && !fits_here ? nodes + 1 : job.replicas; count <= kNodesMax; ++count) {
    if (plan.nodes_needed && count >= *plan.nodes_needed) break;
    if (!all_fit(at(count))) continue;
    plan.nodes_needed = count;
    break;
  }
  if (!plan.nodes_needed) {
    std::vector<Row> most = at(kNodesMax);
    const auto worst = std::max_element(most.begin(), most.end(),
                                        [](const Row& a, const Row& b) { return pressure(a) < pressure(b); });
    plan.stuck = worst->resource;
  }
  plan.nodes = nodes > 0 ? nodes : plan.nodes_needed.value_or(job.replicas);
  plan.share = share && nodes > 0 ? *share : owned_share(job, plan.nodes);
  plan.rows = at(plan.nodes);
  plan.lag = lag(job, node, plan.nodes, plan.share);
  plan.fits = all_fit(plan.rows);
  for (std::size_t i = 0; i < plan.rows.size(); ++i)
    if (plan.rows[i].judged() && plan.rows[i].needed > 0 &&
        (!plan.binding || pressure(plan.rows[i]) > pressure(plan.rows[*plan.binding])))
      plan.binding = i;
  return plan;
}

Error refusal(const CapacityPlan& plan) {
  Error error;
  error.code = ErrorCode::kCapacityExceeded;
  if (!plan.binding) return error;
  const Row& row = plan.rows[*plan.binding];
  error.what = fmt::format("the job does not fit on {} node{}: {} binds", plan.nodes, plural(plan.nodes),
                           resource_name(row.resource));
  error.where = fmt::format("capacity.{}", resource_name(row.resource));
  error.expected = fmt::format("at most {} of a node", quantity(row.available * row.limit, row.unit));
  error.actual = quantity(row.needed, row.unit);
  if (plan.nodes_needed && *plan.nodes_needed > plan.nodes)
    error.remedy =
        fmt::format("add {} node{}", *plan.nodes_needed - plan.nodes, plural(*plan.nodes_needed - plan.nodes));
  else if (plan.stuck)
    error.remedy = fmt::format("more nodes do not help, {} does not fall with them: raise what a node has",
                               resource_name(*plan.stuck));
  return error;
}

std::string verdict(const CapacityPlan& plan) {
  std::string text =
      fmt::format("{} {} node{}", plan.fits ? "fits on" : "does not fit on", plan.nodes, plural(plan.nodes));
  if (plan.binding) {
    const Row& row = plan.rows[*plan.binding];
    text += fmt::format(": {} binds ({:.2f} of {:.2f})", resource_name(row.resource), row.utilisation(), row.limit);
  } else {
    text += ": nothing is judged";
  }
  if (plan.fits) return text;
  if (plan.nodes_needed) return text + fmt::format(", needs {} node{}", *plan.nodes_needed, plural(*plan.nodes_needed));
  return text + fmt::format(", more nodes do not help: {} does not fall with them", resource_name(*plan.stuck));
}

nlohmann::json to_json(const CapacityPlan& plan) {
  using nlohmann::json;
  json resources = json::array();
  for (const Row& row : plan.rows) {
    json parts = json::array();
    for (const Part& part : row.parts)
      parts.push_back(
          {{"name", part.name}, {"value", part.value}, {"formula", part.formula}, {"numbers", part.numbers}});
    json entry = {{"resource", resource_name(row.resource)},
                  {"unit", row.unit == Unit::kBytes            ? "B"
                           : row.unit == Unit::kBytesPerSecond ? "B/s"
                           : row.unit == Unit::kBitsPerSecond  ? "bit/s"
                                                               : "cores"},
                  {"needed", row.needed},
                  {"limit", row.limit},
                  {"judged", row.judged()},
                  {"parts", parts}};
    if (row.available > 0) entry["available"] = row.available;
    if (row.judged()) {
      entry["utilisation"] = row.utilisation();
      entry["fits"] = row.fits();
    } else {
      entry["not_known"] = row.unknown;
    }
    resources.push_back(std::move(entry));
  }
  json body = {{"nodes", plan.nodes},
               {"owned_share", plan.share},
               {"fits", plan.fits},
               {"verdict", verdict(plan)},
               {"resources", resources},
               {"binds", plan.binding ? json(resource_name(plan.rows[*plan.binding].resource)) : json(nullptr)},
               {"nodes_needed", plan.nodes_needed ? json(*plan.nodes_needed) : json(nullptr)}};
  if (plan.stuck) body["not_helped_by_nodes"] = resource_name(*plan.stuck);
  json lag = {{"formula", plan.lag.formula}};
  if (plan.lag.unknown.empty()) {
    lag["durable_s"] = plan.lag.durable_s;
    lag["durable_steps"] = plan.lag.durable_steps;
    lag["published_s"] = plan.lag.published_s;
    lag["published_steps"] = plan.lag.published_steps;
  } else {
    lag["not_known"] = plan.lag.unknown;
  }
  body["lag"] = std::move(lag);
  return body;
}

}  // namespace gradtap::capacity
