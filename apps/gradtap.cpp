// gradtap: the command line. Wiring only; the commands stand in commands/.
#include <CLI/CLI.hpp>

#include "apps/commands/commands.h"

int main(int argc, char** argv) {
  using namespace gradtap::commands;
  CLI::App app{"gradtap: look at and take out what a gradtap node holds"};
  app.require_subcommand(1);
  Common common;
  auto add_common = [&](CLI::App* command) {
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

  auto* shards_command = app.add_subcommand("shards", "version of every shard");
  add_common(shards_command);

  std::uint64_t from = 0;
  std::uint64_t to = ~std::uint64_t{0};
  auto* digests_command = app.add_subcommand("digests", "state root after each step");
  add_common(digests_command);
  digests_command->add_option("--from", from, "first step");
  digests_command->add_option("--to", to, "last step");

  auto* events_command = app.add_subcommand("events", "what the node noted lately");
  add_common(events_command);

  std::uint64_t step = 0;
  std::string out_file;
  bool optimizer = false;
  auto* export_command = app.add_subcommand("export", "write a durable step as safetensors");
  add_common(export_command);
  export_command->add_option("--step", step, "which step")->required();
  export_command->add_option("--out", out_file, "file to write")->required();
  export_command->add_flag("--optimizer", optimizer, "moments and counters too");

  InspectOptions inspect_options;
  auto* inspect_command = app.add_subcommand("inspect", "what a capture holds: flows, ops, completeness");
  inspect_command->add_option("file", inspect_options.file, "a .pcap file")->required();
  inspect_command->add_flag("--json", inspect_options.json, "machine-readable output");
  inspect_command->add_option("--dump", inspect_options.dump_directory,
                              "write the bytes of complete all-reduces there");
  inspect_command->add_option("--ranks", inspect_options.ranks,
                              "addresses in rank order, comma-separated; default: in ascending order");
  inspect_command->add_flag("--required-checksums", inspect_options.required_checksums,
                            "drop frames whose TCP checksum does not verify");

  CLI11_PARSE(app, argc, argv);
  if (*status_command) return status(common, watch, interval_ms);
  if (*shards_command) return shards(common);
  if (*digests_command) return digests(common, from, to);
  if (*events_command) return events(common);
  if (*export_command) return export_state(common, step, out_file, optimizer);
  return inspect(inspect_options);
}
