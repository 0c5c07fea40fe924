#include "common/cluster_config.h"

#include <filesystem>
#include <fstream>
#include <string>

#include <doctest/doctest.h>
#include <unistd.h>

using namespace gradtap;

namespace {

// Lines 1 to 12; a case replaces or adds lines, so that the numbers in the errors are known.
const std::string kTwo =
    "security = \"none\"\n"
    "replicas = 2\n"
    "[[member]]\n"
    "name = \"a\"\n"
    "link = \"10.0.0.1:7800\"\n"
    "http = \"http://10.0.0.1:7700\"\n"
    "domain = \"rack-a\"\n"
    "[[member]]\n"
    "name = \"b\"\n"
    "link = \"10.0.0.2:7800\"\n"
    "http = \"http://10.0.0.2:7700\"\n"
    "domain = \"rack-b\"\n";

std::string with(const std::string& from, const std::string& to) {
  std::string text = kTwo;
  const std::size_t at = text.rfind(from);
  REQUIRE(at != std::string::npos);
  return text.replace(at, from.size(), to);
}

}  // namespace

TEST_CASE("a cluster file is read in order, with defaults") {
  const auto cluster = parse_cluster_config(kTwo, "c.toml");
  if (!cluster) FAIL(cluster.error().text());
  CHECK(cluster->security == "none");
  CHECK(cluster->replicas == 2);
  CHECK(cluster->degraded_durable);
  CHECK(cluster->heartbeat_ms == 1000);
  CHECK(cluster->down_after_ms == 30000);
  REQUIRE(cluster->members.size() == 2);
  CHECK(cluster->members[0] == MemberSection{"a", "10.0.0.1:7800", "http://10.0.0.1:7700", "rack-a"});
  CHECK(cluster->members[1] == MemberSection{"b", "10.0.0.2:7800", "http://10.0.0.2:7700", "rack-b"});
  CHECK(cluster->members[1].capacity == 1);
  CHECK(parse_cluster_config(kTwo + "capacity = 3\n", "c.toml").value().members[1].capacity == 3);
  CHECK(cluster->index_of("b") == 1);
  CHECK_FALSE(cluster->index_of("c"));
}

TEST_CASE("an error of the cluster file names file, line, key and remedy") {
  struct Case {
    std::string text;
    ErrorCode code;
    std::string where;
  };
  const Case cases[] = {
      {"", ErrorCode::kConfigMissingKey, "c.toml:1:member"},
      {"security = \"none\"\nreplicas = 1\n", ErrorCode::kConfigMissingKey, "c.toml:1:member"},
      {with("\"none\"", "\"ssl\""), ErrorCode::kConfigImpossibleValue, "c.toml:1:security"},
      {with("\"none\"", "true"), ErrorCode::kConfigWrongType, "c.toml:1:security"},
      {with("replicas = 2", "replicas = 0"), ErrorCode::kConfigImpossibleValue, "c.toml:2:replicas"},
      {with("replicas = 2", "replicas = 3"), ErrorCode::kConfigImpossibleValue, "c.toml:2:replicas"},
      {with("rack-b", "rack-a"), ErrorCode::kConfigImpossibleValue, "c.toml:2:replicas"},
      {with("replicas = 2", "replicas = \"2\""), ErrorCode::kConfigWrongType, "c.toml:2:replicas"},
      {with("replicas", "replica"), ErrorCode::kConfigUnknownKey, "c.toml:2:replica"},
      {with("replicas = 2", "degraded_durable = 1"), ErrorCode::kConfigWrongType, "c.toml:2:degraded_durable"},
      {with("replicas = 2", "heartbeat_ms = 2000\ndown_after_ms = 5000"), ErrorCode::kConfigImpossibleValue,
       "c.toml:3:down_after_ms"},
      {with("\"b\"", "\"a\""), ErrorCode::kConfigImpossibleValue, "c.toml:9:member.name"},
      {with("\"b\"", "\"b b\""), ErrorCode::kConfigImpossibleValue, "c.toml:9:member.name"},
      {with("\"10.0.0.2:7800\"", "\"10.0.0.1:7800\""), ErrorCode::kConfigImpossibleValue, "c.toml:10:member.link"},
      {with("\"10.0.0.2:7800\"", "\"host:7800\""), ErrorCode::kConfigImpossibleValue, "c.toml:10:member.link"},
      {with("\"10.0.0.2:7800\"", "\"10.0.0.2:0\""), ErrorCode::kConfigImpossibleValue, "c.toml:10:member.link"},
      {with("\"10.0.0.2:7800\"", "\"10.0.0.2\""), ErrorCode::kConfigImpossibleValue, "c.toml:10:member.link"},
      {with("http://10.0.0.2:7700", "http://10.0.0.1:7700"), ErrorCode::kConfigImpossibleValue,
       "c.toml:11:member.http"},
      {with("http://10.0.0.2:7700", "https://10.0.0.2:7700"), ErrorCode::kConfigImpossibleValue,
       "c.toml:11:member.http"},
      {with("http://10.0.0.2:7700", "10.0.0.2:7700"), ErrorCode::kConfigImpossibleValue, "c.toml:11:member.http"},
      {with("domain = \"rack-b\"", ""), ErrorCode::kConfigMissingKey, "c.toml:8:member.domain"},
      {kTwo + "capacity = 0\n", ErrorCode::kConfigImpossibleValue, "c.toml:13:member.capacity"},
      {kTwo + "capacity = 65536\n", ErrorCode::kConfigImpossibleValue, "c.toml:13:member.capacity"},
      {kTwo + "capacity = \"2\"\n", ErrorCode::kConfigWrongType, "c.toml:13:member.capacity"},
      {with("domain", "domains"), ErrorCode::kConfigUnknownKey, "c.toml:12:member.domains"},
      {"security = \"none\"\n[member]\n", ErrorCode::kConfigWrongType, "c.toml:2:member"},
      {"security = \"none\"\nmember = [1]\n", ErrorCode::kConfigWrongType, "c.toml:2:member"},
      {"security = \n", ErrorCode::kConfigSyntax, "c.toml:1:"},
  };
  for (const Case& each : cases) {
    CAPTURE(each.text);
    const auto cluster = parse_cluster_config(each.text, "c.toml");
    REQUIRE_FALSE(cluster);
    CHECK(cluster.error().code == each.code);
    CHECK_MESSAGE(cluster.error().where.starts_with(each.where), cluster.error().where);
    CHECK_FALSE(cluster.error().remedy.empty());
  }
}

