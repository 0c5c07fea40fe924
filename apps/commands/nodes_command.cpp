#include "apps/commands/nodes_command.h"

#include <chrono>
#include <cstdio>
#include <thread>

#include <fmt/format.h>

#include "apps/commands/node_client.h"
#include "common/answer_fields.h"

namespace gradtap::commands {

namespace {

using namespace answer_fields;
using nlohmann::json;
using Clock = std::chrono::steady_clock;

constexpr unsigned kAnswerTimeoutMs = 5000;
constexpr auto kPause = std::chrono::milliseconds(500);
constexpr int kErrorsMax = 60;  // answers missed in a row, half a second each

double mebibytes(const json& member, const char* key) {
  return static_cast<double>(number(member, key)) / (1 << 20);
}

void print_members(const json& nodes) {
  fmt::print("epoch {} ({})  replicas {}  shards {}  home {}\n", number(nodes, "epoch"), text(nodes, "cause"),
             number(nodes, "replicas"), number(nodes, "shards"), text(nodes, "home"));
  fmt::print("  {:<16} {:<9} {:<8} {:>8} {:>8} {:>8} {:>9} {:>10} {:<4} {:<12} {}\n", "name", "member", "state",
             "assigned", "in_sync", "syncing", "releasing", "MiB_left", "tap", "domain", "link");
  for (const json& member : objects(nodes, "members"))
    fmt::print("  {:<16} {:<9} {:<8} {:>8} {:>8} {:>8} {:>9} {:>10.1f} {:<4} {:<12} {}\n", text(member, "name"),
               text(member, "membership"), text(member, "membership") == "out" ? "-" : text(member, "state"),
               number(member, "assigned"), number(member, "in_sync"), number(member, "syncing"),
               number(member, "releasing"), mebibytes(member, "bytes_left"), flag(member, "tap") ? "yes" : "no",
               text(member, "domain"), text(member, "link"));
  if (const std::string error = text(nodes, "store_error"); !error.empty())
    fmt::print("  the object store does not answer, members stay as they are: {}\n", error);
}

// Empty when the answer has none.
json check_of(const json& answer) {
  const auto found = answer.find("check");
  return found != answer.end() && found->is_object() ? *found : json::object();
}

void print_check(const json& answer, const std::string& name) {
  const json check = check_of(answer);
  if (check.empty()) {
    fmt::print("{}: the node does not say whether it is safe to take down\n", name);
    return;
  }
  const bool safe = flag(check, "safe");
  fmt::print("{}: {}\n", name, safe ? "safe to take down now" : "NOT safe to take down now");
  if (const auto reasons = check.find("reasons"); reasons != check.end() && reasons->is_array())
    for (const json& reason : *reasons)
      if (reason.is_string()) fmt::print("  because {}\n", reason.get<std::string>());
  fmt::print("  it holds {} shards ({:.1f} MiB); taken down now, {} shards would have fewer copies than wanted\n",
             number(check, "held_shards"), mebibytes(check, "held_bytes"), number(check, "short_shards"));
  if (flag(check, "is_home")) fmt::print("  it is the home of the job: another ready node takes that over\n");
  if (const std::string refused = text(answer, "refused"); !refused.empty())
    fmt::print("  draining it would be refused: {}\n", refused);
  else
    fmt::print("  draining it moves {} shards\n", number(answer, "moves"));
}

struct Progress {
  bool found = false;
  bool out = false;
  bool up = false;
  bool is_home = false;
  std::uint64_t held = 0;  // shards on the member, in whatever role but not yet arrived
  std::uint64_t assigned = 0;
  std::uint64_t in_sync = 0;
  std::uint64_t unsettled = 0;  // shards that some member copies or has not released, in the whole cluster
  std::uint64_t bytes_left = 0;
  std::string waits_for;
};

Progress progress_of(const json& nodes, const std::string& name) {
  Progress progress;
  for (const json& member : objects(nodes, "members")) {
    progress.unsettled += number(member, "syncing") + number(member, "releasing");
    progress.bytes_left += number(member, "bytes_left");
    if (text(member, "name") != name) continue;
    progress.found = true;
    progress.out = text(member, "membership") == "out";
    progress.up = text(member, "state") == "up";
    progress.assigned = number(member, "assigned");
    progress.in_sync = number(member, "in_sync");
    progress.held = number(member, "releasing") + progress.assigned;
    progress.waits_for = text(member, "waits_for");
  }
  progress.is_home = text(nodes, "home") == name;
  return progress;
}

// Says how far it is, at most once a second, and only when something changed.
class Reporter {
 public:
  void say(const Progress& now, const std::string& what) {
    std::string line = fmt::format("{}: {} shards not yet where they belong, {:.1f} MiB to copy", what, now.unsettled,
                                   static_cast<double>(now.bytes_left) / (1 << 20));
    if (start_bytes_ < now.bytes_left) {
      start_bytes_ = now.bytes_left;
      started_ = Clock::now();
    }
    const double seconds = std::chrono::duration<double>(Clock::now() - started_).count();
    if (const std::uint64_t copied = start_bytes_ - now.bytes_left; copied > 0 && now.bytes_left > 0 && seconds > 0)
      line +=
          fmt::format(", about {:.0f} s", static_cast<double>(now.bytes_left) / static_cast<double>(copied) * seconds);
    if (!now.waits_for.empty()) line += fmt::format(" (waits: {})", now.waits_for);
    if (line == last_ || Clock::now() - said_ < std::chrono::seconds(1)) return;
    last_ = line;
    said_ = Clock::now();
    fmt::print("{}\n", line);
    std::fflush(stdout);
  }

