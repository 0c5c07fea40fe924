#include "actors/access_log.h"

#include <filesystem>
#include <string>
#include <thread>
#include <vector>

#include <doctest/doctest.h>
#include <fmt/format.h>
#include <nlohmann/json.hpp>
#include <sys/stat.h>
#include <unistd.h>

#include "tests/test_files.h"

namespace gradtap::actors {
namespace {

std::vector<nlohmann::json> records_of(const std::string& path) {
  std::vector<nlohmann::json> records;
  std::string text = testing::read_text(path);
  while (!text.empty()) {
    const std::size_t end = text.find('\n');
    REQUIRE(end != std::string::npos);
    records.push_back(nlohmann::json::parse(text.substr(0, end)));
    text.erase(0, end + 1);
  }
  return records;
}

}  // namespace

TEST_CASE("reads of state are lines that no caller can forge, in two bounded files") {
  const std::filesystem::path folder =
      std::filesystem::temp_directory_path() / fmt::format("gradtap-access-{}", ::getpid());
  std::filesystem::create_directories(folder);
  const std::string path = folder / "access.log";
  {
    const auto log = AccessLog::open(path, 4096);
    REQUIRE(log);
    (*log)->add({"10.0.0.1 key a", "/v1/jobs/demo/state", "step=7", 1234, "whole"});
    (*log)->add({"x\n{\"bytes\":0}", std::string(100'000, 'p') + "\xff", "\"", 0, "cut"});
    const auto records = records_of(path);
    REQUIRE(records.size() == 2);
    CHECK(records[0]["caller"] == "10.0.0.1 key a");
    CHECK(records[0]["path"] == "/v1/jobs/demo/state");
    CHECK(records[0]["query"] == "step=7");
    CHECK(records[0]["bytes"] == 1234);
    CHECK(records[0]["result"] == "whole");
    CHECK(records[1]["caller"] == "x\n{\"bytes\":0}");
    CHECK(records[1]["path"].get<std::string>().size() == 1000);
    struct stat about{};
    REQUIRE(::stat(path.c_str(), &about) == 0);
    CHECK((about.st_mode & 07) == 0);
  }
  const auto log = AccessLog::open(path, 4096);  // of an earlier life: it goes on
  REQUIRE(log);
  std::vector<std::thread> readers;
  for (int t = 0; t < 4; ++t)
    readers.emplace_back([&] {
      for (int i = 0; i < 100; ++i) (*log)->add({"c", "/p", "", 1, "whole"});
    });
  for (std::thread& reader : readers) reader.join();
  CHECK((*log)->added() == 400);
  CHECK((*log)->lost() == 0);
  CHECK(std::filesystem::file_size(path) <= 4096);
  CHECK(std::filesystem::file_size(path + ".1") <= 4096);
  CHECK(records_of(path).size() + records_of(path + ".1").size() > 20);
  CHECK_FALSE(AccessLog::open(folder / "absent" / "access.log", 4096));
  std::filesystem::remove_all(folder);
}

}  // namespace gradtap::actors
