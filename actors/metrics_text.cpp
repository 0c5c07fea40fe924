#include "actors/metrics_text.h"

#include <algorithm>
#include <array>
#include <map>
#include <string_view>
#include <utility>
#include <vector>

#include <nlohmann/json.hpp>
#include <prometheus/text_serializer.h>

#include "common/answer_fields.h"
#include "common/gap_reason.h"
#include "common/version.h"

namespace gradtap::actors {

namespace {

using namespace answer_fields;
using nlohmann::json;
using prometheus::ClientMetric;
using prometheus::MetricFamily;
using prometheus::MetricType;

constexpr MetricType kCounter = MetricType::Counter;
constexpr MetricType kGauge = MetricType::Gauge;

struct MetricRow {
  const char* name;
  MetricType type;
  const char*
      part;  // "node", "memory", "job", "binding" (of the job), or an actor; of several actors each has a label `part`
  const char* key;
  double scale;
  const char* help;
};

// Kept in step with the table of docs/operations.md by tests/floors/docs_test.py.
constexpr std::array kRows{
    MetricRow{"gradtap_uptime_seconds", kGauge, "node", "uptime_s", 1, "since this process became ready"},
    MetricRow{"gradtap_memory_bytes", kGauge, "memory", "in_use_bytes", 1, "taken of the node's ledger"},
    MetricRow{"gradtap_memory_limit_bytes", kGauge, "memory", "limit_bytes", 1, "of the ledger"},
    MetricRow{"gradtap_memory_refused_total", kCounter, "memory", "refused", 1,
              "times something asked for more than was left"},
    MetricRow{"gradtap_resident_bytes", kGauge, "memory", "resident_bytes", 1, "of this process, as the kernel counts"},
    MetricRow{"gradtap_epoch", kGauge, "node", "epoch", 1, "number of the epoch in force here"},
    MetricRow{"gradtap_training_step", kGauge, "job", "training", 1, "newest step seen"},
    MetricRow{"gradtap_verified_step", kGauge, "job", "verified", 1, "the replica is complete at this step"},
    MetricRow{"gradtap_durable_step", kGauge, "job", "durable", 1, "flushed and synced"},
    MetricRow{"gradtap_published_step", kGauge, "job", "published", 1, "newest recovery point"},
    MetricRow{"gradtap_lag_steps", kGauge, "job", "lag_steps", 1, "training minus verified"},
    MetricRow{"gradtap_shards", kGauge, "job", "shards", 1, "of the job"},
    MetricRow{"gradtap_shards_here", kGauge, "job", "shards_here", 1, "held by this node"},
    MetricRow{"gradtap_shards_syncing", kGauge, "job", "shards_brought_up", 1, "being copied to this node"},
    MetricRow{"gradtap_steps_fetched_total", kCounter, "binding", "fetched_steps", 1,
              "steps that this node's tap did not show whole"},
    MetricRow{"gradtap_steps_skipped_total", kCounter, "binding", "skipped_steps", 1,
              "steps that the trainer did not apply"},
    MetricRow{"gradtap_queue_drains_total", kCounter, "binding", "drains", 1,
              "times all queues were emptied to prove an absence"},
    MetricRow{"gradtap_step_messages_refused_total", kCounter, "binding", "messages_refused", 1,
              "step messages beyond what is kept"},
    MetricRow{"gradtap_tap_frames_total", kCounter, "ingress", "frames", 1, "frames polled from the mirror port"},
    MetricRow{"gradtap_tap_oversized_frames_total", kCounter, "ingress", "oversized", 1,
              "frames larger than tap.frame_bytes"},
    MetricRow{"gradtap_tap_credit_waits_total", kCounter, "ingress", "credit_waits", 1,
              "bursts that found no credit at once"},
    MetricRow{"gradtap_tap_shed_segments_total", kCounter, "ingress", "dropped_without_credit_segments", 1,
              "segments dropped because assembly was too slow"},
    MetricRow{"gradtap_tap_shed_bytes_total", kCounter, "ingress", "dropped_without_credit_bytes", 1, "bytes of those"},
    MetricRow{"gradtap_assembly_bytes_total", kCounter, "assembler", "bytes", 1, "payload bytes that reached assembly"},
    MetricRow{"gradtap_assembly_duplicate_bytes_total", kCounter, "assembler", "duplicate_bytes", 1,
              "bytes that were there already"},
    MetricRow{"gradtap_assembly_conflicts_total", kCounter, "assembler", "conflicts", 1,
              "bytes that contradict earlier ones"},
    MetricRow{"gradtap_assembly_memory_bytes", kGauge, "assembler", "memory_in_use", 1, "of the assembly window"},
    MetricRow{"gradtap_assembly_memory_limit_bytes", kGauge, "assembler", "memory_limit", 1, "assembly.window_bytes"},
    MetricRow{"gradtap_assembly_memory_refused_total", kCounter, "assembler", "memory_refused", 1,
              "times the window had no room"},
    MetricRow{"gradtap_assembly_shed_ops_total", kCounter, "assembler", "shed_window_ops", 1,
              "operations given up for room"},
    MetricRow{"gradtap_assembly_shed_bytes_total", kCounter, "assembler", "shed_window_bytes", 1, "bytes of those"},
    MetricRow{"gradtap_assembly_ops_bound_total", kCounter, "assembler", "ops_bound", 1,
              "operations proven to be a bucket of a step"},
    MetricRow{"gradtap_store_commits_total", kCounter, "keeper", "commits", 1, "synced groups of shard steps"},
    MetricRow{"gradtap_store_log_bytes_total", kCounter, "keeper", "log_bytes", 1, "gradient bytes made durable"},
    MetricRow{"gradtap_store_full_bytes_total", kCounter, "keeper", "full_bytes", 1,
              "bytes of full versions made durable"},
    MetricRow{"gradtap_store_queue", kGauge, "keeper", "queue", 1, "shard steps that wait for the disk"},
    MetricRow{"gradtap_store_failures_total", kCounter, "keeper", "failures", 1, "commits and reads that failed"},
    MetricRow{"gradtap_store_free_bytes", kGauge, "keeper", "free_bytes", 1, "of the file system of node.data_dir"},
    MetricRow{"gradtap_points_published_total", kCounter, "publisher", "points", 1,
              "recovery points made by this node"},
    MetricRow{"gradtap_points_deleted_total", kCounter, "publisher", "points_deleted", 1, "by retention"},
    MetricRow{"gradtap_publish_failures_total", kCounter, "publisher", "failures", 1,
              "recovery points that could not be written"},
    MetricRow{"gradtap_publish_last_seconds", kGauge, "publisher", "publish_us_last", 1e-6,
              "how long the newest point took"},
    MetricRow{"gradtap_side_channel_messages_total", kCounter, "side_channel", "messages", 1,
              "messages of the trainer"},
    MetricRow{"gradtap_side_channel_refused_total", kCounter, "side_channel", "refused", 1, "messages refused"},
    MetricRow{"gradtap_side_channel_store_failures_total", kCounter, "side_channel", "store_failures", 1,
              "side values that could not be stored"},
    MetricRow{"gradtap_http_requests_total", kCounter, "gateway", "requests", 1, "requests of every kind"},
    MetricRow{"gradtap_http_refused_bodies_total", kCounter, "gateway", "refused_bodies", 1,
              "bodies larger than side_channel.body_bytes_max"},
    MetricRow{"gradtap_http_thread_waits_total", kCounter, "gateway", "waits_for_thread", 1,
              "connections that found every thread busy"},
    MetricRow{"gradtap_fetched_gradient_bytes_total", kCounter, "fetcher", "gradient_bytes", 1, "gradients from peers"},
    MetricRow{"gradtap_fetched_version_bytes_total", kCounter, "fetcher", "version_bytes", 1,
              "full versions from peers"},
    MetricRow{"gradtap_fetch_failures_total", kCounter, "fetcher", "failures", 1, "requests to peers that failed"},
    MetricRow{"gradtap_replication_failures_total", kCounter, "replicator", "failures", 1,
              "side values that a peer did not store"},
    MetricRow{"gradtap_epoch_store_failures_total", kCounter, "epochs", "failures", 1,
              "epochs that could not be read or made"},
    MetricRow{"gradtap_actor_deaths_total", kCounter, "supervisor", "deaths", 1, "an actor that died: the node ends"},
    // With labels of their own, filled below.
    MetricRow{"gradtap_build_info", kGauge, "", "", 1, "1; the label says the version"},
    MetricRow{"gradtap_gap", kGauge, "", "", 1, "1 while this reason is given for a number that is behind"},
    MetricRow{"gradtap_gap_since_step", kGauge, "", "", 1, "since which step, while it is given"},
    MetricRow{"gradtap_absent_actors", kGauge, "", "", 1, "actors of this node that did not answer in time"},
    MetricRow{"gradtap_warnings", kGauge, "", "", 1, "warnings in the status"},
    MetricRow{"gradtap_home", kGauge, "", "", 1, "1: this node is the home of the job"},
    MetricRow{"gradtap_member_up", kGauge, "", "", 1, "1: this node sees the member up"},
};

// Counters of MetricsRegistry that are no counters.
constexpr std::array<std::string_view, 3> kRegistryGauges{"link.bulk_connections", "link.tunnels",
                                                          "link.certificate_expires_s"};

double value_of(const json& value) {
  if (value.is_boolean()) return value.get<bool>() ? 1 : 0;
  return value.get<double>();
}

class Families {
 public:
  void add(const MetricRow& row, double value, std::vector<ClientMetric::Label> labels) {
    add(row.name, row.type, row.help, value, std::move(labels));
  }
  void add(const std::string& name, MetricType type, const std::string& help, double value,
           std::vector<ClientMetric::Label> labels) {
    const auto [at, fresh] = places_.try_emplace(name, list_.size());
    if (fresh) list_.push_back({name, help, type, {}});
    ClientMetric metric;
    metric.label = std::move(labels);
    (type == kCounter ? metric.counter.value : metric.gauge.value) = value;
    list_[at->second].metric.push_back(std::move(metric));
  }
  void add_named(const char* name, double value, std::vector<ClientMetric::Label> labels) {
    for (const MetricRow& row : kRows)
      if (std::string_view(row.name) == name) return add(row, value, std::move(labels));
  }
  [[nodiscard]] std::string text() const { return prometheus::TextSerializer().Serialize(list_); }

