#include "common/config.h"

#include <cstdio>
#include <filesystem>
#include <set>
#include <string>

#include <doctest/doctest.h>
#include <fmt/format.h>

#include "common/cluster_config.h"
#include "tests/test_files.h"

using namespace gradtap;
using gradtap::testing::read_text;

namespace {

Error error_of(std::string_view text) {
  const auto config = parse_config(text, "n.toml");
  REQUIRE_FALSE(config);
  return config.error();
}

}  // namespace

TEST_CASE("an empty file is the defaults") {
  const auto config = parse_config("", "n.toml");
  REQUIRE(config);
  CHECK(config->replica.shard_elements == 16777216);
  CHECK(config->store.full_every_steps == 64);
  CHECK(config->side_channel.body_bytes_max == 16777216);
  CHECK(config->tap.kind == TapKind::kNone);
  CHECK(config->tap.l4_checksum == L4Checksum::kRequired);
  CHECK(config->jobs.empty());
}

TEST_CASE("every kind of value is read") {
  const auto config = parse_config(R"(
[node]
name = "tap-1"
listen = "[::1]:7171"
log_level = "debug"
[tap]
kind = "af_packet"
interface = "mon0"
queues = 2
l4_checksum = "offload"
[dpdk]
hugepages = true
[[job]]
name = "gpt"
endpoints = ["10.77.0.10", "10.77.0.11", "fd00::12"]
mirrored = [0, 2]
grace_ms = 300
[[job]]
name = "other"
endpoints = ["10.0.0.1", "10.0.0.2"]
mirrored = "all"
transport = "nccl"
nccl_version = "2.19.3"
nccl_channels = 2
nccl_ll_bytes_max = 65536
nccl_completing_send = true
)",
                                   "n.toml");
  if (!config) FAIL(config.error().text());
  CHECK(config->node.name == "tap-1");
  CHECK(config->node.log_level == LogLevel::kDebug);
  CHECK(config->tap.kind == TapKind::kAfPacket);
  CHECK(config->tap.interface == "mon0");
  CHECK(config->tap.queues == 2);
  CHECK(config->tap.l4_checksum == L4Checksum::kOffload);
  CHECK(config->dpdk.hugepages);
  REQUIRE(config->jobs.size() == 2);
  CHECK(config->jobs[0].endpoints == std::vector<std::string>{"10.77.0.10", "10.77.0.11", "fd00::12"});
  CHECK(config->jobs[0].mirrored == std::vector<std::uint64_t>{0, 2});
  CHECK(config->jobs[0].grace_ms == 300);
  CHECK(config->jobs[0].trainer_silent_ms == 30000);
  CHECK(config->jobs[1].mirrored.empty());
  CHECK(config->jobs[0].transport == WireTransport::kGloo);
  CHECK(config->jobs[1].transport == WireTransport::kNccl);
  CHECK(config->jobs[1].nccl.version == "2.19.3");
  CHECK(config->jobs[1].nccl.channels == 2);
  CHECK(config->jobs[1].nccl.threads == 512);
  CHECK(config->jobs[1].nccl.ll_bytes_max == 65536);
  CHECK(config->jobs[1].nccl.completing_send);
}

