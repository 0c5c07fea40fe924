#include "common/config_table.h"

#include <array>
#include <optional>
#include <type_traits>

#include <fmt/format.h>

namespace gradtap {
namespace config_detail {
namespace {

constexpr std::uint64_t kKi = 1024;
constexpr std::uint64_t kMi = 1024 * kKi;
constexpr std::uint64_t kGi = 1024 * kMi;
constexpr std::uint64_t kTi = 1024 * kGi;

constexpr std::array<std::string_view, 4> kLevels = {"debug", "info", "warn", "error"};
constexpr std::array<std::string_view, 3> kTapKinds = {"none", "af_packet", "pcap"};
constexpr std::array<std::string_view, 2> kChecksums = {"required", "offload"};
constexpr std::array<std::string_view, 1> kDtypes = {"float32"};
constexpr std::array<std::string_view, 2> kTransports = {"gloo", "nccl"};
constexpr std::array<std::string_view, 2> kSecurities = {"tls", "none"};
constexpr std::array<std::string_view, 2> kJobSecurities = {"secret", "none"};

#define GRADTAP_UINT(section, key, min, max)                                           \
  UintField<NodeConfig> {                                                              \
    +[](NodeConfig& config) -> std::uint64_t& { return config.section.key; }, min, max \
  }
#define GRADTAP_TEXT(section, key, rule)                                         \
  TextField<NodeConfig> {                                                        \
    +[](NodeConfig& config) -> std::string& { return config.section.key; }, rule \
  }
#define GRADTAP_CHOICE(section, key, words, Enum)                                                         \
  ChoiceField<NodeConfig> {                                                                               \
    words, +[](NodeConfig& config, std::size_t index) { config.section.key = static_cast<Enum>(index); }, \
        +[](NodeConfig& config) { return static_cast<std::size_t>(config.section.key); }                  \
  }
#define GRADTAP_JOB_UINT(key, min, max)                                  \
  UintField<JobSection> {                                                \
    +[](JobSection& job) -> std::uint64_t& { return job.key; }, min, max \
  }

const std::vector<Row<NodeConfig>> kNodeRows = {
    {"node", "name", "name of this node in status and log lines", GRADTAP_TEXT(node, name, TextRule::kName)},
    {"node", "data_dir", "directory of the shard store; one process owns it",
     GRADTAP_TEXT(node, data_dir, TextRule::kNotEmpty)},
    {"node", "listen", "host:port of the side channel and the status API; port 0 takes any free one",
     GRADTAP_TEXT(node, listen, TextRule::kHostPort)},
    {"node", "log_level", "lines below it are not written", GRADTAP_CHOICE(node, log_level, kLevels, LogLevel)},

    {"tap", "kind", "where mirrored frames come from", GRADTAP_CHOICE(tap, kind, kTapKinds, TapKind)},
    {"tap", "interface", "monitor interface; needed by af_packet", GRADTAP_TEXT(tap, interface, TextRule::kAny)},
    {"tap", "file", "capture file; needed by pcap", GRADTAP_TEXT(tap, file, TextRule::kAny)},
    {"tap", "queues", "receive queues, each polled by its own thread", GRADTAP_UINT(tap, queues, 1, 16)},
    {"tap", "frame_bytes", "largest frame; larger ones are refused and counted, never cut",
     GRADTAP_UINT(tap, frame_bytes, 2048, 65536)},
    {"tap", "ring_frames", "frames of the kernel ring of one queue", GRADTAP_UINT(tap, ring_frames, 64, 1048576)},
    {"tap", "l4_checksum", "required drops frames whose TCP checksum is wrong; offload accepts them with a warning",
     GRADTAP_CHOICE(tap, l4_checksum, kChecksums, L4Checksum)},
    {"tap", "reorder_window_bytes", "bytes of one flow that may wait for an earlier frame",
     GRADTAP_UINT(tap, reorder_window_bytes, 64 * kKi, kGi)},
    {"tap", "reorder_total_bytes", "bytes of all flows of a queue that may wait",
     GRADTAP_UINT(tap, reorder_total_bytes, 64 * kKi, 64 * kGi)},
    {"tap", "reorder_grace_ms", "how long a hole may still be filled by a late frame",
     GRADTAP_UINT(tap, reorder_grace_ms, 0, 60000)},
    {"tap", "reorder_grace_packets", "and how many later frames must have come",
     GRADTAP_UINT(tap, reorder_grace_packets, 0, 1000000)},
    {"tap", "idle_sleep_us_max", "longest sleep of an idle poller; 0 polls without sleep",
     GRADTAP_UINT(tap, idle_sleep_us_max, 0, 100000)},
    {"tap", "port_bits_per_second", "rate of the mirror port, for capacity; 0: what the interface says, if it does",
     GRADTAP_UINT(tap, port_bits_per_second, 0, 10'000'000'000'000)},

    {"dpdk", "memory_mb", "memory of the packet library", GRADTAP_UINT(dpdk, memory_mb, 64, 65536)},
    {"dpdk", "hugepages", "true takes huge pages, false ordinary memory",
     BoolField<NodeConfig>{+[](NodeConfig& config) -> bool& { return config.dpdk.hugepages; }}},
    {"dpdk", "mbufs", "packet buffers of a port; must exceed what rings and credits can hold",
     GRADTAP_UINT(dpdk, mbufs, 1024, 8388608)},

    {"assembly", "assemblers", "assembler actors per tap", GRADTAP_UINT(assembly, assemblers, 1, 64)},
    {"assembly", "window_bytes", "bytes of op buffers at most; at the bound the oldest op is shed and counted",
     GRADTAP_UINT(assembly, window_bytes, kMi, kTi)},
    {"assembly", "window_ops", "open ops at most", GRADTAP_UINT(assembly, window_ops, 16, 1048576)},
    {"assembly", "limbo_bytes", "bytes kept of ops whose place is not known yet",
     GRADTAP_UINT(assembly, limbo_bytes, 0, 64 * kGi)},
    {"assembly", "fragments_max", "ranges of an op that have come, with holes between them",
     GRADTAP_UINT(assembly, fragments_max, 16, 1048576)},
    {"assembly", "retain_bytes", "bytes kept of applied steps for shard owners that are away",
     GRADTAP_UINT(assembly, retain_bytes, 0, kTi)},
    {"assembly", "credits", "bursts in flight between an ingress and an assembler",
     GRADTAP_UINT(assembly, credits, 1, 65536)},
    {"assembly", "credit_wait_ms",
     "how long a receive ring may fill while no credit is left, before frames are dropped",
     GRADTAP_UINT(assembly, credit_wait_ms, 0, 1000)},

    {"replica", "shard_elements", "elements after which a shard ends, at its block boundary; fixed for a lineage",
     GRADTAP_UINT(replica, shard_elements, 1, kGi)},
    {"replica", "apply_queue", "verified steps that may wait for a shard owner",
     GRADTAP_UINT(replica, apply_queue, 1, 1024)},

    {"store", "full_every_steps", "a full version every so many steps, logs between",
     GRADTAP_UINT(store, full_every_steps, 1, 1000000)},
    {"store", "keep_fulls", "full versions kept at least", GRADTAP_UINT(store, keep_fulls, 1, 1000)},
    {"store", "chunk_bytes", "bytes of one stored value", GRADTAP_UINT(store, chunk_bytes, 4096, 16 * kMi)},
    {"store", "min_free_bytes", "space left free on the file system; below it the store reports STORAGE_FULL",
     GRADTAP_UINT(store, min_free_bytes, 0, 64 * kTi)},
    {"store", "flush_queue_steps", "verified steps that may wait for the disk",
     GRADTAP_UINT(store, flush_queue_steps, 1, 1024)},

    {"store", "retry_ms_max", "longest pause before a commit that failed is tried again",
     GRADTAP_UINT(store, retry_ms_max, 200, 600000)},

    {"side_channel", "body_bytes_max", "largest request body",
     GRADTAP_UINT(side_channel, body_bytes_max, 64 * kKi, kGi)},
    {"side_channel", "connections_max", "open connections", GRADTAP_UINT(side_channel, connections_max, 1, 65536)},
    {"side_channel", "request_timeout_ms", "a request that takes longer is answered with TIMEOUT",
     GRADTAP_UINT(side_channel, request_timeout_ms, 100, 600000)},
    {"side_channel", "messages_lines_max", "messages of one POST",
     GRADTAP_UINT(side_channel, messages_lines_max, 1, 4096)},

    {"side_channel", "head_bytes_max", "largest head of a request",
     GRADTAP_UINT(side_channel, head_bytes_max, 4096, kMi)},
    {"side_channel", "answer_timeout_ms", "how long the node itself may take for an answer, then NODE_BUSY",
     GRADTAP_UINT(side_channel, answer_timeout_ms, 100, 600000)},

    {"cluster", "file", "the cluster file, relative to this file; empty: a cluster of this node alone",
     GRADTAP_TEXT(cluster, file, TextRule::kAny)},

    {"security", "ca_file", "certificates of the authorities that peers may have; with security tls",
     GRADTAP_TEXT(security, ca_file, TextRule::kAny)},
    {"security", "certificate_file", "this node's certificate; with security tls",
     GRADTAP_TEXT(security, certificate_file, TextRule::kAny)},
    {"security", "key_file", "its key, closed to others; with security tls",
     GRADTAP_TEXT(security, key_file, TextRule::kAny)},
    {"security", "reload_interval_ms", "how often the three files are looked at for new certificates",
     GRADTAP_UINT(security, reload_interval_ms, 100, 3600000)},
    {"security", "renew_after_ms", "a connection with a peer that is older is replaced, so that new certificates count",
     GRADTAP_UINT(security, renew_after_ms, 1000, 86400000)},
    {"security", "any_address", "true: a peer with the right certificate may come from another address than its own",
     BoolField<NodeConfig>{+[](NodeConfig& config) -> bool& { return config.security.any_address; }}},
    {"security", "read_token_file",
     "token that opens status, nodes, events and lists from another host; closed to others",
     GRADTAP_TEXT(security, read_token_file, TextRule::kAny)},
    {"security", "admin_token_file", "token that opens commands and the state too; closed to others",
     GRADTAP_TEXT(security, admin_token_file, TextRule::kAny)},
    {"security", "trust_loopback", "true: 127.0.0.1 reads and commands without a token; false: behind a proxy",
     BoolField<NodeConfig>{+[](NodeConfig& config) -> bool& { return config.security.trust_loopback; }}},
    {"security", "access_log_bytes", "size at which access.log becomes access.log.1",
     GRADTAP_UINT(security, access_log_bytes, 64 * kKi, kGi)},

    {"link", "call_timeout_ms", "deadline of one request to a peer", GRADTAP_UINT(link, call_timeout_ms, 100, 600000)},
    {"link", "chunk_bytes", "bytes of one chunk of an answer", GRADTAP_UINT(link, chunk_bytes, 4 * kKi, 4 * kMi)},
    {"link", "credits", "chunks in flight on one connection", GRADTAP_UINT(link, credits, 1, 1024)},
    {"link", "connections_max", "bulk connections with one peer, in each direction; more wait or are refused",
     GRADTAP_UINT(link, connections_max, 1, 256)},
    {"link", "answer_bytes_max", "largest answer of a peer that is taken",
     GRADTAP_UINT(link, answer_bytes_max, kMi, kTi)},

    {"link", "body_bytes_max", "largest body of a peer's request", GRADTAP_UINT(link, body_bytes_max, kMi, kGi)},
    {"link", "hellos_max", "accepted connections that have not said who they are",
     GRADTAP_UINT(link, hellos_max, 1, 65536)},
    {"link", "hello_timeout_ms", "an accepted connection says who it is within this",
     GRADTAP_UINT(link, hello_timeout_ms, 50, 60000)},
    {"link", "breaks_max", "connections that may break in a row under one call without a new chunk",
     GRADTAP_UINT(link, breaks_max, 1, 1000)},

    {"objects", "directory", "directory that holds the recovery points; empty: nothing is published",
     GRADTAP_TEXT(objects, directory, TextRule::kAny)},
    {"objects", "points_kept", "newest recovery points kept, with what they need",
     GRADTAP_UINT(objects, points_kept, 1, 100000)},
    {"objects", "lease_timeout_ms", "a restore that has not renewed its lease for so long no longer keeps its point",
     GRADTAP_UINT(objects, lease_timeout_ms, 1000, 86400000)},

    {"objects", "leases_max", "leases that a node keeps for restores", GRADTAP_UINT(objects, leases_max, 1, 65536)},
    {"objects", "readers_max", "recovery points that are read through this node at once",
     GRADTAP_UINT(objects, readers_max, 1, 256)},
    {"objects", "reader_wait_ms", "how long a reader waits for its turn, then NODE_BUSY",
     GRADTAP_UINT(objects, reader_wait_ms, 0, 600000)},
    {"objects", "retry_ms_max", "longest pause before an upload that failed is tried again",
     GRADTAP_UINT(objects, retry_ms_max, 200, 600000)},

    {"limits", "flows_max", "tracked flows of a queue; more are counted and ignored",
     GRADTAP_UINT(limits, flows_max, 16, 1048576)},
    {"limits", "layouts_max", "layouts remembered per lineage", GRADTAP_UINT(limits, layouts_max, 2, 65536)},
    {"limits", "pending_steps_max", "step messages that may wait for their bytes",
     GRADTAP_UINT(limits, pending_steps_max, 4, 1048576)},
    {"limits", "events", "events kept for the status API", GRADTAP_UINT(limits, events, 16, 1048576)},
    {"limits", "memory_bytes",
     "memory that a job may take, beside the node's fixed amounts (docs/limits.md); 0: three quarters of the machine's",
     GRADTAP_UINT(limits, memory_bytes, 0, 64 * kTi)},
    {"limits", "admission", "true: a job that does not fit is refused at attach; false: it is admitted and named",
     BoolField<NodeConfig>{+[](NodeConfig& config) -> bool& { return config.limits.admission; }}},
    {"limits", "answer_timeout_ms", "how long the nodes together may take for an answer; who takes longer is absent",
     GRADTAP_UINT(limits, answer_timeout_ms, 100, 60000)},
    {"limits", "rates_wait_ms", "how long an attach with a step time waits for the measurement at the start",
     GRADTAP_UINT(limits, rates_wait_ms, 0, 600000)},
    {"limits", "stop_flush_ms", "how long a stop waits for what was applied to become durable",
     GRADTAP_UINT(limits, stop_flush_ms, 0, 600000)},
};

const std::vector<Row<JobSection>> kJobRows = {
    {"job", "name", "the trainer's job name",
     TextField<JobSection>{+[](JobSection& job) -> std::string& { return job.name; }, TextRule::kName}, true},
    {"job", "endpoints", "IP address of every rank, in rank order",
     AddressesField<JobSection>{+[](JobSection& job) -> std::vector<std::string>& { return job.endpoints; }}, true},
    {"job", "mirrored", "ranks whose switch port is mirrored, or all",
     RanksField<JobSection>{+[](JobSection& job) -> std::vector<std::uint64_t>& { return job.mirrored; }}},
    {"job", "publish_interval_steps", "recovery point every so many steps",
     GRADTAP_JOB_UINT(publish_interval_steps, 1, 1000000)},
    {"job", "grace_ms", "wait after a step message before a missing range counts as lost",
     GRADTAP_JOB_UINT(grace_ms, 1, 60000)},
    {"job", "trainer_silent_ms", "silence after which the trainer is reported as TRAINER_SILENT",
     GRADTAP_JOB_UINT(trainer_silent_ms, 100, 86400000)},
    {"job", "dtype", "element type on the wire",
     ChoiceField<JobSection>{kDtypes,
                             +[](JobSection& job, std::size_t index) { job.dtype = std::string(kDtypes[index]); },
                             +[](JobSection&) { return std::size_t{0}; }}},
    {"job", "secret_file", "keys that open this job, closed to others (gradtap secret new)",
     TextField<JobSection>{+[](JobSection& job) -> std::string& { return job.secret_file; }, TextRule::kAny}},
    {"job", "security",
     "secret: requests of the job are signed, unless nobody but this host can reach it; none: anybody may use the job",
     ChoiceField<JobSection>{
         kJobSecurities, +[](JobSection& job, std::size_t index) { job.security = std::string(kJobSecurities[index]); },
         +[](JobSection& job) { return std::size_t{job.security == kJobSecurities[0] ? 0U : 1U}; }}},
    {"job", "transport", "what carries the collectives: gloo over TCP, or NCCL over RoCEv2",
     ChoiceField<JobSection>{kTransports,
                             +[](JobSection& job, std::size_t i) { job.transport = static_cast<WireTransport>(i); },
                             +[](JobSection& job) { return static_cast<std::size_t>(job.transport); }}},
    {"job", "nccl_version", "of the NCCL library in the job; needed by transport nccl",
     TextField<JobSection>{+[](JobSection& job) -> std::string& { return job.nccl.version; }, TextRule::kAny}},
    {"job", "nccl_channels", "channels of its communicator", GRADTAP_JOB_UINT(nccl.channels, 1, 64)},
    {"job", "nccl_threads", "threads of a channel (NCCL_NTHREADS, or what NCCL's tuning took)",
     GRADTAP_JOB_UINT(nccl.threads, 64, 1024)},
    {"job", "nccl_ll_bytes_max", "ops of up to so many bytes go by protocol LL, larger ones by Simple",
     GRADTAP_JOB_UINT(nccl.ll_bytes_max, 0, kTi)},
    {"job", "nccl_completing_send",
     "true: after every all-reduce the trainer sends the chunk that a mirror of one direction misses",
     BoolField<JobSection>{+[](JobSection& job) -> bool& { return job.nccl.completing_send; }}},
};

#define GRADTAP_CLUSTER_UINT(key, min, max)                                         \
  UintField<ClusterConfig> {                                                        \
    +[](ClusterConfig& cluster) -> std::uint64_t& { return cluster.key; }, min, max \
  }
#define GRADTAP_MEMBER_TEXT(key, rule)                                      \
  TextField<MemberSection> {                                                \
    +[](MemberSection& member) -> std::string& { return member.key; }, rule \
  }

const std::vector<Row<ClusterConfig>> kClusterRows = {
    {"", "security",
     "tls: nodes show certificates of one authority and encrypt; none: the network is trusted, and status warns",
     ChoiceField<ClusterConfig>{
         kSecurities,
         +[](ClusterConfig& cluster, std::size_t index) { cluster.security = std::string(kSecurities[index]); },
         +[](ClusterConfig& cluster) { return std::size_t{cluster.security == kSecurities[0] ? 0U : 1U}; }}},
    {"", "replicas", "owners of every shard, each in a failure domain of its own",
     GRADTAP_CLUSTER_UINT(replicas, 1, 8)},
    {"", "degraded_durable", "a step counts as durable on fewer owners while one is away; status says so",
     BoolField<ClusterConfig>{+[](ClusterConfig& cluster) -> bool& { return cluster.degraded_durable; }}},
    {"", "heartbeat_ms", "pause between heartbeats of the control connection",
     GRADTAP_CLUSTER_UINT(heartbeat_ms, 100, 60000)},
    {"", "down_after_ms", "silence after which a node counts as down",
     GRADTAP_CLUSTER_UINT(down_after_ms, 5000, 600000)},
};

const std::vector<Row<MemberSection>> kMemberRows = {
    {"member", "name", "node.name of this node", GRADTAP_MEMBER_TEXT(name, TextRule::kName), true},
    {"member", "link", "address:port on which it listens for its peers, and from which it reaches them",
     GRADTAP_MEMBER_TEXT(link, TextRule::kAddressPort), true},
    {"member", "http", "http://host:port of its side channel and status API",
     GRADTAP_MEMBER_TEXT(http, TextRule::kHttp), true},
    {"member", "domain", "failure domain: nodes that may die together share it",
     GRADTAP_MEMBER_TEXT(domain, TextRule::kName), true},
    {"member", "capacity", "its share of the shards, against the others'",
     UintField<MemberSection>{[](MemberSection& m) -> std::uint64_t& { return m.capacity; }, 1, 65'535}},
};

#undef GRADTAP_CLUSTER_UINT
#undef GRADTAP_MEMBER_TEXT
#undef GRADTAP_UINT
#undef GRADTAP_TEXT
#undef GRADTAP_CHOICE
#undef GRADTAP_JOB_UINT

template <class Owner>
ConfigKeyInfo describe(const Row<Owner>& row, Owner& defaults) {
  ConfigKeyInfo info{std::string(row.section), std::string(row.key), {}, {}, {}, std::string(row.meaning)};
  std::visit(
      [&]<class Field>(const Field& field) {
        if constexpr (std::is_same_v<Field, UintField<Owner>>) {
          info.type = "integer";
          info.range = fmt::format("{}..{}", field.min, field.max);
          info.default_value = fmt::format("{}", field.at(defaults));
        } else if constexpr (std::is_same_v<Field, BoolField<Owner>>) {
          info.type = "boolean";
          info.default_value = field.at(defaults) ? "true" : "false";
        } else if constexpr (std::is_same_v<Field, TextField<Owner>>) {
          info.type = "string";
          if (field.rule == TextRule::kName) info.range = "1 to 64 of A-Z a-z 0-9 . _ -";
          if (field.rule == TextRule::kHostPort) info.range = "host:port";
          if (field.rule == TextRule::kAddressPort) info.range = "address:port";
          if (field.rule == TextRule::kHttp) info.range = "http://host:port";
          info.default_value = fmt::format("\"{}\"", field.at(defaults));
        } else if constexpr (std::is_same_v<Field, ChoiceField<Owner>>) {
          info.type = "string";
          info.range = fmt::format("{}", fmt::join(field.words, ", "));
          info.default_value = fmt::format("\"{}\"", field.words[field.get(defaults)]);
        } else if constexpr (std::is_same_v<Field, AddressesField<Owner>>) {
          info.type = "list of strings";
          info.range = "2 to 4096 different IP addresses";
        } else {
          info.type = "\"all\" or list of integers";
          info.range = "ranks of endpoints";
          info.default_value = "\"all\"";
        }
      },
      row.field);
  if (row.required) info.default_value = "required";
  return info;
}

}  // namespace

std::span<const Row<NodeConfig>> node_rows() {
  return kNodeRows;
}
std::span<const Row<JobSection>> job_rows() {
  return kJobRows;
}
std::span<const Row<ClusterConfig>> cluster_rows() {
  return kClusterRows;
}
std::span<const Row<MemberSection>> member_rows() {
  return kMemberRows;
}

}  // namespace config_detail

std::vector<ConfigKeyInfo> config_keys() {
  NodeConfig node;
  JobSection job;
  std::vector<ConfigKeyInfo> keys;
  for (const auto& row : config_detail::node_rows()) keys.push_back(config_detail::describe(row, node));
  for (const auto& row : config_detail::job_rows()) keys.push_back(config_detail::describe(row, job));
  return keys;
}

namespace {

template <class Owner>
std::optional<std::uint64_t> number_of(std::span<const config_detail::Row<Owner>> rows, Owner owner,
                                       std::string_view key) {
  for (const auto& row : rows) {
    const auto* field = std::get_if<config_detail::UintField<Owner>>(&row.field);
    const bool named = key.starts_with(row.section) && key.substr(row.section.size()).starts_with('.') &&
                       key.substr(row.section.size() + 1) == row.key;
    if (field != nullptr && named) return field->at(owner);
  }
  return std::nullopt;
}

}  // namespace

std::optional<std::uint64_t> config_number(const NodeConfig& config, std::string_view key) {
  if (key.starts_with("job.") && !config.jobs.empty())
    return number_of(config_detail::job_rows(), config.jobs.front(), key);
  return number_of(config_detail::node_rows(), config, key);
}

std::vector<ConfigKeyInfo> cluster_config_keys() {
  ClusterConfig cluster;
  MemberSection member;
  std::vector<ConfigKeyInfo> keys;
  for (const auto& row : config_detail::cluster_rows()) keys.push_back(config_detail::describe(row, cluster));
  for (const auto& row : config_detail::member_rows()) keys.push_back(config_detail::describe(row, member));
  return keys;
}

}  // namespace gradtap
