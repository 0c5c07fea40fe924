// gradtap ca, run beside this test: exit codes, what is printed, what is left alone.
#include <filesystem>
#include <fstream>
#include <string>

#include <doctest/doctest.h>
#include <nlohmann/json.hpp>
#include <unistd.h>

#include "tests/unit/apps/run_gradtap.h"

namespace gradtap {
namespace {

using nlohmann::json;

using testing::Answer;

Answer ca(const std::string& arguments) {
  return testing::run_gradtap("ca " + arguments);
}

}  // namespace

TEST_CASE("ca init, issue, rotate and show: exit codes and JSON") {
  const std::filesystem::path folder =
      std::filesystem::temp_directory_path() / ("gradtap-ca-" + std::to_string(::getpid()));
  std::filesystem::create_directories(folder);
  const std::string at = (folder / "ca").string();
  std::ofstream(folder / "cluster.toml") << "replicas = 1\n"
                                            "[[member]]\nname = \"a\"\nlink = \"10.0.0.1:7800\"\n"
                                            "http = \"http://10.0.0.1:7700\"\ndomain = \"x\"\n"
                                            "[[member]]\nname = \"b\"\nlink = \"[fd00::2]:7800\"\n"
                                            "http = \"http://10.0.0.2:7700\"\ndomain = \"x\"\n";
  const std::string cluster = " --cluster " + (folder / "cluster.toml").string();
  CHECK(ca("").code != 0);
  const Answer early = ca("issue " + at + " a");
  CHECK(early.code == 1);
  CHECK(early.text.find("gradtap ca init") != std::string::npos);
  CHECK(ca("init " + at).code == 0);
  CHECK(ca("init " + at).text.starts_with("kept"));
  CHECK(ca("issue " + at).code == 2);
  CHECK(ca("issue " + at + " a b --address 10.0.0.1").code == 2);
  CHECK(ca("issue " + at + " c" + cluster).code == 2);
  CHECK(ca("issue " + at + " 'a b'").code == 1);
  const Answer issued = ca("issue " + at + cluster + " --json");
  REQUIRE(issued.code == 0);
  const json both = json::parse(issued.text);
  REQUIRE(both.size() == 2);
  CHECK(both[0]["names"] == json::array({"a"}));
  CHECK(both[0]["addresses"] == json::array({"10.0.0.1"}));
  CHECK(both[1]["addresses"] == json::array({"fd00::2"}));
  CHECK(both[1]["done"] == "made");
  const int days_left = both[1]["days_left"].get<int>();
  CHECK((days_left == 364 || days_left == 365));  // 365 days, some moments ago or in this very second
  const std::string certificate = at + "/nodes/a/node.crt";
  const json shown = json::parse(ca("show --json " + certificate).text);
  CHECK(shown[0]["sha256"] == both[0]["sha256"]);
  CHECK(ca("rotate " + at + " a --days 7").code == 0);
  const json rotated = json::parse(ca("show --json " + certificate + " " + at + "/nodes/b/node.crt").text);
  CHECK(rotated[0]["sha256"] != both[0]["sha256"]);
  CHECK(rotated[1]["sha256"] == both[1]["sha256"]);
  CHECK(ca("rotate " + at + " a --authority trust").code == 2);
  CHECK(ca("rotate " + at + " --authority retire").code == 0);  // nothing to retire: as it was
  for (const char* const phase : {"trust", "switch"}) CHECK(ca("rotate " + at + " --authority " + phase).code == 0);
  CHECK(json::parse(ca("show --json " + at + "/ca.crt").text).size() == 2);
  CHECK(ca("rotate " + at + " --authority retire").code == 0);
  CHECK(json::parse(ca("show --json " + at + "/ca.crt").text).size() == 1);
  CHECK(ca("show " + (folder / "cluster.toml").string()).code == 2);
  CHECK(ca("show /absent").code == 2);
  std::filesystem::remove_all(folder);
}

}  // namespace gradtap
