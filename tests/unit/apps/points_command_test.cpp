// Runs the program beside this test on a directory of recovery points.
#include <cstdio>
#include <cstring>
#include <filesystem>
#include <fstream>

#include <doctest/doctest.h>
#include <sys/wait.h>

#include "tests/unit/recovery/published_job.h"

namespace gradtap::recovery {
namespace {

using test::json;

struct PointsRan {
  int code = -1;
  std::string out;
  std::string err;
};

std::string read_out(const std::string& path) {
  std::ifstream in(path, std::ios::binary);
  return {std::istreambuf_iterator<char>(in), {}};
}

struct PublishedPoints {
  std::unique_ptr<test::PublishedJob> job = std::make_unique<test::PublishedJob>(test::three_shards(test::adamw()));
  std::string program = std::filesystem::read_symlink("/proc/self/exe").parent_path() / "gradtap";
  storage::test::TempDir work{true};

  explicit PublishedPoints(StepNumber last) {
    job->publish();
    while (job->last->canonical.step < last) {
      job->step();
      job->publish();
    }
    job->source.reset();
    job->job.store.reset();  // no store is open while a program is started
  }
  PointsRan run(const std::string& arguments) const {
    const std::string command =
        program + " " + arguments + " --source " + job->points.path + " >" + work.path + "/out 2>" + work.path + "/err";
    PointsRan ran;
    const int status = std::system(command.c_str());  // NOLINT(concurrency-mt-unsafe)
    ran.code = WIFEXITED(status) ? WEXITSTATUS(status) : -1;
    ran.out = read_out(work.path + "/out");
    ran.err = read_out(work.path + "/err");
    return ran;
  }
};

bool contains(const std::string& text, const std::string& part) {
  return text.find(part) != std::string::npos;
}

json header_of(const std::string& file) {
  std::uint64_t length = 0;
  REQUIRE(file.size() > 8);
  std::memcpy(&length, file.data(), 8);
  return json::parse(file.substr(8, length));
}

}  // namespace

TEST_CASE("list, show, verify, side, export and lineages of a whole store") {
  const PublishedPoints points(2);
  PointsRan ran = points.run("points list");
  CHECK(ran.code == 0);
  CHECK(contains(ran.out, "verdict: a restore of job job takes lineage 1 step 2"));
  CHECK(ran.err.empty());
  ran = points.run("points list --json --job job");
  CHECK(ran.code == 0);
  CHECK(json::parse(ran.out)["points"].size() == 3);

  ran = points.run("points show --json");
  CHECK(ran.code == 0);
  CHECK(json::parse(ran.out)["step"] == 2);
  ran = points.run("points show --step 1");
  CHECK(ran.code == 0);
  CHECK(contains(ran.out, "lineage 1  step 1  world 2"));
  CHECK(points.run("points show --step 7").code == 1);
  CHECK(points.run("points show --lineage 4 --step 1").code == 1);

  ran = points.run("points verify --all");
  CHECK(ran.code == 0);
  CHECK(contains(ran.out, "lineage 1 step 0: whole"));
  CHECK(contains(ran.out, "verdict: whole"));

  ran = points.run("points side --rank 1 --out " + points.work.path + "/side");
  CHECK(ran.code == 0);
  CHECK(header_of(read_out(points.work.path + "/side"))["__metadata__"]["rank"] == "1");
  CHECK(points.run("points side --rank 2 --out " + points.work.path + "/none").code == 2);
  CHECK_FALSE(std::filesystem::exists(points.work.path + "/none"));

  ran = points.run("export --json --optimizer --step 1 --out " + points.work.path + "/state");
  CHECK(ran.code == 0);
  CHECK(json::parse(ran.out)["step"] == 1);
  const std::string file = read_out(points.work.path + "/state");
  CHECK(json::parse(ran.out)["bytes"] == file.size());
  CHECK(header_of(file)["__metadata__"]["root"] ==
        to_hex(test::sha_of_all(
            {points.job->job.digests[0].at(1), points.job->job.digests[1].at(1), points.job->job.digests[2].at(1)})));
  CHECK(header_of(file).contains("a#exp_avg"));
  CHECK(points.run("export --format torch --out " + points.work.path + "/state.pt").code == 0);
  CHECK(read_out(points.work.path + "/state.pt").starts_with("PK\x03\x04"));

  // An open descriptor is written in place, over what was there; what is no file, or not open, is refused.
  const std::string in_place = points.work.path + "/in_place";
  std::ofstream(in_place) << std::string(2 * file.size(), 'x');
  ran = points.run("export --optimizer --step 1 --threads 2 --memory-mb 1 --out /dev/fd/3 3<>" + in_place);
  CHECK(ran.code == 0);
  CHECK(read_out(in_place) == file);
  CHECK(points.run("export --optimizer --step 1 --out /dev/fd/9").code == 2);
  CHECK(contains(points.run("export --step 1 --out /dev/fd/3 3</dev/null").err, "FILE_UNWRITABLE"));
  CHECK(points.run("export --step 1 --out /dev/fd/3 3<" + in_place).code == 2);  // open for reading
  CHECK(read_out(in_place) == file);

  ran = points.run("lineages");
  CHECK(ran.code == 0);
  CHECK(contains(ran.out, "newest"));
}

TEST_CASE("a damaged newest point: named with its key, and the older one taken only where no step was asked for") {
  const PublishedPoints points(2);
  const std::string key = points.job->last->shards[1].logs.back().object.key;
  points.job->flip(key, 300);
  PointsRan ran = points.run("export --out " + points.work.path + "/state");
  CHECK(ran.code == 0);
  CHECK(contains(ran.out, "lineage 1 step 1:"));
  CHECK(contains(ran.err, "not taken: lineage 1 step 2:"));
  CHECK(contains(ran.err, key));
  CHECK(header_of(read_out(points.work.path + "/state"))["__metadata__"]["step"] == "1");
  ran = points.run("export --step 2 --out " + points.work.path + "/asked");
  CHECK(ran.code == 1);
  CHECK(contains(ran.err, key));
  CHECK_FALSE(std::filesystem::exists(points.work.path + "/asked"));
  CHECK_FALSE(std::filesystem::exists(points.work.path + "/asked.partial"));
  ran = points.run("points verify");
  CHECK(ran.code == 1);
  CHECK(contains(ran.out, key));
  CHECK(contains(ran.out, "the newest whole one is lineage 1 step 1"));
  ran = points.run("points verify --step 2 --json");
  CHECK(ran.code == 1);
  CHECK(json::parse(ran.out)["newest_whole"].is_null());
  CHECK(json::parse(ran.out)["reports"][0]["findings"][0]["key"] == key);

  // Cut short: already the listing sees it.
  std::filesystem::resize_file(points.job->points.path + "/" + key, 10);
  ran = points.run("points list");
  CHECK(ran.code == 0);
  CHECK(contains(ran.err, key));
  CHECK(contains(ran.out, "takes lineage 1 step 1"));
  std::filesystem::remove(points.job->points.path + "/" + points.job->last->meta.key);  // all points need it
  ran = points.run("points list");
  CHECK(ran.code == 1);
  CHECK(contains(ran.out, "NO VALID POINT"));
  CHECK(points.run("export --out " + points.work.path + "/nothing").code == 1);
}

TEST_CASE("what cannot be asked is another exit code") {
  const PublishedPoints points(0);
  CHECK(points.run("points list --job nobody").code == 1);
  const std::string missing = points.program + " points list --source " + points.work.path + "/none 2>/dev/null";
  CHECK(WEXITSTATUS(std::system(missing.c_str())) == 2);  // NOLINT(concurrency-mt-unsafe)
  const std::string deaf = points.program + " points list --source http://127.0.0.1:1 2>/dev/null";
  CHECK(WEXITSTATUS(std::system(deaf.c_str())) == 2);  // NOLINT(concurrency-mt-unsafe)
}

}  // namespace gradtap::recovery
