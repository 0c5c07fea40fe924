#include <chrono>
#include <cstdio>
#include <thread>

#include <fmt/format.h>
#include <unistd.h>

#include "apps/commands/commands.h"
#include "apps/commands/node_client.h"
#include "common/answer_fields.h"

namespace gradtap::commands {

namespace {

using namespace answer_fields;

void print_job(const nlohmann::json& job) {
  fmt::print("job {}  lineage {}  state {}  shards {}\n", text(job, "job"), number(job, "lineage"), text(job, "state"),
             number(job, "shards"));
  fmt::print("  {:>10} {:>10} {:>10} {:>10} {:>10}\n", "training", "verified", "durable", "published", "lag_steps");
  const std::uint64_t training = number(job, "training");
  const std::uint64_t verified = number(job, "verified");
  fmt::print("  {:>10} {:>10} {:>10} {:>10} {:>10}\n", training, verified, number(job, "durable"),
             number(job, "published"), training - std::min(training, verified));
  if (job.contains("regressed_from")) fmt::print("  regressed from {}\n", job["regressed_from"].dump());
  for (const auto& gap : job.value("gaps", nlohmann::json::array())) {
    if (!gap.is_object()) continue;
    fmt::print("  {} ({}) since step {}: {}", text(gap, "name"), number(gap, "reason"), number(gap, "since_step"),
               text(gap, "evidence"));
    if (const auto action = text(gap, "action"); !action.empty()) fmt::print(" -> {}", action);
    fmt::print("\n");
  }
  for (const auto& warning : job.value("warnings", nlohmann::json::array()))
    if (warning.is_string()) fmt::print("  warning: {}\n", warning.get<std::string>());
}

void print_member_states(const nlohmann::json& status) {
  const auto members = status.find("members");
  if (members == status.end() || !members->is_array()) return;
  const std::string home = text(status, "home");
  for (const auto& member : *members) {
    if (!member.is_object()) continue;
    const std::string name = text(member, "name");
    fmt::print("  {:<12} {:<8} {:<12} {}{}\n", name, text(member, "state"), text(member, "domain"),
               text(member, "http"), name == home ? "  home of the job" : "");
  }
}

int print_once(const Common& common) {
  const NodeClient client(common.endpoint, common.access);
  const auto answer = client.get("/v1/status");
  if (!answer) return unusable(answer.error());
  if (common.json) {
    fmt::print("{}\n", answer->dump(1));
    return 0;
  }
  fmt::print("node {}  up {} s  tap {}\n", text(*answer, "node"), number(*answer, "uptime_s"), text(*answer, "tap"));
  print_member_states(*answer);
  for (const auto& warning : answer->value("warnings", nlohmann::json::array()))
    if (warning.is_string()) fmt::print("  warning: {}\n", warning.get<std::string>());
  for (const auto& absent : answer->value("absent", nlohmann::json::array()))
    fmt::print("  absent: {}\n", absent.dump());
  for (const auto& job : answer->value("jobs", nlohmann::json::array()))
    if (job.is_object() && (common.job.empty() || text(job, "job") == common.job)) print_job(job);
  return 0;
}

}  // namespace

int status(const Common& common, bool watch, unsigned interval_ms) {
  if (!watch) return print_once(common);
  for (;;) {
    if (isatty(STDOUT_FILENO) != 0) fmt::print("\x1b[H\x1b[2J");
    (void)print_once(common);  // an unreachable node is shown and asked again
    std::fflush(stdout);
    std::this_thread::sleep_for(std::chrono::milliseconds(interval_ms));
  }
}

}  // namespace gradtap::commands
