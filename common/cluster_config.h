// ClusterConfig: who belongs to the cluster, the same file on every node.
//
// Purpose: parse_cluster_config() turns the cluster file into a checked ClusterConfig. The order of the members in the
// file matters: owners of shards and the home of a job follow it. Ownership: plain values. Threads: any. Invariants: a
// returned ClusterConfig has at least one member, different names and addresses, and as many failure domains as
// replicas. Failure: the first wrong key, as an Error whose `where` is file:line:key, with a remedy.
#pragma once

#include <cstddef>
#include <cstdint>
#include <optional>
#include <string>
#include <string_view>
#include <vector>

#include "common/config.h"
#include "common/error.h"
#include "common/ids.h"

namespace gradtap {

struct MemberSection {
  std::string name;            // node.name of that node
  std::string link;            // "10.77.0.100:7800": where it listens for peers
  std::string http;            // "http://10.77.0.100:7700"
  std::string domain;          // nodes that may die together share it
  std::uint64_t capacity = 1;  // its share of the shards, against the others'
  friend bool operator==(const MemberSection&, const MemberSection&) = default;
};

struct ClusterConfig {
  std::string security = "tls";  // or "none", which is shown as a warning in status
  std::uint64_t replicas = 2;
  bool degraded_durable = true;
  std::uint64_t heartbeat_ms = 1000;
  std::uint64_t down_after_ms = 30000;
  std::vector<MemberSection> members;  // file order

  [[nodiscard]] std::optional<std::size_t> index_of(std::string_view name) const;
  // SHA-256 over what two nodes must agree on to place shards alike: replicas and the members in order.
  [[nodiscard]] Sha256 digest() const;
};

[[nodiscard]] Result<ClusterConfig> parse_cluster_config(std::string_view text, std::string_view file_name);
[[nodiscard]] Result<ClusterConfig> load_cluster_config(const std::string& path);

// The cluster of a node whose own file is `node_path`: cluster.file, or, without one, the node alone with one replica.
// Without an object store the file must name this node; with one, the epochs there say who is a member.
[[nodiscard]] Result<ClusterConfig> cluster_of(const NodeConfig& node, const std::string& node_path);

[[nodiscard]] std::vector<ConfigKeyInfo> cluster_config_keys();

}  // namespace gradtap
