#include "apps/commands/capacity_command.h"

#include <algorithm>
#include <array>
#include <cmath>

#include <fmt/format.h>

#include "apps/commands/commands.h"
#include "apps/commands/node_client.h"
#include "capacity/node_fields.h"
#include "capacity/node_json.h"
#include "capacity/plan.h"
#include "common/number_text.h"

namespace gradtap::commands {

namespace {

using capacity::JobShape;
using capacity::NodeShape;
using nlohmann::json;

constexpr const char* kMeasured = "docs/performance.md, one core or disk of that machine";
constexpr const char* kAssumed = "assumed";

struct NodeFlag {
  const char* flag;
  const char* field;
  double standard;  // without a cluster
  const char* source;
  const char* meaning;
};

constexpr std::array<NodeFlag, 18> kNodeFlags = {{
    {"--memory", "memory_bytes", 256e9, kAssumed, "bytes of memory that jobs may take"},
    {"--disk", "disk_bytes", 8e12, kAssumed, "bytes of disk that jobs may take"},
    {"--cores", "cores", 32, kAssumed, "cores of a node"},
    {"--receive-queues", "receive_queues", 0, kAssumed, "receive queues, each with its core; default: not judged"},
    {"--threads", "worker_threads", 0, kAssumed, "threads that assemble, apply and digest; default: not judged"},
    {"--window-max", "window_bytes_max", 0, kAssumed, "assembly.window_bytes; default: what the steps take"},
    {"--hold-max", "hold_bytes_max", 0, kAssumed, "assembly.retain_bytes; default: what the steps take"},
    {"--ports", "mirror_ports", 1, kAssumed, "mirror ports of a node"},
    {"--port-rate", "mirror_port_bits_per_s", 100e9, kAssumed, "bit/s of a mirror port"},
    {"--link-rate", "link_bits_per_s", 100e9, kAssumed, "bit/s between nodes"},
    {"--memory-rate", "memory_bytes_per_s", 200e9, kAssumed, "bytes/s of the node's memory, read and written"},
    {"--disk-rate", "disk_write_bytes_per_s", 1267e6, kMeasured, "bytes/s written and synced"},
    {"--object-rate", "object_write_bytes_per_s", 552e6, kAssumed, "bytes/s of one node into the object store"},
    {"--receive-s-per-frame", "receive_s_per_frame", 107e-9, kMeasured, "seconds of a core for a frame"},
    {"--receive-s-per-byte", "receive_s_per_byte", 0.047e-9, kMeasured, "seconds of a core for a payload byte"},
    {"--assembly-rate", "place_bytes_per_s", 6.1e9, kMeasured, "final bytes/s that a core places or compares"},
    {"--apply-rate", "apply_parameters_per_s", 1.55e9, kMeasured, "parameters/s of a core, AdamW"},
    {"--digest-rate", "digest_bytes_per_s", 14.2e9, kMeasured, "bytes/s of state that a core digests"},
}};
static_assert(kNodeFlags.size() == capacity::kNodeFields.size());

const std::array<std::pair<std::string_view, std::vector<std::pair<std::string, double>>>, 5>& optimizers() {
  static const std::array<std::pair<std::string_view, std::vector<std::pair<std::string, double>>>, 5> kinds = {{
      {"sgd", {{"param", 4}}},
      {"sgd-momentum", {{"param", 4}, {"momentum_buffer", 4}}},
      {"adam", {{"param", 4}, {"exp_avg", 4}, {"exp_avg_sq", 4}}},
      {"adamw", {{"param", 4}, {"exp_avg", 4}, {"exp_avg_sq", 4}}},
      {"amsgrad", {{"param", 4}, {"exp_avg", 4}, {"exp_avg_sq", 4}, {"max_exp_avg_sq", 4}}},
  }};
  return kinds;
}

Status read_state(CapacityOptions& options) {
  JobShape& job = options.job;
  if (options.state.empty()) {
    for (const auto& [name, kinds] : optimizers())
      if (name == options.optimizer) job.state = kinds;
    return {};
  }
  job.state.clear();
  for (const std::string& text : options.state) {
    const std::size_t colon = text.rfind(':');
    const auto bytes =
        parse_integer<std::uint32_t>(colon == std::string::npos ? "" : std::string_view(text).substr(colon + 1));
    if (!bytes || colon == 0 || *bytes == 0)
      return fail(ErrorCode::kBadText, "a kind of state is not NAME:BYTES", "--state", "param:4", text.substr(0, 64));
    job.state.emplace_back(text.substr(0, colon), *bytes);
  }
  return {};
}

Status read_job(CapacityOptions& options) {
  JobShape& job = options.job;
  GRADTAP_TRY(read_state(options));
  const auto dtype = capacity::dtype_bytes(options.dtype);
  if (!dtype) return std::unexpected(dtype.error());
  const auto frame = capacity::frame_shape(options.frame);
  if (!frame) return std::unexpected(frame.error());
  const auto encapsulation = capacity::encapsulation_bytes(options.encapsulation);
  if (!encapsulation) return std::unexpected(encapsulation.error());
  job.gradient_bytes = *dtype;
  job.frame = *frame;
  job.encapsulation_bytes = *encapsulation;
  job.tap = options.tap == "spread" ? capacity::TapMode::kSpread : capacity::TapMode::kEach;
  job.mirrored_edges = options.edges > 0 ? options.edges : job.ranks;
  const int sizes = (options.parameters > 0) + (options.gradient_bytes > 0) + (options.moved_bytes > 0);
  if (sizes != 1)
    return fail(ErrorCode::kOutOfRange, "the size of the job is not said once", "plan capacity",
                "one of --parameters, --gradient-bytes, --moved-bytes", std::to_string(sizes) + " of them");
  const double ranks = std::max<std::uint32_t>(2, job.ranks);
  if (options.parameters > 0)
    job.parameters = options.parameters;
  else if (options.gradient_bytes > 0)
    job.parameters = options.gradient_bytes / job.gradient_bytes;
  else
    job.parameters = options.moved_bytes / (job.mirrored_edges * 2 * (ranks - 1) / ranks) / job.gradient_bytes;
  if (options.shard_elements > 0)
    job.shards = static_cast<std::uint64_t>(
        std::clamp(std::ceil(job.parameters / static_cast<double>(options.shard_elements)), 1.0, 1e9));
  return capacity::check(job);
}

double& field_of(NodeShape& node, std::string_view name) {
  const auto found = std::find_if(capacity::kNodeFields.begin(), capacity::kNodeFields.end(),
                                  [&](const auto& field) { return field.name == name; });
  return node.*found->at;
}

// What the live nodes say of themselves.
Result<std::vector<NodeShape>> ask_cluster(const std::string& endpoint, const NodeAccess& access) {
  const NodeClient client(endpoint, access);
  auto status = client.get("/v1/status");
  if (!status) return std::unexpected(status.error());
  std::vector<NodeShape> nodes;
  const auto take = [&](const json& body) -> Status {
    if (!body.is_object()) return {};
    const auto rates = body.find("rates");
    if (rates == body.end() || !rates->is_object() || !rates->value("measured", true))
      return fail(ErrorCode::kNodeBusy, "a node has not measured its rates", body.value("node", std::string("?")), {},
                  {}, "ask again in a second");
    auto node = capacity::node_from_json(*rates);
    if (!node) return std::unexpected(node.error());
    nodes.push_back(std::move(*node));
    return {};
  };
  GRADTAP_TRY(take(*status));
  if (const auto others = status->find("nodes"); others != status->end() && others->is_array())
    for (const json& other : *others) GRADTAP_TRY(take(other));
  return nodes;
}

struct Source {
  const char* field;
  double value;
  std::string source;
};

void print_table(const CapacityOptions& options, const capacity::CapacityPlan& plan,
                 const std::vector<Source>& sources) {
  using capacity::quantity;
  using capacity::Unit;
  const JobShape& job = options.job;
  fmt::print(
      "job: {:.4g} parameters, {} gradients ({} a step), {:.4g} B of state a parameter, {} ranks, {} edges "
      "mirrored, {}, encapsulation {}, a step each {}\n",
      job.parameters, options.dtype, quantity(job.parameters * job.gradient_bytes, Unit::kBytes), job.state_bytes(),
      job.ranks, job.mirrored_edges, job.frame.name, options.encapsulation,
      job.step_time_s > 0 ? fmt::format("{:.4g} s", job.step_time_s) : "(not said)");
  fmt::print("node:\n");
  for (const Source& source : sources)
    if (source.value > 0) fmt::print("  {:<26} {:<12.4g} {}\n", source.field, source.value, source.source);
  fmt::print("on {} node{}, of which the fullest owns {:.4g} of the state:\n", plan.nodes, plan.nodes == 1 ? "" : "s",
             plan.share);
  fmt::print("  {:<28} {:>12} {:>12} {:>8} {:>8}\n", "resource", "needed", "available", "used", "at most");
  for (const capacity::Row& row : plan.rows) {
    fmt::print("  {:<28} {:>12} {:>12} ", resource_name(row.resource), quantity(row.needed, row.unit),
               row.available > 0 ? quantity(row.available, row.unit) : "-");
    if (row.judged())
      fmt::print("{:>8.2f} {:>8.2f}{}\n", row.utilisation(), row.limit, row.fits() ? "" : "  DOES NOT FIT");
    else
      fmt::print("{:>8} {:>8}  not judged: {} is not known\n", "-", "-", row.unknown);
    for (const capacity::Part& part : row.parts)
      fmt::print("    {:<26} {:>12} = {}\n    {:<26} {:>12} = {}\n", part.name, quantity(part.value, row.unit),
                 part.formula, "", "", part.numbers);
  }
  if (plan.lag.unknown.empty()) {
    fmt::print("lag: durable {:.4g} s ({:.3g} steps)", plan.lag.durable_s, plan.lag.durable_steps);
    if (plan.lag.published_s > 0)
      fmt::print(", published {:.4g} s ({:.3g} steps)", plan.lag.published_s, plan.lag.published_steps);
    fmt::print("\n    = {}\n", plan.lag.formula);
  } else {
    fmt::print("lag: {} is not known\n", plan.lag.unknown);
  }
  fmt::print("verdict: {}\n", verdict(plan));
}

}  // namespace

void capacity_flags(CLI::App* command, CapacityOptions& options) {
  JobShape& job = options.job;
  const auto size = [&](const char* flag, double& value, const char* text) {
    command->add_option(flag, value, text)->check(CLI::Range(1.0, 1e18));
  };
  size("--parameters", options.parameters, "parameters of the job");
  size("--gradient-bytes", options.gradient_bytes, "or: bytes that are all-reduced in a step");
  size("--moved-bytes", options.moved_bytes, "or: payload that the mirrored ports show in a step");
  command->add_option("--dtype", options.dtype, "of gradients on the wire")
      ->check(CLI::IsMember({"float32", "bfloat16", "float16", "float64"}))
      ->capture_default_str();
  command->add_option("--optimizer", options.optimizer, "kinds of state, 4 B each")
      ->check(CLI::IsMember({"sgd", "sgd-momentum", "adam", "adamw", "amsgrad"}))
      ->capture_default_str();
  command->add_option("--state", options.state, "NAME:BYTES of a kind of state, instead of --optimizer (repeated)");
  command->add_option("--ranks", job.ranks, "ranks of the ring")
      ->check(CLI::Range(2U, 1'000'000U))
      ->capture_default_str();
  command->add_option("--step-time", job.step_time_s, "seconds of a step; without it rates are not judged")
      ->check(CLI::Range(1e-6, 1e6));
  command->add_option("--edges", options.edges, "directed edges of the ring that are mirrored; default: all")
      ->check(CLI::Range(1U, 1'000'000U));
  command->add_option("--frame", options.frame, "roce-1024, roce-2048, roce-4096, tcp-1500 or tcp-9000")
      ->capture_default_str();
  command
      ->add_option("--encapsulation", options.encapsulation,
                   "what the mirror adds: none, vlan, qinq, gre, erspan1, erspan2, erspan3 or vxlan")
      ->capture_default_str();
  command
      ->add_option("--tap", options.tap, "each: every node taps all; spread: a part each, owners get it over the link")
      ->check(CLI::IsMember({"each", "spread"}))
      ->capture_default_str();
  command->add_option("--replicas", job.replicas, "owners of a shard")
      ->check(CLI::Range(1U, 8U))
      ->capture_default_str();
  command->add_option("--shard-elements", options.shard_elements, "parameters of a shard; 0: as fine as one likes")
      ->capture_default_str();
  command->add_option("--publish-interval", job.publish_interval_steps, "steps between recovery points")
      ->check(CLI::Range(std::uint64_t{1}, std::uint64_t{1'000'000}))
      ->capture_default_str();
  command->add_option("--full-every", job.full_every_steps, "steps between full versions")
      ->check(CLI::Range(std::uint64_t{1}, std::uint64_t{1'000'000}))
      ->capture_default_str();
  command->add_option("--keep-fulls", job.keep_fulls, "full versions kept")
      ->check(CLI::Range(std::uint64_t{1}, std::uint64_t{1000}))
      ->capture_default_str();
  command->add_option("--window-steps", job.window_steps, "steps of op buffers at a tap")
      ->check(CLI::Range(0.0, 1e6))
      ->capture_default_str();
  command->add_option("--hold-steps", job.hold_steps, "steps kept for owners that are away")
      ->check(CLI::Range(0.0, 1e6))
      ->capture_default_str();
  command->add_option("--nodes", options.nodes, "default: as many as are needed; with --cluster: the live ones")
      ->check(CLI::Range(1U, capacity::kNodesMax));
  command->add_option("--token-file", options.access.token_file, "with --cluster: a read token of its nodes")
      ->envname("GRADTAP_TOKEN_FILE");
  command->add_option("--cluster", options.cluster, "gateway of a node: what the live nodes have, as they measured it");
  for (const NodeFlag& flag : kNodeFlags)
    command
        ->add_option_function<double>(
            flag.flag, [&options, field = flag.field](double value) { options.given[field] = value; },
            flag.standard > 0 ? fmt::format("{} [{:.4g}]", flag.meaning, flag.standard) : std::string(flag.meaning))
        ->check(CLI::Range(1e-15, capacity::kNumberMax));
  command->add_flag("--json", options.json, "machine-readable output");
}

int plan_capacity(CapacityOptions& options) {
  if (const Status read = read_job(options); !read) return unusable(read.error());
  NodeShape node;
  if (!options.cluster.empty()) {
    const auto nodes = ask_cluster(options.cluster, options.access);
    if (!nodes) return unusable(nodes.error());
    node = capacity::weakest(*nodes);
    if (options.nodes == 0) options.nodes = static_cast<std::uint32_t>(nodes->size());
  }
  std::vector<Source> sources;
  for (const NodeFlag& flag : kNodeFlags) {
    double& value = field_of(node, flag.field);
    std::string source = options.cluster.empty() ? flag.source : "measured by " + node.name;
    if (value <= 0) {
      value = flag.standard;
      source = flag.source;
    }
    if (const auto given = options.given.find(flag.field); given != options.given.end()) {
      value = given->second;
      source = std::string("flag ") + flag.flag;
    }
    sources.push_back({flag.field, value, std::move(source)});
  }
  const auto plan = capacity::plan_capacity(options.job, node, options.nodes);
  if (!plan) return unusable(plan.error());
  if (options.json) {
    json body = to_json(*plan);
    json given = json::object();
    for (const Source& source : sources)
      if (source.value > 0) given[source.field] = {{"value", source.value}, {"source", source.source}};
    body["node"] = std::move(given);
    body["parameters"] = options.job.parameters;
    body["gradient_bytes"] = options.job.parameters * options.job.gradient_bytes;
    fmt::print("{}\n", body.dump(1));
  } else {
    print_table(options, *plan, sources);
  }
  return plan->fits ? 0 : 1;
}

}  // namespace gradtap::commands