TEST_CASE("an error names file, line, key and remedy") {
  struct Case {
    const char* text;
    ErrorCode code;
    const char* where;
  };
  const std::string job = "[[job]]\nname = \"a\"\nendpoints = [\"10.0.0.1\", \"10.0.0.2\"]\n";
  const std::string twice = job + job;
  const std::string rank = job + "mirrored = [0, 2]\n";
  const std::string ranks = job + "mirrored = []\n";
  const std::string transport = job + "transport = \"mpi\"\n";
  const std::string no_version = job + "transport = \"nccl\"\n";
  const std::string rank_twice = job + "mirrored = [1,\n1]\n";
  const Case cases[] = {
      {"[node]\nname = \n", ErrorCode::kConfigSyntax, "n.toml:2:"},
      {"[node]\nname = \"a\"\nname = \"b\"\n", ErrorCode::kConfigSyntax, "n.toml:3:"},
      {"\n[nodes]\n", ErrorCode::kConfigUnknownKey, "n.toml:2:nodes"},
      {"x = 1\n", ErrorCode::kConfigUnknownKey, "n.toml:1:x"},
      {"[tap]\n\nqueue = 2\n", ErrorCode::kConfigUnknownKey, "n.toml:3:tap.queue"},
      {"[tap]\nqueues = \"2\"\n", ErrorCode::kConfigWrongType, "n.toml:2:tap.queues"},
      {"[tap]\nqueues = 2.0\n", ErrorCode::kConfigWrongType, "n.toml:2:tap.queues"},
      {"[tap]\nqueues = 0\n", ErrorCode::kConfigImpossibleValue, "n.toml:2:tap.queues"},
      {"[tap]\nqueues = -1\n", ErrorCode::kConfigImpossibleValue, "n.toml:2:tap.queues"},
      {"[tap]\nqueues = 17\n", ErrorCode::kConfigImpossibleValue, "n.toml:2:tap.queues"},
      {"[tap]\nkind = \"xdp\"\n", ErrorCode::kConfigImpossibleValue, "n.toml:2:tap.kind"},
      {"[tap]\nkind = 3\n", ErrorCode::kConfigWrongType, "n.toml:2:tap.kind"},
      {"[tap]\nkind = \"af_packet\"\n", ErrorCode::kConfigMissingKey, "n.toml:1:tap.interface"},
      {"[tap]\nkind = \"pcap\"\n", ErrorCode::kConfigMissingKey, "n.toml:1:tap.file"},
      {"[tap]\nkind = \"pcap\"\nfile = \"x\"\nqueues = 2", ErrorCode::kConfigImpossibleValue, "n.toml:4:tap.queues"},
      {"[tap]\nkind = \"af_packet\"\ninterface = \"sixteen-letters-\"\n", ErrorCode::kConfigImpossibleValue,
       "n.toml:3:tap.interface"},
      {"[node]\nlisten = \"here\"\n", ErrorCode::kConfigImpossibleValue, "n.toml:2:node.listen"},
      {"[node]\nlisten = \"a:65536\"\n", ErrorCode::kConfigImpossibleValue, "n.toml:2:node.listen"},
      {"[node]\ndata_dir = \"\"\n", ErrorCode::kConfigImpossibleValue, "n.toml:2:node.data_dir"},
      {"[node]\nname = \"a b\"\n", ErrorCode::kConfigImpossibleValue, "n.toml:2:node.name"},
      {"[dpdk]\nhugepages = 1\n", ErrorCode::kConfigWrongType, "n.toml:2:dpdk.hugepages"},
      {"store = 1\n", ErrorCode::kConfigWrongType, "n.toml:1:store"},
      {"[job]\nname = \"a\"\n", ErrorCode::kConfigWrongType, "n.toml:1:job"},
      {"[[job]]\nname = \"a\"\n", ErrorCode::kConfigMissingKey, "n.toml:1:job.endpoints"},
      {"[[job]]\nname = \"a\"\nendpoints = [\"10.0.0.1\"]\n", ErrorCode::kConfigImpossibleValue,
       "n.toml:3:job.endpoints"},
      {"[[job]]\nname = \"a\"\nendpoints = [\"10.0.0.1\",\n\"10.0.0.1\"]\n", ErrorCode::kConfigImpossibleValue,
       "n.toml:4:job.endpoints"},
      {"[[job]]\nname = \"a\"\nendpoints = [\"10.0.0.1\", \"host\"]\n", ErrorCode::kConfigImpossibleValue,
       "n.toml:3:job.endpoints"},
      {"[[job]]\nname = \"a\"\nendpoints = [1, 2]\n", ErrorCode::kConfigWrongType, "n.toml:3:job.endpoints"},
      {"[[job]]\nname = \"a\"\nendpoint = []\n", ErrorCode::kConfigUnknownKey, "n.toml:3:job.endpoint"},
      {twice.c_str(), ErrorCode::kConfigImpossibleValue, "n.toml:5:job.name"},
      {rank.c_str(), ErrorCode::kConfigImpossibleValue, "n.toml:4:job.mirrored"},
      {ranks.c_str(), ErrorCode::kConfigImpossibleValue, "n.toml:4:job.mirrored"},
      {rank_twice.c_str(), ErrorCode::kConfigImpossibleValue, "n.toml:5:job.mirrored"},
      {transport.c_str(), ErrorCode::kConfigImpossibleValue, "n.toml:4:job.transport"},
      {no_version.c_str(), ErrorCode::kConfigMissingKey, "n.toml:job.nccl_version"},
  };
  for (const Case& each : cases) {
    CAPTURE(each.text);
    const Error error = error_of(each.text);
    CHECK(error.code == each.code);
    CHECK(error.where.substr(0, std::string_view(each.where).size()) == each.where);
    CHECK_FALSE(error.remedy.empty());
    CHECK_FALSE(error.text().empty());
  }
  CHECK(error_of("[tap]\nqueue = 2\n").remedy.find("queues") != std::string::npos);
}