 private:
  std::vector<MetricFamily> list_;
  std::map<std::string, std::size_t> places_;
};

void add_from(Families& families, const MetricRow& row, const json& object, std::vector<ClientMetric::Label> labels) {
  if (!object.is_object()) return;
  const auto it = object.find(row.key);
  if (it == object.end() || !(it->is_number() || it->is_boolean())) return;
  families.add(row, value_of(*it) * row.scale, std::move(labels));
}

// "link.bytes_in" becomes gradtap_link_bytes_in_total.
void add_registry(Families& families, const json& registry, const std::vector<ClientMetric::Label>& labels) {
  for (const auto& [name, value] : registry.items()) {
    if (!value.is_number()) continue;
    std::string series = "gradtap_" + name;
    std::replace(series.begin(), series.end(), '.', '_');
    const bool gauge = std::find(kRegistryGauges.begin(), kRegistryGauges.end(), name) != kRegistryGauges.end();
    if (name == "link.certificate_expires_s")
      series = "gradtap_link_certificate_expires_timestamp_seconds";
    else if (!gauge)
      series += "_total";
    families.add(series, gauge ? kGauge : kCounter, "the node link's " + name, value_of(value), labels);
  }
}

void add_gaps(Families& families, const json& job, const std::vector<ClientMetric::Label>& labels) {
  std::map<unsigned, double> since;
  for (const json& gap : list(job, "gaps"))
    if (gap.is_object() && gap.contains("reason") && gap["reason"].is_number() && gap.contains("since_step") &&
        gap["since_step"].is_number())
      since.emplace(gap["reason"].get<unsigned>(), gap["since_step"].get<double>());
  const std::string_view unknown = gap_reason_name(static_cast<GapReason>(255));
  for (unsigned code = 1; code < 255; ++code) {
    const std::string name(gap_reason_name(static_cast<GapReason>(code)));
    if (name == unknown) continue;
    auto with_reason = labels;
    with_reason.push_back({"reason", name});
    const auto given = since.find(code);
    families.add_named("gradtap_gap", given != since.end() ? 1 : 0, with_reason);
    if (given != since.end()) families.add_named("gradtap_gap_since_step", given->second, with_reason);
  }
}

}  // namespace

std::string metrics_text(const json& status) {
  Families families;
  if (!status.is_object()) return families.text();
  const std::string node = text(status, "node");
  const std::vector<ClientMetric::Label> node_labels = {{"node", node}};
  families.add_named("gradtap_build_info", 1, {{"node", node}, {"version", kVersion}});
  const json actors = status.value("actors", json::object());
  const json jobs = list(status, "jobs");
  const json job = jobs.empty() || !jobs[0].is_object() ? json::object() : jobs[0];
  const json binding = job.contains("binding") && job["binding"].is_object() ? job["binding"] : json::object();
  auto job_labels = node_labels;
  job_labels.push_back({"training_job", text(job, "job")});
  job_labels.push_back({"lineage", job.contains("lineage") ? job["lineage"].dump() : "0"});
  for (const MetricRow& row : kRows) {
    const std::string_view part = row.part;
    if (part.empty()) continue;
    if (part == "node") {
      add_from(families, row, status, node_labels);
    } else if (part == "memory") {
      add_from(families, row, field(status, "memory"), node_labels);
    } else if (part == "job") {
      add_from(families, row, job, job_labels);
    } else if (part == "binding") {
      add_from(families, row, binding, job_labels);
    } else if (actors.is_object()) {
      for (const auto& [name, body] : actors.items()) {
        const bool one_of = name.starts_with(std::string(part) + ".");
        if ((name != part && !one_of) || !body.is_object()) continue;
        auto labels = node_labels;
        if (one_of) labels.push_back({"part", name.substr(part.size() + 1)});
        add_from(families, row, body, std::move(labels));
      }
    }
  }
  add_gaps(families, job, job_labels);
  families.add_named("gradtap_absent_actors", static_cast<double>(list(status, "absent").size()), node_labels);
  families.add_named("gradtap_warnings", static_cast<double>(list(status, "warnings").size()), node_labels);
  const json members = list(status, "members");
  families.add_named("gradtap_home", members.empty() || text(status, "home") == node ? 1 : 0, node_labels);
  for (const json& member : members)
    if (member.is_object() && text(member, "membership") != "out")
      families.add_named("gradtap_member_up", text(member, "state") == "up" ? 1 : 0,
                         {{"node", node}, {"member", text(member, "name")}});
  if (const auto link = status.find("link"); link != status.end() && link->is_object())
    add_registry(families, *link, node_labels);
  return families.text();
}

}  // namespace gradtap::actors