 private:
  std::uint64_t start_bytes_ = 0;
  Clock::time_point started_ = Clock::now();
  Clock::time_point said_;
  std::string last_;
};

// True: done(progress) became true. A node that does not answer for a while may be the one that is taken down.
template <class Done>
Result<bool> wait_until(const NodeClient& client, const NodesOptions& options, Clock::time_point deadline,
                        const std::string& what, Done done) {
  Reporter reporter;
  int missed = 0;
  for (;;) {
    const auto nodes = client.get("/v1/nodes");
    if (!nodes && ++missed > kErrorsMax) return std::unexpected(nodes.error());
    if (nodes) {
      missed = 0;
      const Progress progress = progress_of(*nodes, options.name);
      if (done(progress)) return true;
      reporter.say(progress, what);
    }
    if (Clock::now() >= deadline) return false;
    std::this_thread::sleep_for(kPause);
  }
}

json request_of(const NodesOptions& options, const std::string& action) {
  json request = {{"action", action}, {"name", options.name}, {"force", options.force}, {"check", options.check}};
  if (!options.link.empty()) request["link"] = options.link;
  if (!options.http.empty()) request["http"] = options.http;
  if (!options.domain.empty()) request["domain"] = options.domain;
  if (options.capacity != 0) request["capacity"] = options.capacity;
  return request;
}

int nodes_refused(const Error& error) {
  std::fputs((error.text() + "\n").c_str(), stderr);
  return error.code == ErrorCode::kPeerUnreachable || error.code == ErrorCode::kRequestMalformed ? 2 : 1;
}

int late(const NodesOptions& options) {
  fmt::print("not done in {} s; it goes on without this command: run it again to see it through\n", options.wait_s);
  return 1;
}

}  // namespace

int nodes_list(const Common& common) {
  const NodeClient client(common.endpoint, common.access, kAnswerTimeoutMs);
  const auto nodes = client.get("/v1/nodes");
  if (!nodes) return unusable(nodes.error());
  if (common.json)
    fmt::print("{}\n", nodes->dump(2));
  else
    print_members(*nodes);
  return 0;
}

int nodes_change(const Common& common, const NodesOptions& options) {
  const NodeClient client(common.endpoint, common.access, kAnswerTimeoutMs);
  const auto answer = client.post("/v1/nodes", request_of(options, options.action));
  if (!answer) return nodes_refused(answer.error());
  if (options.check) {
    if (common.json)
      fmt::print("{}\n", answer->dump(2));
    else
      print_check(*answer, options.name);
    return flag(check_of(*answer), "safe") ? 0 : 1;
  }
  fmt::print("epoch {}: {} {}{}, {} shards move\n", number(*answer, "epoch"), options.action, options.name,
             flag(*answer, "changed") ? "" : " (already so)", number(*answer, "moves"));
  if (const auto same = number(*answer, "shards_in_one_domain"); same > 0)
    fmt::print("warning: {} shards have all their owners in one failure domain\n", same);
  std::fflush(stdout);
  if (options.wait_s == 0) return 0;
  const auto deadline = Clock::now() + std::chrono::seconds(options.wait_s);
  if (options.action == "drain") {
    Result<json> retired = json::object();
    do {
      const auto empty = wait_until(client, options, deadline, "drain " + options.name, [](const Progress& now) {
        return now.out || (now.found && now.held == 0 && !now.is_home);
      });
      if (!empty) return nodes_refused(empty.error());
      if (!*empty) return late(options);
      retired = client.post("/v1/nodes", request_of(options, "retire"));
      // A node that has just started does not know yet what the others hold: it refuses, and knows a little later.
      if (retired || retired.error().code != ErrorCode::kMemberUnsafe) break;
      std::this_thread::sleep_for(kPause);
    } while (Clock::now() < deadline);
    if (!retired) return nodes_refused(retired.error());
    fmt::print("{} owns nothing and is out of the cluster (epoch {}): it may be stopped\n", options.name,
               number(*retired, "epoch"));
    return 0;
  }
  const bool leaves = options.action == "remove";
  const auto settled =
      wait_until(client, options, deadline, options.action + " " + options.name, [&](const Progress& now) {
        if (leaves) return now.out && now.unsettled == 0;
        return now.found && now.up && now.unsettled == 0 && now.in_sync == now.assigned;
      });
  if (!settled) return nodes_refused(settled.error());
  if (!*settled) return late(options);
  fmt::print("{} {}: every shard is where it belongs\n", options.action, options.name);
  return 0;
}

}  // namespace gradtap::commands
