// NodeConfig: everything a node is told, with a default for every limit.
//
// Purpose: parse_config() turns TOML into a checked NodeConfig; one table of keys drives parsing, ranges, defaults and
// docs/configuration.md. Ownership: plain values. Threads: any. Invariants: a returned NodeConfig is possible in itself
// (kinds, ranges, what belongs together). Failure: the first wrong key, as an Error whose `where` is file:line:key,
// with a remedy.
#pragma once

#include <cstdint>
#include <optional>
#include <string>
#include <string_view>
#include <vector>

#include "common/error.h"
#include "common/log.h"

namespace gradtap {

enum class TapKind : std::uint8_t { kNone, kAfPacket, kPcap };
enum class L4Checksum : std::uint8_t { kRequired, kOffload };

struct NodeSection {
  std::string name = "node0";
  std::string data_dir = "/var/lib/gradtap";
  std::string listen = "127.0.0.1:7700";
  LogLevel log_level = LogLevel::kInfo;
};

struct TapSection {
  TapKind kind = TapKind::kNone;
  std::string interface;
  std::string file;
  std::uint64_t queues = 1;
  std::uint64_t frame_bytes = 16384;
  std::uint64_t ring_frames = 4096;
  L4Checksum l4_checksum = L4Checksum::kRequired;
  std::uint64_t reorder_window_bytes = std::uint64_t{4} << 20;
  std::uint64_t reorder_total_bytes = std::uint64_t{64} << 20;  // of all flows of a queue
  std::uint64_t reorder_grace_ms = 50;
  std::uint64_t reorder_grace_packets = 4096;
  std::uint64_t idle_sleep_us_max = 1000;
  std::uint64_t port_bits_per_second = 0;  // 0: what the interface says
};

struct DpdkSection {
  std::uint64_t memory_mb = 512;
  bool hugepages = false;
  std::uint64_t mbufs = 16384;
};

struct AssemblySection {
  std::uint64_t assemblers = 1;
  std::uint64_t window_bytes = std::uint64_t{1} << 30;
  std::uint64_t window_ops = 4096;
  std::uint64_t limbo_bytes = std::uint64_t{64} << 20;
  std::uint64_t fragments_max = 65536;
  std::uint64_t retain_bytes = std::uint64_t{1} << 30;  // applied steps, for owners that are away
  std::uint64_t credits = 256;
  std::uint64_t credit_wait_ms = 20;
};

struct ReplicaSection {
  std::uint64_t shard_elements = std::uint64_t{1} << 24;
  std::uint64_t apply_queue = 4;
};

struct StoreSection {
  std::uint64_t full_every_steps = 64;
  std::uint64_t keep_fulls = 2;
  std::uint64_t chunk_bytes = std::uint64_t{4} << 20;
  std::uint64_t min_free_bytes = std::uint64_t{1} << 30;
  std::uint64_t flush_queue_steps = 2;
  std::uint64_t retry_ms_max = 5000;
};

struct SideChannelSection {
  std::uint64_t body_bytes_max = std::uint64_t{16} << 20;
  std::uint64_t connections_max = 64;
  std::uint64_t request_timeout_ms = 10000;
  std::uint64_t messages_lines_max = 64;
  std::uint64_t head_bytes_max = 65536;
  std::uint64_t answer_timeout_ms = 4000;
};

struct ClusterSection {
  std::string file;  // relative to the node's file; empty: this node alone
};

// How this node shows its peers who it is (the cluster file's security is tls), and who may ask it over HTTP.
struct SecuritySection {
  std::string ca_file;  // like the others: as written; load_config() makes it relative to the file's folder
  std::string certificate_file;
  std::string key_file;
  std::uint64_t reload_interval_ms = 10000;
  std::uint64_t renew_after_ms = 3600000;
  bool any_address = false;
  std::string read_token_file;   // opens the node's own answers; made relative like the three above
  std::string admin_token_file;  // opens commands and the state of every job too
  bool trust_loopback = true;
  std::uint64_t access_log_bytes = std::uint64_t{8} << 20;
};

struct LinkSection {
  std::uint64_t call_timeout_ms = 10000;
  std::uint64_t chunk_bytes = std::uint64_t{256} << 10;
  std::uint64_t credits = 64;
  std::uint64_t connections_max = 4;
  std::uint64_t answer_bytes_max = std::uint64_t{1} << 30;
  std::uint64_t body_bytes_max = std::uint64_t{32} << 20;
  std::uint64_t hellos_max = 64;
  std::uint64_t hello_timeout_ms = 2000;
  std::uint64_t breaks_max = 4;
};

struct ObjectsSection {
  std::string directory;  // empty: nothing is published
  std::uint64_t points_kept = 8;
  std::uint64_t lease_timeout_ms = 600000;
  std::uint64_t leases_max = 64;
  std::uint64_t readers_max = 4;
  std::uint64_t reader_wait_ms = 30000;
  std::uint64_t retry_ms_max = 5000;
};

struct LimitsSection {
  std::uint64_t flows_max = 4096;
  std::uint64_t layouts_max = 64;
  std::uint64_t pending_steps_max = 1024;
  std::uint64_t events = 4096;
  std::uint64_t memory_bytes = 0;  // that jobs may take; 0: three quarters of the machine's
  bool admission = true;           // a job that cannot fit is refused
  std::uint64_t answer_timeout_ms = 1000;
  std::uint64_t rates_wait_ms = 5000;
  std::uint64_t stop_flush_ms = 5000;
};

enum class WireTransport : std::uint8_t { kGloo, kNccl };

// How NCCL was told, or decided, to run the job: not on the wire.
struct NcclSection {
  std::string version;  // "2.19.3"
  std::uint64_t channels = 1;
  std::uint64_t threads = 512;
  std::uint64_t ll_bytes_max = 0;
  bool completing_send = false;
};

struct JobSection {
  std::string name;
  std::vector<std::string> endpoints;   // IP addresses, rank order
  std::vector<std::uint64_t> mirrored;  // ranks whose port is mirrored; empty: all
  std::uint64_t publish_interval_steps = 1;
  std::uint64_t grace_ms = 200;
  std::uint64_t trainer_silent_ms = 30000;
  std::string dtype = "float32";
  std::string secret_file;          // keys that open this job; load_config() makes it relative to the file's folder
  std::string security = "secret";  // none: whoever reaches the gateway may use the job
  WireTransport transport = WireTransport::kGloo;
  NcclSection nccl;
};

struct NodeConfig {
  NodeSection node;
  TapSection tap;
  DpdkSection dpdk;
  AssemblySection assembly;
  ReplicaSection replica;
  StoreSection store;
  SideChannelSection side_channel;
  ClusterSection cluster;
  SecuritySection security;
  LinkSection link;
  ObjectsSection objects;
  LimitsSection limits;
  std::vector<JobSection> jobs;
};

[[nodiscard]] Result<NodeConfig> parse_config(std::string_view text, std::string_view file_name);
[[nodiscard]] Result<NodeConfig> load_config(const std::string& path);

// "[::1]:7700" or "10.0.0.1:7700"; the host must be an IP address or a host name, the port 0..65535 (0: any free one).
struct HostPort {
  std::string host;
  std::uint16_t port = 0;
};
[[nodiscard]] Result<HostPort> parse_host_port(std::string_view text);

// One line of docs/configuration.md.
struct ConfigKeyInfo {
  std::string section;
  std::string key;
  std::string type;
  std::string range;          // "1..16", "af_packet | pcap | none", may be empty
  std::string default_value;  // as written in TOML; "required" when there is none
  std::string meaning;
};
[[nodiscard]] std::vector<ConfigKeyInfo> config_keys();
// The value of a key that takes an integer ("tap.queues"; "job." names the first job); nothing: there is no such key.
[[nodiscard]] std::optional<std::uint64_t> config_number(const NodeConfig& config, std::string_view key);

}  // namespace gradtap
