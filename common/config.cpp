#include "common/config.h"

#include <algorithm>
#include <filesystem>

#include "common/config_parse.h"
#include "common/number_text.h"

namespace gradtap {
namespace {

using namespace config_detail;

constexpr std::size_t kJobsInFileMax = 1024;

std::uint64_t line_of(const toml::table& root, std::string_view section, std::string_view key) {
  const auto view = root[section][key];
  if (view.node() != nullptr) return view.node()->source().begin.line;
  const auto table = root[section];
  return table.node() != nullptr ? table.node()->source().begin.line : 1;
}

// What no single key can tell.
Status check_together(const NodeConfig& config, std::string_view file, const toml::table& root) {
  const auto where = [&](std::string_view section, std::string_view key) {
    return fmt::format("{}:{}:{}.{}", file, line_of(root, section, key), section, key);
  };
  if (config.tap.kind == TapKind::kAfPacket && config.tap.interface.empty())
    return fail(ErrorCode::kConfigMissingKey, "key is missing", where("tap", "interface"),
                "the name of the monitor interface", "nothing", "add interface = \"...\" to [tap]");
  if (config.tap.interface.size() > 15)
    return fail(ErrorCode::kConfigImpossibleValue, "value is impossible", where("tap", "interface"),
                "at most 15 characters", fmt::format("{}", config.tap.interface.size()),
                "give the name that `ip link` shows");
  if (config.tap.kind == TapKind::kPcap && config.tap.file.empty())
    return fail(ErrorCode::kConfigMissingKey, "key is missing", where("tap", "file"), "the path of a capture",
                "nothing", "add file = \"...\" to [tap]");
  if (config.tap.kind == TapKind::kPcap && config.tap.queues != 1)
    return fail(ErrorCode::kConfigImpossibleValue, "value is impossible", where("tap", "queues"), "1 when kind is pcap",
                fmt::format("{}", config.tap.queues), "set queues = 1");
  return {};
}

}  // namespace

Result<HostPort> parse_host_port(std::string_view text) {
  const auto wrong = [&] {
    return fail(ErrorCode::kBadText, "not a host and a port", std::string(text.substr(0, 300)), "host:port");
  };
  const std::size_t colon = text.rfind(':');
  if (colon == std::string_view::npos) return wrong();
  std::string_view host = text.substr(0, colon);
  const std::string_view port = text.substr(colon + 1);
  const auto number = parse_integer<std::uint16_t>(port);
  if (!number) return wrong();
  HostPort out;
  out.port = *number;
  if (host.size() >= 2 && host.front() == '[' && host.back() == ']') {
    host = host.substr(1, host.size() - 2);
    if (!is_address(std::string(host)) || host.find(':') == std::string_view::npos) return wrong();
  } else if (host.empty() || host.size() > 253 ||
             !std::all_of(host.begin(), host.end(), [](char c) { return is_name(std::string_view(&c, 1)); })) {
    return wrong();
  }
  out.host = std::string(host);
  return out;
}

Result<NodeConfig> parse_config(std::string_view text, std::string_view file) {
  const Result<toml::table> parsed = parse_toml(text, file);
  if (!parsed) return std::unexpected<Error>(parsed.error());
  const toml::table& root = *parsed;
  NodeConfig config;
  const auto rows = node_rows();
  for (const auto& [key, node] : root) {
    const std::string where = fmt::format("{}:{}:{}", file, key.source().begin.line, key.str());
    if (key.str() == "job") {
      GRADTAP_TRY(parse_list("job", kJobsInFileMax, where, node, [&](const toml::table& table) -> Status {
        JobSection job;
        GRADTAP_TRY(parse_table<JobSection>(job_rows(), "job", job, file, table));
        const Place name{file, "job", "name"};
        for (const JobSection& other : config.jobs)
          if (other.name == job.name)
            return impossible(name, *table.get("name"), "a different name for every job",
                              fmt::format("\"{}\" twice", job.name));
        for (const std::uint64_t rank : job.mirrored)
          if (rank >= job.endpoints.size())
            return impossible({file, "job", "mirrored"}, *table.get("mirrored"),
                              fmt::format("ranks below {}", job.endpoints.size()), fmt::format("{}", rank));
        if (job.transport == WireTransport::kNccl && job.nccl.version.empty())
          return fail(ErrorCode::kConfigMissingKey, "key is missing", fmt::format("{}:job.nccl_version", file),
                      "the version of NCCL in the job", "nothing", "NCCL_DEBUG=VERSION in the job prints it");
        config.jobs.push_back(std::move(job));
        return {};
      }));
      continue;
    }
    const bool known = std::any_of(rows.begin(), rows.end(), [&](const auto& row) { return row.section == key.str(); });
    if (!known) {
      std::vector<std::string_view> sections = {"job"};
      for (const auto& row : rows)
        if (sections.back() != row.section) sections.push_back(row.section);
      return unknown(where, key.str(), sections);
    }
    const auto* table = node.as_table();
    if (table == nullptr)
      return fail(ErrorCode::kConfigWrongType, "value has a wrong type", where, "a table", std::string(type_name(node)),
                  fmt::format("write [{}] on a line of its own", key.str()));
    GRADTAP_TRY(parse_table<NodeConfig>(rows, key.str(), config, file, *table));
  }
  GRADTAP_TRY(check_together(config, file, root));
  return config;
}

Result<NodeConfig> load_config(const std::string& path) {
  const auto text = read_config_file(path, "give --config a file that exists and can be read");
  if (!text) return std::unexpected<Error>(text.error());
  auto config = parse_config(*text, path);
  if (!config) return config;
  const std::filesystem::path folder = std::filesystem::path(path).parent_path();
  std::vector<std::string*> files = {&config->security.ca_file, &config->security.certificate_file,
                                     &config->security.key_file, &config->security.read_token_file,
                                     &config->security.admin_token_file};
  for (JobSection& job : config->jobs) files.push_back(&job.secret_file);
  for (std::string* const file : files)
    if (!file->empty()) *file = (folder / *file).string();
  return config;
}

}  // namespace gradtap
