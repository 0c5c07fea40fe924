#include "common/config_table.h"

#include <array>
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
    {"tap", "reorder_grace_ms", "how long a hole may still be filled by a late frame",
     GRADTAP_UINT(tap, reorder_grace_ms, 0, 60000)},
    {"tap", "reorder_grace_packets", "and how many later frames must have come",
     GRADTAP_UINT(tap, reorder_grace_packets, 0, 1000000)},
    {"tap", "idle_sleep_us_max", "longest sleep of an idle poller; 0 polls without sleep",
     GRADTAP_UINT(tap, idle_sleep_us_max, 0, 100000)},

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

    {"side_channel", "body_bytes_max", "largest request body",
     GRADTAP_UINT(side_channel, body_bytes_max, 64 * kKi, kGi)},
    {"side_channel", "connections_max", "open connections", GRADTAP_UINT(side_channel, connections_max, 1, 65536)},
    {"side_channel", "request_timeout_ms", "a request that takes longer is answered with TIMEOUT",
     GRADTAP_UINT(side_channel, request_timeout_ms, 100, 600000)},
    {"side_channel", "messages_lines_max", "messages of one POST",
     GRADTAP_UINT(side_channel, messages_lines_max, 1, 4096)},

    {"limits", "flows_max", "tracked flows of a queue; more are counted and ignored",
     GRADTAP_UINT(limits, flows_max, 16, 1048576)},
    {"limits", "layouts_max", "layouts remembered per lineage", GRADTAP_UINT(limits, layouts_max, 2, 65536)},
    {"limits", "pending_steps_max", "step messages that may wait for their bytes",
     GRADTAP_UINT(limits, pending_steps_max, 4, 1048576)},
    {"limits", "events", "events kept for the status API", GRADTAP_UINT(limits, events, 16, 1048576)},
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
};

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

}  // namespace config_detail

std::vector<ConfigKeyInfo> config_keys() {
  NodeConfig node;
  JobSection job;
  std::vector<ConfigKeyInfo> keys;
  for (const auto& row : config_detail::node_rows()) keys.push_back(config_detail::describe(row, node));
  for (const auto& row : config_detail::job_rows()) keys.push_back(config_detail::describe(row, job));
  return keys;
}

}  // namespace gradtap
