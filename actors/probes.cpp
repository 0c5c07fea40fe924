#include "actors/probes.h"

#include <string>
#include <vector>

#include <fmt/format.h>
#include <nlohmann/json.hpp>

#include "actors/metrics_text.h"
#include "common/answer_fields.h"

namespace gradtap::actors {

namespace {

using namespace answer_fields;
using nlohmann::json;

// Each is of this node or of what it stands on, and is mended there; the others are the trainer's or pass by
// themselves.
constexpr const char* kNotAssembling[] = {"COVERAGE_HOLE", "TAP_DOWN",    "STORAGE_FULL", "STORAGE_ERROR",
                                          "DIVERGED",      "ANCHOR_LOST", "UNWIRED",      "OVERLOAD_SHED"};

std::vector<std::string> silent_actors(const json& status) {
  std::vector<std::string> reasons;
  for (const json& who : list(status, "absent"))
    if (who.is_string()) reasons.push_back(who.get<std::string>() + " does not answer");
  return reasons;
}

HttpAnswer verdict(const char* good, const json& status, std::vector<std::string> reasons) {
  if (!status.is_object()) reasons.assign(1, "the node does not answer for itself");
  const json body = {{good, reasons.empty()},
                     {"node", status.is_object() ? text(status, "node") : std::string()},
                     {"reasons", reasons}};
  return {reasons.empty() ? 200 : 503, body.dump(-1, ' ', false, json::error_handler_t::replace), "application/json"};
}

}  // namespace

HttpAnswer metrics_answer(const json& status) {
  return {200, metrics_text(status), kMetricsType};
}

HttpAnswer health_answer(const json& status) {
  return verdict("healthy", status, status.is_object() ? silent_actors(status) : std::vector<std::string>());
}

HttpAnswer readiness_answer(const json& status) {
  if (!status.is_object()) return verdict("ready", status, {});
  std::vector<std::string> reasons = silent_actors(status);
  for (const json& member : list(status, "members")) {
    const auto self = member.is_object() ? member.find("self") : member.end();
    if (self == member.end() || *self != true) continue;
    if (const std::string membership = text(member, "membership"); membership != "in")
      reasons.push_back("this node is " + membership);
    if (const std::string state = text(member, "state"); state != "up")
      reasons.push_back("it catches up on what the job said: " + state);
  }
  for (const json& job : list(status, "jobs")) {
    if (!job.is_object()) continue;
    if (const auto it = job.find("shards_brought_up"); it != job.end() && it->is_number() && *it > 0)
      reasons.push_back(fmt::format("{} of its shards are being copied", it->dump()));
    for (const json& gap : list(job, "gaps")) {
      if (!gap.is_object()) continue;
      const std::string name = text(gap, "name");
      for (const char* each : kNotAssembling)
        if (name == each) reasons.push_back(name + ": " + text(gap, "evidence"));
    }
  }
  return verdict("ready", status, std::move(reasons));
}

}  // namespace gradtap::actors
