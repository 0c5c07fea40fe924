#include "apps/commands/doctor_command.h"

#include <algorithm>
#include <iterator>

#include <fmt/format.h>
#include <nlohmann/json.hpp>

#include "apps/commands/commands.h"
#include "apps/commands/machine_findings.h"
#include "apps/commands/mirror_findings.h"
#include "common/cluster_config.h"

namespace gradtap::commands {

namespace {

const char* word(Verdict verdict) {
  switch (verdict) {
    case Verdict::kOk:
      return "ok";
    case Verdict::kSkipped:
      return "skipped";
    case Verdict::kWarning:
      return "warning";
    case Verdict::kWrong:
      return "WRONG";
  }
  return "?";
}

Findings cluster_findings(const NodeConfig& config, const std::string& path) {
  if (config.cluster.file.empty()) return {{Verdict::kSkipped, "cluster", "this node is alone", ""}};
  const auto cluster = cluster_of(config, path);
  if (!cluster) return {{Verdict::kWrong, "cluster", cluster.error().text(), cluster.error().remedy}};
  const bool open = cluster->security == "none";
  return {{open ? Verdict::kWarning : Verdict::kOk, "cluster",
           fmt::format("{} members, {} replicas, security \"{}\"", cluster->members.size(), cluster->replicas,
                       cluster->security),
           open ? "anyone who reaches the node link can read and change state: security = \"tls\" (docs/security.md)"
                : ""}};
}

int show(const Findings& findings, bool as_json) {
  const auto count = [&](Verdict verdict) {
    return std::count_if(findings.begin(), findings.end(), [&](const Finding& f) { return f.verdict == verdict; });
  };
  const auto wrong = count(Verdict::kWrong);
  const auto warnings = count(Verdict::kWarning);
  if (as_json) {
    auto checks = nlohmann::json::array();
    for (const Finding& each : findings)
      checks.push_back(
          {{"check", each.check}, {"verdict", word(each.verdict)}, {"seen", each.seen}, {"remedy", each.remedy}});
    fmt::print("{}\n", nlohmann::json{{"checks", checks}, {"wrong", wrong}, {"warnings", warnings}}.dump());
    return wrong > 0 ? 1 : 0;
  }
  for (const Finding& each : findings) {
    fmt::print("{:<8} {:<10} {}\n", word(each.verdict), each.check, each.seen);
    if (!each.remedy.empty()) fmt::print("{:<19} -> {}\n", "", each.remedy);
  }
  fmt::print("VERDICT: {}\n", wrong > 0      ? fmt::format("{} wrong, {} warnings", wrong, warnings)
                              : warnings > 0 ? fmt::format("nothing wrong, {} warnings", warnings)
                                             : std::string("nothing wrong"));
  return wrong > 0 ? 1 : 0;
}

}  // namespace

int doctor(const DoctorOptions& options) {
  const auto config = load_config(options.config);
  if (!config) return unusable(config.error());
  Findings all;
  const auto add = [&](Findings found) {
    all.insert(all.end(), std::make_move_iterator(found.begin()), std::make_move_iterator(found.end()));
  };
  add(cluster_findings(*config, options.config));
  add(core_findings(*config));
  add(memory_findings(*config));
  add(ring_findings(*config));
  add(disk_findings(*config));
  add(object_findings(*config));
  add(clock_findings());
  add(mirror_findings(*config, options.seconds));
  return show(all, options.json);
}

}  // namespace gradtap::commands
