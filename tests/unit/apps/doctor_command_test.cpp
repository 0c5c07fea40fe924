// gradtap doctor, run beside this test: exit codes, verdicts, remedies, and that it leaves nothing behind.
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

struct Patient {
  std::filesystem::path folder =
      std::filesystem::temp_directory_path() / ("gradtap-doctor-" + std::to_string(::getpid()));

  Patient() { std::filesystem::create_directories(folder / "data"); }
  ~Patient() { std::filesystem::remove_all(folder); }
  Patient(const Patient&) = delete;
  Patient& operator=(const Patient&) = delete;

  [[nodiscard]] testing::Answer judged(const std::string& config, const std::string& flags = "--json") const {
    std::ofstream(folder / "node.toml") << config;
    return testing::run_gradtap("doctor --seconds 1 --config " + (folder / "node.toml").string() + " " + flags);
  }
  [[nodiscard]] std::string config(const std::string& data_dir, const std::string& more = "") const {
    return "[node]\nname = \"tap0\"\ndata_dir = \"" + (folder / data_dir).string() + "\"\n" + more;
  }
};

// The finding of that check; of several, the worst.
json finding_of(const json& report, const std::string& check) {
  json found;
  for (const json& each : report["checks"])
    if (each["check"] == check && (found.is_null() || each["verdict"] == "WRONG")) found = each;
  REQUIRE_MESSAGE(!found.is_null(), check);
  return found;
}

}  // namespace

TEST_CASE("doctor judges disks and the object directory, and leaves nothing in them") {
  const Patient patient;
  const auto good = patient.judged(patient.config("data", "[store]\nmin_free_bytes = 0\n"));
  CHECK(good.code == 0);
  const json report = json::parse(good.text);
  CHECK(report["wrong"] == 0);
  CHECK(finding_of(report, "disk")["verdict"] != "WRONG");
  CHECK(finding_of(report, "objects")["verdict"] == "warning");
  CHECK(finding_of(report, "mirror")["verdict"] == "skipped");
  CHECK(std::filesystem::is_empty(patient.folder / "data"));

  // The node makes its own directory at its first start; doctor does not.
  const auto early = patient.judged(patient.config("later/data", "[store]\nmin_free_bytes = 0\n"));
  CHECK(early.code == 0);
  CHECK(early.text.find("is not there yet") != std::string::npos);
  CHECK_FALSE(std::filesystem::exists(patient.folder / "later"));

  const auto bad = patient.judged(patient.config("node.toml/data", "[objects]\ndirectory = \"/proc/nothing\"\n"));
  CHECK(bad.code == 1);
  const json wrong = json::parse(bad.text);
  CHECK(wrong["wrong"] == 2);
  for (const char* check : {"disk", "objects"}) {
    CHECK(finding_of(wrong, check)["verdict"] == "WRONG");
    CHECK_FALSE(finding_of(wrong, check)["remedy"].get<std::string>().empty());
  }
}

TEST_CASE("doctor names an interface that is not there, and memory that is not") {
  const Patient patient;
  const auto answer =
      patient.judged(patient.config("data",
                                    "[tap]\nkind = \"af_packet\"\ninterface = \"nowhere0\"\nring_frames = 64\n"
                                    "[store]\nmin_free_bytes = 0\n"
                                    "[assembly]\nretain_bytes = 1099511627776\n"));
  CHECK(answer.code == 1);
  const json report = json::parse(answer.text);
  CHECK(finding_of(report, "interface")["verdict"] == "WRONG");
  CHECK(finding_of(report, "interface")["seen"].get<std::string>().find("nowhere0") != std::string::npos);
  CHECK(finding_of(report, "memory")["verdict"] == "WRONG");
  CHECK(report["wrong"] == 2);
  const auto text = patient.judged(patient.config("data", "[store]\nmin_free_bytes = 0\n"), "");
  CHECK(text.text.find("\nVERDICT: nothing wrong") != std::string::npos);
}

TEST_CASE("doctor cannot judge what it cannot read") {
  const Patient patient;
  const auto answer = patient.judged("[node]\nnam = \"tap0\"\n");
  CHECK(answer.code == 2);
  CHECK(answer.text.find("node.nam") != std::string::npos);
}

}  // namespace gradtap
