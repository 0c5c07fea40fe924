#include "common/cluster_config.h"

#include <algorithm>
#include <filesystem>
#include <set>

#include "common/config_parse.h"
#include "common/sha256.h"

namespace gradtap {
namespace {

using namespace config_detail;

constexpr std::size_t kMembersMax = 256;
// Fewer heartbeats than this in the silence, and one late one would count as a death.
constexpr std::uint64_t kHeartbeatsInSilence = 3;

Status check_together(const ClusterConfig& config, std::string_view file, const toml::table& root) {
  const auto where = [&](std::string_view key) {
    const toml::node* const node = root.get(key);
    return Place{file, "", key}.at(node != nullptr ? node->source().begin.line : 1);
  };
  if (config.members.empty())
    return fail(ErrorCode::kConfigMissingKey, "key is missing", where("member"), "at least one [[member]]", "nothing",
                "add a [[member]] for every node");
  std::set<std::string_view> domains;
  for (const MemberSection& member : config.members) domains.insert(member.domain);
  if (config.replicas > domains.size())
    return fail(ErrorCode::kConfigImpossibleValue, "more replicas than failure domains", where("replicas"),
                fmt::format("1..{}", domains.size()), fmt::format("{}", config.replicas),
                "lower replicas, or give the members more than one domain");
  if (config.down_after_ms < kHeartbeatsInSilence * config.heartbeat_ms)
    return fail(ErrorCode::kConfigImpossibleValue, "value is impossible", where("down_after_ms"),
                fmt::format("at least {} x heartbeat_ms", kHeartbeatsInSilence),
                fmt::format("{}", config.down_after_ms), "raise down_after_ms or lower heartbeat_ms");
  return {};
}

}  // namespace

std::optional<std::size_t> ClusterConfig::index_of(std::string_view name) const {
  const auto found = std::find_if(members.begin(), members.end(), [&](const auto& m) { return m.name == name; });
  if (found == members.end()) return std::nullopt;
  return static_cast<std::size_t>(found - members.begin());
}

Sha256 ClusterConfig::digest() const {
  std::string text = fmt::format("gradtap cluster 1\n{}\n", replicas);
  for (const MemberSection& member : members)
    text += fmt::format("{} {} {} {}{}\n", member.name, member.link, member.http, member.domain,
                        member.capacity == 1 ? std::string() : fmt::format(" capacity {}", member.capacity));
  return sha256(text);
}

Result<ClusterConfig> parse_cluster_config(std::string_view text, std::string_view file) {
  const Result<toml::table> parsed = parse_toml(text, file);
  if (!parsed) return std::unexpected<Error>(parsed.error());
  ClusterConfig config;
  for (const auto& [key, node] : *parsed) {
    if (key.str() != "member") continue;
    const std::string where = Place{file, "", "member"}.at(node);
    GRADTAP_TRY(parse_list("member", kMembersMax, where, node, [&](const toml::table& table) -> Status {
      MemberSection member;
      GRADTAP_TRY(parse_table<MemberSection>(member_rows(), "member", member, file, table));
      for (const MemberSection& other : config.members) {
        const auto twice = [&](std::string_view key_name, const std::string& value) {
          return impossible({file, "member", key_name}, *table.get(key_name), "a different one for every member",
                            fmt::format("\"{}\" twice", value));
        };
        if (other.name == member.name) return twice("name", member.name);
        if (other.link == member.link) return twice("link", member.link);
        if (other.http == member.http) return twice("http", member.http);
      }
      config.members.push_back(std::move(member));
      return {};
    }));
  }
  GRADTAP_TRY(parse_table<ClusterConfig>(cluster_rows(), "", config, file, *parsed, "member"));
  GRADTAP_TRY(check_together(config, file, *parsed));
  return config;
}

Result<ClusterConfig> load_cluster_config(const std::string& path) {
  const auto text = read_config_file(path, "let cluster.file name a file that exists and can be read");
  if (!text) return std::unexpected<Error>(text.error());
  return parse_cluster_config(*text, path);
}

Result<ClusterConfig> cluster_of(const NodeConfig& node, const std::string& node_path) {
  if (node.cluster.file.empty()) {
    ClusterConfig alone;
    alone.replicas = 1;
    alone.members.push_back({node.node.name, "", "http://" + node.node.listen, "alone"});
    return alone;
  }
  const std::filesystem::path path = std::filesystem::path(node_path).parent_path() / node.cluster.file;
  auto cluster = load_cluster_config(path.string());
  // With an object store it is the newest epoch there that says who is a member.
  if (cluster && !cluster->index_of(node.node.name) && node.objects.directory.empty()) {
    std::vector<std::string_view> names;
    for (const MemberSection& member : cluster->members) names.push_back(member.name);
    return fail(ErrorCode::kConfigImpossibleValue, "this node is not a member of its cluster", path.string(),
                fmt::format("a [[member]] named \"{}\"", node.node.name), fmt::format("{}", fmt::join(names, ", ")),
                "add it, or correct node.name");
  }
  return cluster;
}

}  // namespace gradtap
