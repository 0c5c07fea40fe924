// What any node answers for the whole cluster: shards, placement, version, epoch, digests, events.
#include <cstdio>
#include <ctime>

#include <fmt/format.h>

#include "apps/commands/commands.h"
#include "apps/commands/node_client.h"
#include "common/answer_fields.h"

namespace gradtap::commands {

namespace {

using namespace answer_fields;
using nlohmann::json;

constexpr unsigned kClusterTimeoutMs = 4000;  // a node answers within 2 s, whoever else is away

// Prints the answer by `print`, or as it is with --json; exit code of `print`.
template <class Print>
int show(const Common& common, const Result<json>& answer, Print print) {
  if (!answer) return unusable(answer.error());
  if (common.json) fmt::print("{}\n", answer->dump(1));
  const int code = print(*answer);
  if (common.json) return code;
  if (const auto absent = answer->find("absent"); absent != answer->end() && absent->is_array())
    for (const json& who : *absent)
      if (who.is_string()) fmt::print("absent: {}\n", who.get<std::string>());
  return code;
}

// The answer to a question about the job.
Result<json> of_job(const Common& common, const std::string& question) {
  const NodeClient client(common.endpoint, common.access, kClusterTimeoutMs);
  const auto job = client.job_or_only(common.job);
  if (!job) return std::unexpected(job.error());
  return client.get("/v1/jobs/" + *job + "/" + question);
}

std::string step_or_dash(const json& object, const char* key) {
  const auto it = object.find(key);
  return it != object.end() && it->is_number_unsigned() ? std::to_string(it->get<std::uint64_t>()) : "-";
}

std::string wall_time(std::uint64_t wall_ms) {
  const std::time_t seconds = static_cast<std::time_t>(wall_ms / 1000);
  std::tm utc{};
  if (gmtime_r(&seconds, &utc) == nullptr) return "-";
  char text[32];
  if (std::strftime(text, sizeof text, "%Y-%m-%dT%H:%M:%S", &utc) == 0) return "-";
  return fmt::format("{}.{:03}Z", text, wall_ms % 1000);
}

// What of a node's memory is taken, and by what.
void print_memory(const json& memory) {
  fmt::print("\n{:<14} {:>16} {:>16} {:>10}\n", "memory, bytes", "taken", "at most so far", "refused");
  const json accounts = field(memory, "accounts");
  if (accounts.is_object())
    for (const auto& [name, account] : accounts.items())
      fmt::print("{:<14} {:>16} {:>16} {:>10}\n", name, number(account, "in_use_bytes"), number(account, "peak_bytes"),
                 number(account, "refused"));
  fmt::print("{:<14} {:>16} {:>16} {:>10}  of {}; the process takes {}\n", "together", number(memory, "in_use_bytes"),
             number(memory, "peak_bytes"), number(memory, "refused"), number(memory, "limit_bytes"),
             number(memory, "resident_bytes"));
}

std::string names_in(const json& list) {
  std::string names;
  if (list.is_array())
    for (const json& name : list)
      if (name.is_string()) names += (names.empty() ? "" : " ") + name.get<std::string>();
  return names;
}

}  // namespace

int shards(const Common& common) {
  return show(common, of_job(common, "shards"), [&](const json& answer) {
    if (common.json) return 0;
    fmt::print("{:>6} {:<12} {:<9} {:>10} {:>9} {:>9} {:>9} {:>19} {:<9} {}\n", "shard", "node", "role", "elements",
               "version", "durable", "full", "produces", "state", "digest");
    for (const json& shard : objects(answer, "shards")) {
      std::string range = "-";
      if (const auto it = shard.find("produces"); it != shard.end() && it->is_array() && it->size() == 2)
        range = (*it)[0].dump() + ".." + (*it)[1].dump();
      fmt::print("{:>6} {:<12} {:<9} {:>10} {:>9} {:>9} {:>9} {:>19} {:<9} {}\n", number(shard, "shard"),
                 text(shard, "node"), text(shard, "role"), number(shard, "elements"), number(shard, "version"),
                 number(shard, "durable"), number(shard, "full"), range, text(shard, "state"),
                 text(shard, "digest").substr(0, 16));
    }
    return 0;
  });
}

int placement(const Common& common) {
  return show(common, of_job(common, "placement"), [&](const json& answer) {
    if (common.json) return 0;
    fmt::print("epoch {}  lineage {}  training {}  durable {}  published {}\n", number(answer, "epoch"),
               number(answer, "lineage"), number(answer, "training"), number(answer, "durable"),
               number(answer, "published"));
    fmt::print("{:>6} {:<12} {:<10} {:<5} {:>9} {:>9} {:>9} {}\n", "shard", "node", "role", "live", "version",
               "durable", "from", "waits for");
    for (const json& shard : objects(answer, "shards"))
      for (const json& holder : objects(shard, "holders"))
        fmt::print("{:>6} {:<12} {:<10} {:<5} {:>9} {:>9} {:>9} {}\n", number(shard, "shard"), text(holder, "node"),
                   text(holder, "role"), flag(holder, "live") ? "yes" : "no", step_or_dash(holder, "version"),
                   step_or_dash(holder, "durable"), step_or_dash(holder, "from"), text(holder, "waits_for"));
    return 0;
  });
}

int version(const Common& common, std::uint64_t shard, std::uint64_t step) {
  const auto question = fmt::format("version?shard={}&step={}", shard, step);
  return show(common, of_job(common, question), [&](const json& answer) {
    const std::string digest = text(answer, "digest");
    const std::string producers = names_in(answer.value("producers", json::array()));
    const int code = digest.empty() || producers.empty() ? 1 : 0;
    if (common.json) return code;
    fmt::print("lineage {}  shard {}  step {}\n", number(answer, "lineage"), shard, step);
    if (shard >= number(answer, "shards"))
      fmt::print("  the job has {} shards, numbered from 0\n", number(answer, "shards"));
    else if (flag(answer, "diverged"))
      fmt::print("  the nodes have DIFFERENT digests of it\n");
    else
      fmt::print("  digest       {}\n", digest.empty() ? "not known to any node that answered" : digest);
    fmt::print("  produced by  {}\n", producers.empty() ? "no node that answered" : producers);
    for (const json& holder : objects(answer, "holders"))
      fmt::print("  {:<12} digest {:<16} from full version {}, durable {}\n", text(holder, "node"),
                 text(holder, "digest").substr(0, 16), step_or_dash(holder, "full"), step_or_dash(holder, "durable"));
    return code;
  });
}

int epoch(const Common& common) {
  const NodeClient client(common.endpoint, common.access, kClusterTimeoutMs);
  return show(common, client.get("/v1/epoch"), [&](const json& answer) {
    if (common.json) return 0;
    fmt::print("epoch {} ({}) of {}  proposed by {}  replicas {}  digest {}\n", number(answer, "epoch"),
               text(answer, "cause"), wall_time(number(answer, "created_wall_ms")), text(answer, "proposer"),
               number(answer, "replicas"), text(answer, "digest").substr(0, 16));
    for (const json& member : objects(answer, "members"))
      fmt::print("  {:<12} {:<9} since epoch {:<5} capacity {:<5} {:<12} {} {}\n", text(member, "name"),
                 text(member, "membership"), number(member, "since_epoch"), number(member, "capacity"),
                 text(member, "domain"), text(member, "link"), text(member, "http"));
    if (const auto owners = answer.find("owners"); owners != answer.end() && owners->is_array())
      for (std::size_t shard = 0; shard < owners->size(); ++shard)
        fmt::print("  shard {:>5}: {}\n", shard, names_in((*owners)[shard]));
    for (const json& node : objects(answer, "answered"))
      if (number(node, "epoch") != number(answer, "epoch"))
        fmt::print("  {} has epoch {} in force\n", text(node, "node"), number(node, "epoch"));
    return 0;
  });
}

int limits(const Common& common) {
  const NodeClient client(common.endpoint, common.access, kClusterTimeoutMs);
  return show(common, client.get("/v1/limits"), [&](const json& answer) {
    if (common.json) return 0;
    const std::string asked = text(answer, "node");
    for (const json& node : objects(answer, "nodes")) {
      const bool whole = text(node, "node") == asked;
      if (whole)
        fmt::print("{:<34} {:>16} {:<22} {:>14} {:>10}  {}\n", "limit of " + asked, "value", "", "used", "hit", "key");
      else
        fmt::print("hit on {}:\n", text(node, "node"));
      std::size_t shown = 0;
      for (const json& row : objects(node, "limits")) {
        if (!whole && number(row, "hits") == 0) continue;
        ++shown;
        const std::string key = text(row, "key");
        fmt::print("{:<34} {:>16} {:<22} {:>14} {:>10}  {}\n", text(row, "name"), step_or_dash(row, "limit"),
                   text(row, "unit"), step_or_dash(row, "used"), step_or_dash(row, "hits"),
                   key.empty() ? "built in" : key);
      }
      if (shown == 0) fmt::print("  none\n");
      if (whole) print_memory(field(node, "memory"));
    }
    return 0;
  });
}

int digests(const Common& common, std::uint64_t from, std::uint64_t to) {
  const auto answer = of_job(common, fmt::format("digests?from={}&to={}", from, to));
  if (!answer) return unusable(answer.error());
  if (common.json) {
    fmt::print("{}\n", answer->dump());
    return 0;
  }
  for (const json& entry : objects(*answer, "digests"))
    fmt::print("{:>8} {}\n", number(entry, "step"), text(entry, "root"));
  return 0;
}

int events(const Common& common) {
  const NodeClient client(common.endpoint, common.access, kClusterTimeoutMs);
  return show(common, client.get("/v1/events"), [&](const json& answer) {
    if (common.json) return 0;
    for (const json& event : objects(answer, "events")) {
      std::string fields;
      if (const auto it = event.find("fields"); it != event.end() && it->is_object())
        for (const auto& [key, value] : it->items())
          if (value.is_string()) fields += fmt::format(" {}={}", key, value.get<std::string>());
      fmt::print("{} {:<12} {:>6} {:<7} {}{}\n", wall_time(number(event, "wall_ms")), text(event, "node"),
                 number(event, "seq"), text(event, "level"), text(event, "text"), fields);
    }
    return 0;
  });
}

}  // namespace gradtap::commands