TEST_CASE("files: absent, too large") {
  CHECK(load_config("/nonexistent/n.toml").error().code == ErrorCode::kFileUnreadable);
  CHECK(parse_config(std::string((1 << 20) + 1, '\n'), "n.toml").error().code == ErrorCode::kLimitReached);
}

TEST_CASE("host and port") {
  const auto v6 = parse_host_port("[fd00::1]:80").value();
  CHECK(v6.host == "fd00::1");
  CHECK(v6.port == 80);
  CHECK(parse_host_port("localhost:0").value().host == "localhost");
  for (const char* text :
       {"", ":", ":80", "a:", "a:b", "a:-1", "a: 1", "a:1 ", "::1:80", "[1.2.3.4]:80", "[x]:1", "a b:1"})
    CHECK_FALSE_MESSAGE(parse_host_port(text).has_value(), text);
}

TEST_CASE("docs/configuration.md lists every key as the parser knows it") {
  const std::string page = read_text(GRADTAP_SOURCE_DIR "/docs/configuration.md");
  std::set<std::string> expected;
  std::vector<ConfigKeyInfo> keys = config_keys();
  for (ConfigKeyInfo& key : cluster_config_keys()) keys.push_back(std::move(key));
  for (const ConfigKeyInfo& key : keys) {
    const std::string name = key.section.empty() ? key.key : fmt::format("{}.{}", key.section, key.key);
    const std::string row =
        fmt::format("| `{}` | {} | {} | `{}` | {} |", name, key.type, key.range, key.default_value, key.meaning);
    CHECK_MESSAGE(page.find("\n" + row + "\n") != std::string::npos, "not in docs/configuration.md:\n", row);
    expected.insert(fmt::format("| `{}` ", name));
  }
  std::size_t rows = 0;
  for (std::size_t at = page.find("\n| `"); at != std::string::npos; at = page.find("\n| `", at + 1)) {
    ++rows;
    const std::size_t end = page.find("| ", at + 3);
    CHECK_MESSAGE(expected.contains(page.substr(at + 1, end - at - 1)),
                  "no such key: ", page.substr(at + 1, end - at - 1));
  }
  CHECK(rows == expected.size());
}

TEST_CASE("the example node file is accepted and every key in it exists") {
  const auto config = load_config(GRADTAP_SOURCE_DIR "/cluster-config/node.toml");
  if (!config) FAIL(config.error().text());
  CHECK(config->tap.kind == TapKind::kAfPacket);
  CHECK(config->jobs.size() == 1);
}
