#include "apps/commands/ca_command.h"

#include <algorithm>
#include <chrono>
#include <cstdio>

#include <fmt/format.h>
#include <nlohmann/json.hpp>

#include "common/cluster_config.h"
#include "link/authority_folder.h"
#include "link/small_file.h"

namespace gradtap::commands {
namespace {

using link::time_text;
using nlohmann::json;

constexpr std::uint64_t kAuthorityDays = 3650;
constexpr std::uint64_t kNodeDays = 365;

std::int64_t now_s() {
  return std::chrono::duration_cast<std::chrono::seconds>(std::chrono::system_clock::now().time_since_epoch()).count();
}

json facts_json(const link::CertificateFacts& facts) {
  return {{"subject", facts.subject},
          {"issuer", facts.issuer},
          {"names", facts.names},
          {"addresses", facts.addresses},
          {"valid_from", time_text(facts.validity.from_s)},
          {"valid_until", time_text(facts.validity.to_s)},
          {"days_left", (facts.validity.to_s - now_s()) / 86400},
          {"authority", facts.authority},
          {"sha256", facts.fingerprint}};
}

int ca_refused(const Error& error) {
  std::fputs((error.text() + "\n").c_str(), stderr);
  return 1;
}

int report(const Result<std::vector<link::AuthorityDone>>& done, bool as_json) {
  if (!done) return ca_refused(done.error());
  json all = json::array();
  for (const link::AuthorityDone& each : *done) {
    json one = facts_json(each.facts);
    one["done"] = each.what;
    one["file"] = each.file;
    all.push_back(std::move(one));
    if (!as_json)
      fmt::print("{:<8} {}  {}, valid until {}\n", each.what, each.file, each.facts.subject,
                 time_text(each.facts.validity.to_s));
  }
  if (as_json) fmt::print("{}\n", all.dump(2));
  return 0;
}

std::uint64_t days(const CaOptions& options, std::uint64_t otherwise) {
  return options.days != 0 ? options.days : otherwise;
}

int ca_init(const CaOptions& options) {
  link::AuthorityFolder folder(options.folder, now_s());
  const auto done = folder.init(days(options, kAuthorityDays), options.force);
  if (!done) return ca_refused(done.error());
  return report(std::vector<link::AuthorityDone>{*done}, options.json);
}

int ca_issue(const CaOptions& options) {
  std::vector<link::AuthorityMember> members;
  if (!options.cluster_file.empty()) {
    const auto cluster = load_cluster_config(options.cluster_file);
    if (!cluster) {
      std::fputs((cluster.error().text() + "\n").c_str(), stderr);
      return 2;
    }
    for (const MemberSection& member : cluster->members) {
      const auto place = parse_host_port(member.link);
      if (!place) return ca_refused(place.error());
      if (options.names.empty() ||
          std::find(options.names.begin(), options.names.end(), member.name) != options.names.end())
        members.push_back({member.name, {place->host}});
    }
    for (const std::string& name : options.names)
      if (!cluster->index_of(name)) {
        std::fputs(fmt::format("{} is no member of {}\n", name, options.cluster_file).c_str(), stderr);
        return 2;
      }
  } else {
    for (const std::string& name : options.names) members.push_back({name, options.addresses});
  }
  if (members.empty() || (!options.addresses.empty() && (options.names.size() != 1 || !options.cluster_file.empty()))) {
    std::fputs("ca issue: name the nodes, or --cluster FILE; --address belongs to exactly one name\n", stderr);
    return 2;
  }
  link::AuthorityFolder folder(options.folder, now_s());
  return report(folder.issue(members, days(options, kNodeDays), options.force), options.json);
}

int ca_rotate(const CaOptions& options) {
  link::AuthorityFolder folder(options.folder, now_s());
  if (options.phase.empty()) return report(folder.rotate(options.names, days(options, kNodeDays)), options.json);
  if (!options.names.empty()) {
    std::fputs("ca rotate: a change of authority concerns all nodes; name none\n", stderr);
    return 2;
  }
  if (options.phase == "trust") return report(folder.trust_next(days(options, kAuthorityDays)), options.json);
  if (options.phase == "switch") return report(folder.take_over(days(options, kNodeDays)), options.json);
  return report(folder.retire(), options.json);
}

int ca_show(const CaOptions& options) {
  json all = json::array();
  int code = 0;
  for (const std::string& file : options.files) {
    const auto text = link::read_small_file(file);
    const auto facts = text ? link::read_certificates(*text, file)
                            : Result<std::vector<link::CertificateFacts>>(std::unexpected<Error>(text.error()));
    if (!facts) {
      std::fputs((facts.error().text() + "\n").c_str(), stderr);
      return 2;
    }
    for (const link::CertificateFacts& each : *facts) {
      const bool valid = each.validity.from_s <= now_s() && now_s() <= each.validity.to_s;
      if (!valid) code = 1;
      json one = facts_json(each);
      one["file"] = file;
      all.push_back(std::move(one));
      if (options.json) continue;
      fmt::print("{}\n  {}{}, of {}\n  names {}; addresses {}\n  {}: {} to {}\n  sha256 {}\n", file,
                 each.authority ? "authority " : "", each.subject, each.issuer, fmt::join(each.names, ", "),
                 fmt::join(each.addresses, ", "), valid ? "valid" : "NOT VALID NOW", time_text(each.validity.from_s),
                 time_text(each.validity.to_s), each.fingerprint);
    }
  }
  if (options.json) fmt::print("{}\n", all.dump(2));
  return code;
}

}  // namespace

void ca_flags(CLI::App* command, CaOptions& options) {
  command->require_subcommand(1);
  const auto add = [&](const char* action, const char* text) {
    auto* made = command->add_subcommand(action, text);
    made->callback([&options, action] { options.action = std::string(action); });
    made->add_flag("--json", options.json, "machine-readable output");
    return made;
  };
  const auto add_folder = [&](CLI::App* to, const char* days_text) {
    to->add_option("folder", options.folder, "folder of the authority; keep it off the nodes")->required();
    to->add_option("--days", options.days, days_text)->check(CLI::Range(1U, 36500U));
  };
  auto* init = add("init", "make the authority of a cluster");
  add_folder(init, "validity; default 3650");
  init->add_flag("--force", options.force, "another one in place of the one that is there");
  auto* issue = add("issue", "make keys and certificates of nodes");
  add_folder(issue, "validity; default 365");
  issue->add_option("names", options.names, "names of nodes (node.name); with --cluster, default: all members");
  issue->add_option("--cluster", options.cluster_file, "cluster file, for names and addresses");
  issue->add_option("--address", options.addresses, "IP address of the only node named (may be repeated)");
  issue->add_flag("--force", options.force, "others in place of those that are there");
  auto* rotate = add("rotate", "make new keys and certificates, or change the authority");
  add_folder(rotate, "validity; default 365, of an authority 3650");
  rotate->add_option("names", options.names, "names of nodes; default: all");
  rotate
      ->add_option(
          "--authority", options.phase,
          "trust: nodes trust the next authority too; switch: it signs; retire: the old one is not trusted any "
          "more")
      ->check(CLI::IsMember({"trust", "switch", "retire"}));
  auto* show = add("show", "what certificates hold; exit code 1: one is not valid now");
  show->add_option("files", options.files, "PEM files")->required();
}

int ca(const CaOptions& options) {
  if (options.action == "init") return ca_init(options);
  if (options.action == "issue") return ca_issue(options);
  if (options.action == "rotate") return ca_rotate(options);
  return ca_show(options);
}

}  // namespace gradtap::commands
