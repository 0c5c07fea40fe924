#include "actors/limit_table.h"

#include <array>
#include <optional>
#include <string>

#include "actors/node_memory.h"
#include "actors/session_table.h"
#include "common/answer_fields.h"

namespace gradtap::actors {

namespace {

using nlohmann::json;

constexpr StatusFigure kNone{};

const std::array kLimitRows{
    // From the mirror to the op.
    LimitRow{"frame", "bytes", "tap.frame_bytes", 0, kNone, {"ingress", "oversized"}, "the frame is refused"},
    LimitRow{"packet buffers",
             "frames",
             "dpdk.mbufs",
             0,
             kNone,
             {"ingress", "no_buffers"},
             "frames wait in the kernel ring"},
    LimitRow{"kernel ring", "frames", "tap.ring_frames", 0, kNone, kNone,
             "the kernel drops frames: holes in their flows"},
    LimitRow{"credits",
             "bursts",
             "assembly.credits",
             0,
             {"ingress", "lent"},
             {"ingress", "credit_waits"},
             "the queue is not polled for assembly.credit_wait_ms"},
    LimitRow{"wait for a credit",
             "ms",
             "assembly.credit_wait_ms",
             0,
             kNone,
             {"ingress", "dropped_without_credit_segments"},
             "segments are dropped, OVERLOAD_SHED"},
    LimitRow{"flows",
             "flows",
             "limits.flows_max",
             0,
             {"ingress", "connections"},
             {"ingress", "refused_connections"},
             "further flows are ignored"},
    LimitRow{"reorder window",
             "bytes of a flow",
             "tap.reorder_window_bytes",
             0,
             kNone,
             {"ingress", "decoder.window_hits"},
             "the hole is given up"},
    LimitRow{"reorder windows together",
             "bytes of a queue",
             "tap.reorder_total_bytes",
             0,
             {"ingress", "waiting_bytes"},
             {"ingress", "waiting_refused"},
             "the hole is given up"},
    LimitRow{"wait for a late frame",
             "ms",
             "tap.reorder_grace_ms",
             0,
             kNone,
             {"ingress", "decoder.header_holes"},
             "the hole is definitive"},
    LimitRow{"op window",
             "bytes",
             "assembly.window_bytes",
             0,
             {"assembler", "memory_in_use"},
             {"assembler", "memory_refused"},
             "the oldest op that is not bound is shed"},
    LimitRow{"open ops",
             "ops",
             "assembly.window_ops",
             0,
             {"assembler", "open_ops"},
             {"assembler", "shed_window_ops"},
             "the oldest op that is not bound is shed"},
    LimitRow{"limbo",
             "bytes",
             "assembly.limbo_bytes",
             0,
             {"assembler", "limbo_used"},
             {"assembler", "limbo_refused"},
             "the oldest op in limbo is shed"},
    LimitRow{"fragments",
             "ranges of an op",
             "assembly.fragments_max",
             0,
             kNone,
             {"assembler", "shed_fragments"},
             "the op is shed"},
    LimitRow{"retention",
             "bytes",
             "assembly.retain_bytes",
             0,
             {"node", "retention.bytes"},
             {"node", "retention.evicted"},
             "the oldest step goes; its owner asks others, or takes a whole version"},
    // From the op to the disk.
    LimitRow{"layouts",
             "layouts",
             "limits.layouts_max",
             0,
             {"job", "binding.layouts"},
             {"job", "binding.layouts_evicted"},
             "one goes, and is asked for again when it is needed"},
    LimitRow{"step messages",
             "messages",
             "limits.pending_steps_max",
             0,
             {"job", "binding.messages_pending"},
             {"job", "binding.messages_refused"},
             "the step lacks its message, SCALARS_MISSING, until it comes again or a restart reads it from the store"},
    LimitRow{"wait for missing ranges",
             "ms",
             "job.grace_ms",
             0,
             kNone,
             {"job", "binding.drains"},
             "all queues are emptied; what is missing then is lost, or fetched"},
    LimitRow{"steps not durable",
             "steps of a shard",
             "store.flush_queue_steps",
             0,
             {"keeper", "queue"},
             {"owner", "waits_for_flush"},
             "the shard waits: FLUSH_LAG"},
    LimitRow{"free space",
             "bytes left",
             "store.min_free_bytes",
             0,
             {"keeper", "free_bytes"},
             {"keeper", "failures"},
             "nothing more is written: STORAGE_FULL; tried again"},
    LimitRow{"pause between commits that fail",
             "ms",
             "store.retry_ms_max",
             0,
             {"keeper", "retry_ms"},
             {"keeper", "failures"},
             "tried again without end"},
    LimitRow{"pause between uploads that fail",
             "ms",
             "objects.retry_ms_max",
             0,
             {"publisher", "retry_ms"},
             {"publisher", "failures"},
             "tried again without end"},
    LimitRow{"job memory",
             "bytes",
             "limits.memory_bytes",
             0,
             {"memory", "job_bytes"},
             {"memory", "refused"},
             "what asked goes without: named at each account"},
    LimitRow{"full versions in memory",
             "tries",
             "",
             1,
             kNone,
             {"owner", "waits_for_memory"},
             "the version comes with a later step; logs go on"},
    // Callers over HTTP.
    LimitRow{"connections",
             "connections",
             "side_channel.connections_max",
             0,
             kNone,
             {"gateway", "waits_for_thread"},
             "the one that has waited longest gives way"},
    LimitRow{"head of a request",
             "bytes",
             "side_channel.head_bytes_max",
             0,
             kNone,
             {"gateway", "long_heads"},
             "the connection is closed"},
    LimitRow{"body of a request",
             "bytes",
             "side_channel.body_bytes_max",
             0,
             kNone,
             {"gateway", "refused_bodies"},
             "413, unread"},
    LimitRow{"time of a request",
             "ms",
             "side_channel.request_timeout_ms",
             0,
             kNone,
             {"gateway", "late"},
             "the connection is closed"},
    LimitRow{"answer of an actor",
             "ms",
             "side_channel.answer_timeout_ms",
             0,
             kNone,
             {"gateway", "unanswered"},
             "503 NODE_BUSY"},
    LimitRow{"messages of a post",
             "messages",
             "side_channel.messages_lines_max",
             0,
             kNone,
             {"side_channel", "refused_limit"},
             "413, nothing is taken"},
    LimitRow{"sequence numbers ahead",
             "messages of a session",
             "",
             SessionTable::kAheadMax,
             kNone,
             {"side_channel", "refused_limit"},
             "the post is refused: LIMIT_REACHED"},
    LimitRow{"sessions",
             "sessions",
             "",
             SessionTable::kSessionsMax,
             {"side_channel", "sessions"},
             {"side_channel", "refused_limit"},
             "the attach is refused: LIMIT_REACHED"},
    LimitRow{"points read at once",
             "readers",
             "objects.readers_max",
             0,
             kNone,
             {"gateway", "point_reads_refused"},
             "503 NODE_BUSY after objects.reader_wait_ms"},
    LimitRow{"leases",
             "leases",
             "objects.leases_max",
             0,
             {"gateway", "leases.held"},
             {"gateway", "leases.refused"},
             "429, another node may have room"},
    LimitRow{
        "events", "events", "limits.events", 0, {"node", "events.kept"}, {"node", "events.dropped"}, "the oldest goes"},
    LimitRow{"access log",
             "bytes",
             "security.access_log_bytes",
             0,
             kNone,
             {"gateway", "state_reads.lost"},
             "a second file is begun; lines that could not be written are counted"},
    // Between nodes.
    LimitRow{"connections with a peer",
             "connections",
             "link.connections_max",
             0,
             {"link", "link.bulk_connections"},
             {"link", "link.waits_for_connection"},
             "the call waits; a peer that opens more is refused"},
    LimitRow{"chunks in flight",
             "chunks of an answer",
             "link.credits",
             0,
             kNone,
             {"link", "link.waits_for_credit"},
             "the sender waits"},
    LimitRow{"time of a call",
             "ms",
             "link.call_timeout_ms",
             0,
             kNone,
             {"link", "link.calls_timed_out"},
             "the call fails: TIMEOUT; the asker asks again"},
    LimitRow{"answer of a peer",
             "bytes",
             "link.answer_bytes_max",
             0,
             kNone,
             {"link", "link.refused_large"},
             "the call fails: LIMIT_REACHED"},
    LimitRow{"body of a peer's request",
             "bytes",
             "link.body_bytes_max",
             0,
             kNone,
             {"link", "link.refused_large"},
             "the connection is closed"},
    LimitRow{"connections without a hello",
             "connections",
             "link.hellos_max",
             0,
             kNone,
             {"link", "link.refused_busy"},
             "further ones are closed"},
    LimitRow{"time of a hello",
             "ms",
             "link.hello_timeout_ms",
             0,
             kNone,
             {"link", "link.hello_timeouts"},
             "the connection is closed"},
    LimitRow{"breaks of a call",
             "breaks in a row",
             "link.breaks_max",
             0,
             kNone,
             {"link", "link.breaks"},
             "the call fails: PEER_UNREACHABLE"},
    LimitRow{
        "silence of a peer", "ms", "cluster:down_after_ms", 0, kNone, {"node", "downs"}, "the peer counts as down"},
    LimitRow{"question to the nodes",
             "ms",
             "limits.answer_timeout_ms",
             0,
             kNone,
             {"node", "absences"},
             "it is listed as absent"},
    LimitRow{"measurement of an attach",
             "ms",
             "limits.rates_wait_ms",
             0,
             kNone,
             {"side_channel", "refused"},
             "it is judged without the rates"},
};

// Follows a path of keys; null where it leads nowhere.
const json* figure_at(const json& body, std::string_view path) {
  const json* at = &body;
  while (!path.empty()) {
    if (!at->is_object()) return nullptr;
    // Names of the node link's counters have dots of their own.
    if (const auto whole = at->find(std::string(path)); whole != at->end()) return &*whole;
    const std::size_t dot = path.find('.');
    const auto inner = at->find(std::string(path.substr(0, dot)));
    if (inner == at->end() || dot == std::string_view::npos) return nullptr;
    at = &*inner;
    path.remove_prefix(dot + 1);
  }
  return at;
}

std::optional<std::uint64_t> number_at(const json& body, std::string_view path) {
  const json* const found = figure_at(body, path);
  if (found == nullptr || !answer_fields::is_number(*found)) return std::nullopt;
  return found->get<std::uint64_t>();
}

json figure(const json& status, const StatusFigure& wanted) {
  if (wanted.part.empty() || !status.is_object()) return nullptr;
  const auto inside = [&](const char* key) -> json {
    const auto part = status.find(key);
    const auto found = part == status.end() ? std::nullopt : number_at(*part, wanted.key);
    return found ? json(*found) : json(nullptr);
  };
  if (wanted.part == "node") {
    const auto found = number_at(status, wanted.key);
    return found ? json(*found) : json(nullptr);
  }
  if (wanted.part == "link" || wanted.part == "memory") return inside(std::string(wanted.part).c_str());
  if (wanted.part == "job") {
    const auto jobs = answer_fields::objects(status, "jobs");
    const auto found = jobs.empty() ? std::nullopt : number_at(jobs.front(), wanted.key);
    return found ? json(*found) : json(nullptr);
  }
  std::optional<std::uint64_t> sum;
  const json actors = answer_fields::field(status, "actors");
  if (!actors.is_object()) return nullptr;
  for (const auto& [name, body] : actors.items()) {
    if (name != wanted.part && !name.starts_with(std::string(wanted.part) + ".")) continue;
    if (const auto found = number_at(body, wanted.key)) sum = sum.value_or(0) + *found;
  }
  return sum ? json(*sum) : json(nullptr);
}

std::optional<std::uint64_t> value_of(const LimitRow& row, const NodeConfig& config, const ClusterConfig& cluster) {
  if (row.key.empty()) return row.builtin;
  if (row.key == "cluster:down_after_ms") return cluster.down_after_ms;
  if (row.key == "limits.memory_bytes") return job_memory_bytes(config);  // 0 is written for what the machine has
  return config_number(config, row.key);
}

}  // namespace

std::span<const LimitRow> limit_rows() {
  return kLimitRows;
}

json limits_json(const NodeConfig& config, const ClusterConfig& cluster, const json& status) {
  json rows = json::array();
  for (const LimitRow& row : kLimitRows) {
    const auto value = value_of(row, config, cluster);
    rows.push_back({{"name", row.name},
                    {"unit", row.unit},
                    {"key", row.key.starts_with("cluster:") ? row.key.substr(8) : row.key},
                    {"limit", value ? json(*value) : json(nullptr)},
                    {"used", figure(status, row.used)},
                    {"hits", figure(status, row.hits)},
                    {"then", row.then}});
  }
  return rows;
}

}  // namespace gradtap::actors