TEST_CASE("security is tls unless none is written") {
  CHECK(parse_cluster_config(with("security = \"none\"", ""), "c").value().security == "tls");
  CHECK(parse_cluster_config(with("\"none\"", "\"tls\""), "c").value().security == "tls");
  CHECK(parse_cluster_config(kTwo, "c").value().security == "none");
}

TEST_CASE("the digest sees what placement depends on, and nothing else") {
  const auto digest = [](const std::string& text) { return parse_cluster_config(text, "c").value().digest(); };
  const Sha256 whole = digest(kTwo);
  CHECK(digest("heartbeat_ms = 500\n" + kTwo) == whole);
  CHECK(digest(with("replicas = 2", "replicas = 1")) != whole);
  CHECK(digest(with("rack-b", "rack-c")) != whole);
  CHECK(digest(kTwo + "capacity = 1\n") == whole);
  CHECK(digest(kTwo + "capacity = 2\n") != whole);
  CHECK(digest(with("10.0.0.2:7800", "10.0.0.2:7801")) != whole);
  ClusterConfig swapped = parse_cluster_config(kTwo, "c").value();
  std::swap(swapped.members[0], swapped.members[1]);
  CHECK(swapped.digest() != whole);
}

TEST_CASE("the cluster of a node: its file, beside the node's own, or the node alone") {
  const std::filesystem::path folder =
      std::filesystem::temp_directory_path() / ("gradtap-cluster-" + std::to_string(::getpid()));
  std::filesystem::create_directories(folder);
  std::ofstream(folder / "cluster.toml") << kTwo;
  NodeConfig node;
  node.node.name = std::string("b");
  const std::string path = (folder / "node.toml").string();
  const auto alone = cluster_of(node, path).value();
  CHECK(alone.replicas == 1);
  REQUIRE(alone.members.size() == 1);
  CHECK(alone.members[0].name == "b");

  node.cluster.file = std::string("cluster.toml");
  CHECK(cluster_of(node, path).value().index_of("b") == 1);
  node.node.name = std::string("c");
  const auto stranger = cluster_of(node, path);
  REQUIRE_FALSE(stranger);
  CHECK(stranger.error().code == ErrorCode::kConfigImpossibleValue);
  CHECK(stranger.error().actual == "a, b");
  node.cluster.file = std::string("absent.toml");
  CHECK(cluster_of(node, path).error().code == ErrorCode::kFileUnreadable);
  std::filesystem::remove_all(folder);
}

TEST_CASE("the example cluster file is accepted") {
  const auto cluster = load_cluster_config(GRADTAP_SOURCE_DIR "/cluster-config/cluster.toml");
  if (!cluster) FAIL(cluster.error().text());
  CHECK(cluster->members.size() == 3);
}
