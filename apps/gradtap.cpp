// gradtap: the command line. Wiring only; the commands stand in commands/.
#include <cstdio>
#include <tuple>

#include <CLI/CLI.hpp>

#include "apps/commands/ca_command.h"
#include "apps/commands/capacity_command.h"
#include "apps/commands/commands.h"
#include "apps/commands/doctor_command.h"
#include "apps/commands/generate_command.h"
#include "apps/commands/nodes_command.h"
#include "apps/commands/points_command.h"
#include "apps/commands/secret_command.h"

int main(int argc, char** argv) {
  using namespace gradtap::commands;
  CLI::App app{"gradtap: look at and take out what gradtap nodes and recovery points hold"};
  app.require_subcommand(1);
  Common common;
  auto add_access = [](CLI::App* command, NodeAccess& access) {
    command->add_option("--token-file", access.token_file, "read or admin token of the node, from another host")
        ->envname("GRADTAP_TOKEN_FILE");
    command->add_option("--secret-file", access.secret_file, "the job's key, for its state")
        ->envname("GRADTAP_SECRET_FILE");
  };
  auto add_common = [&](CLI::App* command) {
    add_access(command, common.access);
    command->add_option("--endpoint", common.endpoint, "gateway of a node, http://host:port")->capture_default_str();
    command->add_option("--job", common.job, "job name; default: the node's only job");
    command->add_flag("--json", common.json, "machine-readable output");
  };

  bool watch = false;
  unsigned interval_ms = 1000;
  auto* status_command = app.add_subcommand("status", "the four step numbers and why they differ");
  add_common(status_command);
  status_command->add_flag("--watch", watch, "repeat until interrupted");
  status_command->add_option("--interval-ms", interval_ms, "pause between repeats")
      ->check(CLI::Range(100U, 60'000U))
      ->capture_default_str();

  auto* shards_command = app.add_subcommand("shards", "every shard on every node: role, version, what it can produce");
  add_common(shards_command);
  auto* placement_command = app.add_subcommand("placement", "who holds which shard, and how far hand-offs are");
  add_common(placement_command);
  auto* limits_command =
      app.add_subcommand("limits", "every bound of the node: its value, what is in it, how often it was hit");
  add_common(limits_command);
  auto* epoch_command = app.add_subcommand("epoch", "the epoch in force: members, and owners of each shard");
  add_common(epoch_command);
  std::uint64_t shard = 0;
  std::uint64_t version_step = 0;
  auto* version_command = app.add_subcommand("version", "digest of a shard at a step, and who can produce it");
  version_command->add_option("shard", shard, "number of the shard")->required();
  version_command->add_option("step", version_step, "which step")->required();
  add_common(version_command);

  std::uint64_t from = 0;
  std::uint64_t to = ~std::uint64_t{0};
  auto* digests_command = app.add_subcommand("digests", "state root after each step");
  add_common(digests_command);
  digests_command->add_option("--from", from, "first step");
  digests_command->add_option("--to", to, "last step");

  auto* events_command = app.add_subcommand("events", "what the nodes noted lately");
  add_common(events_command);

  auto* nodes_command = app.add_subcommand("nodes", "members of the cluster: list, add, drain, remove, replace");
  nodes_command->require_subcommand(1);
  auto* nodes_list_command = nodes_command->add_subcommand("list", "who belongs to it, and who holds how many shards");
  add_common(nodes_list_command);
  NodesOptions member;
  auto add_change = [&](const char* name, const char* help) {
    auto* command = nodes_command->add_subcommand(name, help);
    command->add_option("name", member.name, "node.name of the node")->required();
    command->add_option("--endpoint", common.endpoint, "gateway of any member, http://host:port")
        ->capture_default_str();
    command->add_option("--token-file", common.access.token_file, "admin token of the members, from another host")
        ->envname("GRADTAP_TOKEN_FILE");
    command->add_option("--wait-s", member.wait_s, "how long to wait until shards are where they belong; 0: not at all")
        ->capture_default_str();
    command->callback([&member, name] { member.action = name; });
    return command;
  };
  auto add_facts = [&](CLI::App* command) {
    command->add_option("--link", member.link, "where the node listens for peers, ADDRESS:PORT");
    command->add_option("--http", member.http, "its gateway, http://HOST:PORT");
    command->add_option("--domain", member.domain, "failure domain: nodes that may die together share it");
    command->add_option("--capacity", member.capacity, "shards are spread in proportion to it; default: 1")
        ->check(CLI::Range(1U, 65'535U));
  };
  add_facts(add_change("add", "a new member, or one that was out or draining"));
  auto* drain_command = add_change("drain", "give all its shards to the others, then it may be stopped");
  drain_command->add_flag("--check", member.check,
                          "only say whether it is safe to take it down now, and what it costs");
  drain_command->add_flag("--json", common.json, "with --check: machine-readable output");
  drain_command->add_flag("--force", member.force, "although fewer members than replicas stay");
  add_change("remove", "take a member out as it stands: one that is dead")
      ->add_flag("--force", member.force, "although something that only it has may be lost");
  add_facts(add_change("replace", "another machine, or an empty disk, under the same name"));

  PointOptions point;
  auto add_point = [&](CLI::App* command) {
    add_access(command, point.access);
    command->add_option("--source", point.source, "directory of an object store, or a node's gateway http://host:port")
        ->required();
    command->add_option("--job", point.job, "job name; default: the source's only job");
    command->add_flag("--json", point.json, "machine-readable output");
  };
  auto add_name = [&](CLI::App* command) {
    command->add_option("--lineage", point.lineage, "default: the newest one, then those it was restored from");
    command->add_option("--step", point.step, "default: the newest valid point");
  };
  std::string out_file;
  auto* points_command = app.add_subcommand("points", "recovery points: list, show, verify, side, hold");
  points_command->require_subcommand(1);
  auto* list_command = points_command->add_subcommand("list", "all points and which one a restore takes");
  add_point(list_command);
  list_command->add_option("--lineage", point.lineage, "what a restore of this lineage takes");
  auto* show_command = points_command->add_subcommand("show", "the record of a point");
  add_point(show_command);
  add_name(show_command);
  bool verify_all = false;
  auto* verify_command = points_command->add_subcommand("verify", "read every byte back and rebuild every shard");
  add_point(verify_command);
  add_name(verify_command);
  verify_command->add_flag("--all", verify_all, "every point, not only the newest");
  std::uint32_t rank = 0;
  auto* side_command = points_command->add_subcommand("side", "write the side state of a rank as safetensors");
  add_point(side_command);
  add_name(side_command);
  side_command->add_option("--rank", rank, "which rank")->required();
  side_command->add_option("--out", out_file, "file to write")->required();

  std::string holder;
  unsigned renew_s = 30;
  auto* hold_command =
      points_command->add_subcommand("hold", "keep a point from being deleted until standard input is closed");
  hold_command->add_option("--source", point.source, "directory of an object store, which must be writable")
      ->required();
  hold_command->add_option("--job", point.job, "job name")->required();
  hold_command->add_option("--lineage", point.lineage, "lineage of the point")->required();
  hold_command->add_option("--step", point.step, "step of the point")->required();
  hold_command->add_option("--holder", holder, "who holds it, for people to read")->required();
  hold_command->add_option("--renew-s", renew_s, "pause between renewals")
      ->check(CLI::Range(1U, 3600U))
      ->capture_default_str();

  auto* lineages_command = app.add_subcommand("lineages", "the job's lineages and their points");
  add_point(lineages_command);

  bool optimizer = false;
  std::string format = "safetensors";
  auto* export_command = app.add_subcommand("export", "write a recovery point, or a node's durable step, to a file");
  auto* export_source = export_command->add_option(
      "--source", point.source, "directory of an object store, or a node's gateway: a recovery point of it");
  auto* export_endpoint = export_command->add_option("--endpoint", common.endpoint,
                                                     "gateway of a node: a durable step of it; needs --step");
  export_endpoint->capture_default_str()->excludes(export_source);
  add_access(export_command, common.access);
  export_command->add_option("--job", common.job, "job name; default: the only job");
  export_command->add_flag("--json", point.json, "machine-readable output (recovery points)")->needs(export_source);
  export_command->add_option("--lineage", point.lineage, "default: the newest one, then those it was restored from")
      ->needs(export_source);
  export_command->add_option("--step", point.step, "which step; default with --source: the newest valid point");
  export_command->add_option("--out", out_file, "file to write; /dev/fd/N: an open one, in place, not synced")
      ->required();
  export_command->add_option("--format", format, "safetensors, or torch: what plain torch.load reads")
      ->check(CLI::IsMember({"safetensors", "torch"}))
      ->needs(export_source)
      ->capture_default_str();
  export_command->add_flag("--optimizer", optimizer, "moments and counters too");
  ExportOptions exported;
  export_command
      ->add_option("--threads", exported.threads,
                   "shards of a directory rebuilt at once; default: the cores, at most 8")
      ->check(CLI::Range(1U, 1024U));
  export_command
      ->add_option("--memory-mb", exported.memory_mb,
                   "rebuilt shards kept until they are written; default: a quarter of the free memory")
      ->check(CLI::Range(1U, 1U << 30));

  CapacityOptions planned;
  auto* plan_command = app.add_subcommand("plan", "questions before anything is changed: capacity");
  plan_command->require_subcommand(1);
  auto* capacity_command =
      plan_command->add_subcommand("capacity", "does a job fit, what binds, how many nodes (docs/capacity.md)");
  capacity_flags(capacity_command, planned);

  DoctorOptions doctor_options;
  auto* doctor_command = app.add_subcommand("doctor",
                                            "can this machine be the node of a configuration: each check with a "
                                            "verdict and a remedy");
  doctor_command->add_option("--config", doctor_options.config, "node configuration (TOML)")->required();
  doctor_command->add_option("--seconds", doctor_options.seconds, "how long to listen to the mirror")
      ->check(CLI::Range(1U, 600U))
      ->capture_default_str();
  doctor_command->add_flag("--json", doctor_options.json, "machine-readable output");

  CaOptions ca_options;
  auto* ca_command = app.add_subcommand("ca", "certificates of the node link (docs/security.md)");
  ca_flags(ca_command, ca_options);

  SecretOptions secret_options;
  auto* secret_command = app.add_subcommand("secret", "keys of jobs and tokens of nodes (docs/security.md)");
  secret_flags(secret_command, secret_options);

  InspectOptions inspect_options;
  auto* inspect_command = app.add_subcommand("inspect", "what a capture holds: flows, ops, completeness");
  inspect_command->add_option("file", inspect_options.file, "a pcap or pcapng file")->required();
  inspect_command->add_option("--bucket", inspect_options.buckets,
                              "RoCE: an all-reduce to look for, ELEMENTS:DTYPE (may be repeated)");
  inspect_command->add_option("--nccl", inspect_options.nccl, "RoCE: NCCL's version, where several layouts fit");
  inspect_command->add_flag("--completing-send", inspect_options.completing_send,
                            "RoCE: the trainer sends the chunk that its own link lacks point to point");
  inspect_command->add_flag("--json", inspect_options.json, "machine-readable output");
  inspect_command->add_option("--dump", inspect_options.dump_directory, "write the bytes of all-reduces there");
  inspect_command->add_option("--ranks", inspect_options.ranks,
                              "addresses in rank order, comma-separated; default: in ascending order");
  inspect_command->add_flag("--required-checksums", inspect_options.required_checksums,
                            "drop frames whose TCP checksum does not verify");

  GenerateOptions generated;
  auto* generate_command = app.add_subcommand("generate", "write the RoCE traffic of NCCL jobs (docs/generate.md)");
  generate_command->add_option("file", generated.file, "the .pcap file to write");
  auto* live = generate_command->add_option("--live", generated.live_interface, "send out of this interface instead");
  generate_command
      ->add_option("--from", generated.from, "requests of a training script: a Unix socket to listen on, or -")
      ->needs(live);
  generate_command->add_flag("--from-file", generated.from_file, "--from names a file of requests")->needs(live);
  generate_command->add_option("--bytes-per-second", generated.bytes_per_second, "0: as fast as it goes")
      ->needs(live)
      ->capture_default_str();
  generate_command->add_option("--max-request-bytes", generated.max_request_bytes, "longer requests are refused")
      ->needs(live)
      ->capture_default_str();
  generate_command->add_option("--ranks", generated.ranks, "ranks of each job")->capture_default_str();
  generate_command->add_option("--channels", generated.channels, "connected ring channels")
      ->check(CLI::Range(1U, 64U))
      ->capture_default_str();
  generate_command->add_option("--nccl", generated.nccl, "version, which decides the layout")->capture_default_str();
  generate_command->add_option("--hosts", generated.hosts,
                               "addresses in rank order, comma-separated; default: 10.1.0.1, ...");
  generate_command->add_flag("--ipv6", generated.v6, "invented addresses are IPv6 ones");
  generate_command->add_option("--mtu", generated.mtu, "path MTU")
      ->check(CLI::IsMember({256, 512, 1024, 2048, 4096}))
      ->capture_default_str();
  generate_command
      ->add_option("--ll-max-bytes", generated.ll_max_bytes, "ops of up to so many bytes go by LL, others by Simple")
      ->capture_default_str();
  generate_command->add_option("--simple-threads", generated.simple_threads, "worker threads of Simple")
      ->check(CLI::IsMember({64, 128, 256, 512}))
      ->capture_default_str();
  generate_command->add_option("--first-qpn", generated.first_qpn, "queue pair number of the first connection")
      ->check(CLI::Range(2U, 0xffffffU))
      ->capture_default_str();
  generate_command->add_option("--first-psn", generated.first_psn, "of every connection; close to 16777215 it wraps")
      ->check(CLI::Range(0U, 0xffffffU))
      ->capture_default_str();
  generate_command->add_option("--manner", generated.manner, "how NCCL runs: what is no ring is refused by a node")
      ->check(CLI::IsMember({"ring", "ll128", "tree"}));
  generate_command->add_option("--queue-pairs", generated.queue_pairs, "of each connection, more than one is refused");
  generate_command->add_flag("--cut-over-queue-pairs", generated.cut_over_queue_pairs,
                             "a piece of each message on each queue pair, not by turns");
  generate_command->add_option("--style", generated.style, "how writes of more than 8192 bytes end")
      ->check(CLI::IsMember({"write-imm", "write-then-imm", "per-packet"}))
      ->capture_default_str();
  generate_command->add_option("--gigabits", generated.gigabits, "rate that time stamps follow")
      ->check(CLI::Range(0.001, 10'000.0))
      ->capture_default_str();
  generate_command->add_option("--jobs", generated.jobs, "jobs that train at the same time")->capture_default_str();
  generate_command->add_option("--dtype", generated.dtype, "float32, bfloat16, float16, float64, int32, int64, uint8")
      ->capture_default_str();
  generate_command->add_option("--elements", generated.elements, "of each bucket of a step, in order")
      ->delimiter(',')
      ->capture_default_str();
  generate_command->add_option("--steps", generated.steps, "all-reduce rounds")->capture_default_str();
  generate_command->add_flag("--ddp-start", generated.ddp_start, "first what DDP sends at its start");
  generate_command->add_option("--reduced", generated.reduced,
                               "file of reduced values, step after step; default: drawn");
  generate_command->add_option("--dump-reduced", generated.dump_reduced, "write the drawn values there");
  generate_command->add_option("--seed", generated.seed, "of values and faults")->capture_default_str();
  for (const auto& [name, value, text] :
       {std::tuple{"--retransmit", &generated.retransmit, "chance that a packet is sent again, with what follows it"},
        std::tuple{"--drop", &generated.drop, "chance that the mirror loses a frame"},
        std::tuple{"--duplicate", &generated.duplicate, "chance that the mirror copies a frame twice"},
        std::tuple{"--reorder", &generated.reorder, "chance that the mirror delays a frame"}})
    generate_command->add_option(name, *value, text)->check(CLI::Range(0.0, 1.0));
  generate_command->add_option("--drop-burst", generated.drop_burst, "frames that are lost in a row")
      ->check(CLI::Range(std::uint64_t{1}, std::uint64_t{1} << 32))
      ->capture_default_str();
  generate_command->add_option("--side", generated.side, "frames of other traffic for each frame of the jobs")
      ->check(CLI::Range(0.0, 10.0));
  generate_command->add_option("--wrap", generated.wrap, "what the mirror puts around frames")
      ->check(CLI::IsMember({"none", "vlan", "qinq", "gre", "erspan1", "erspan2", "erspan3", "vxlan"}))
      ->capture_default_str();
  generate_command->add_flag("--json", generated.json, "machine-readable output");

  CLI11_PARSE(app, argc, argv);
  if (*status_command) return status(common, watch, interval_ms);
  if (*shards_command) return shards(common);
  if (*placement_command) return placement(common);
  if (*limits_command) return limits(common);
  if (*epoch_command) return epoch(common);
  if (*version_command) return version(common, shard, version_step);
  if (*digests_command) return digests(common, from, to);
  if (*events_command) return events(common);
  if (*nodes_list_command) return nodes_list(common);
  if (*nodes_command) return nodes_change(common, member);
  if (*list_command) return points_list(point);
  if (*show_command) return points_show(point);
  if (*verify_command) return points_verify(point, verify_all);
  if (*side_command) return points_side(point, rank, out_file);
  if (*hold_command) return points_hold(point, holder, renew_s);
  if (*lineages_command) return lineages(point);
  if (*export_command) {
    point.job = common.job;
    point.access = common.access;
    if (!point.source.empty()) {
      exported.file = out_file;
      exported.format = format;
      exported.optimizer = optimizer;
      return export_point(point, exported);
    }
    if (!point.step) {
      std::fputs("export: --step is required without --source\n", stderr);
      return 2;
    }
    return export_state(common, *point.step, out_file, optimizer);
  }
  if (*capacity_command) return plan_capacity(planned);
  if (*doctor_command) return doctor(doctor_options);
  if (*generate_command) return generate(generated);
  if (*ca_command) return ca(ca_options);
  if (*secret_command) return secret(secret_options);
  return inspect(inspect_options);
}
