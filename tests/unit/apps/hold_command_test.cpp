// gradtap points hold, run beside this test, against retention run by this test.
#include <chrono>
#include <csignal>
#include <filesystem>
#include <fstream>
#include <thread>

#include <doctest/doctest.h>
#include <fcntl.h>
#include <fmt/format.h>
#include <poll.h>
#include <sys/wait.h>
#include <unistd.h>

#include "storage/point_retain.h"
#include "tests/unit/recovery/published_job.h"

namespace gradtap::recovery {
namespace {

using namespace std::chrono_literals;

std::string program() {
  return std::filesystem::read_symlink("/proc/self/exe").parent_path() / "gradtap";
}

// Ended by the destructor, whatever the test did.
class Holding {
 public:
  Holding(const std::string& folder, StepNumber step, const std::string& renew_s = "3600") {
    int in[2], out[2];
    REQUIRE(::pipe2(in, O_CLOEXEC) == 0);
    REQUIRE(::pipe2(out, O_CLOEXEC) == 0);
    const std::string path = program(), number = std::to_string(step);
    pid_ = ::fork();
    if (pid_ == 0) {
      ::dup2(in[0], STDIN_FILENO);
      ::dup2(out[1], STDOUT_FILENO);
      ::execl(path.c_str(), "gradtap", "points", "hold", "--source", folder.c_str(), "--job", "job", "--lineage", "1",
              "--step", number.c_str(), "--holder", "test", "--renew-s", renew_s.c_str(), nullptr);
      ::_exit(127);
    }
    ::close(in[0]);
    ::close(out[1]);
    in_ = in[1];
    out_ = out[0];
  }
  ~Holding() {
    close_input();
    ::close(out_);
    if (pid_ > 0) {
      ::kill(pid_, SIGKILL);
      ::waitpid(pid_, nullptr, 0);
    }
  }
  Holding(const Holding&) = delete;
  Holding& operator=(const Holding&) = delete;

  // Its one line; empty when it ended without one.
  std::string line() const {
    std::string text;
    for (char c = 0; text.empty() || text.back() != '\n';) {
      pollfd wait{out_, POLLIN, 0};
      if (::poll(&wait, 1, 60'000) != 1 || ::read(out_, &c, 1) != 1) return {};
      text.push_back(c);
    }
    text.pop_back();
    return text;
  }
  void write(const std::string& text) const {
    REQUIRE(::write(in_, text.data(), text.size()) == static_cast<ssize_t>(text.size()));
  }
  void close_input() {
    if (in_ >= 0) ::close(in_);
    in_ = -1;
  }
  void signal(int number) const { REQUIRE(::kill(pid_, number) == 0); }
  int code() {
    int status = 0;
    REQUIRE(::waitpid(pid_, &status, 0) == pid_);
    pid_ = -1;
    return WIFEXITED(status) ? WEXITSTATUS(status) : -1;
  }

 private:
  pid_t pid_ = -1;
  int in_ = -1, out_ = -1;
};

struct Points {
  std::unique_ptr<test::PublishedJob> job = std::make_unique<test::PublishedJob>(test::three_shards(test::adamw()));
  ManualClock clock;

  Points() {
    job->publish();
    for (int i = 0; i < 3; ++i) {
      job->step();
      job->publish();
    }
    job->source.reset();
    job->job.store.reset();  // no store is open while a program is started
  }
  [[nodiscard]] const std::string& folder() const { return job->points.path; }
  [[nodiscard]] bool there(StepNumber step) const {
    return std::filesystem::exists(folder() + "/" + storage::point_key("job", 1, step));
  }
  [[nodiscard]] std::vector<std::string> leases() const {
    const auto keys = job->objects->list(storage::leases_prefix("job", 1));
    REQUIRE(keys);
    return *keys;
  }
  // As a publisher that keeps one point would, each time with no memory of earlier runs.
  void retain() {
    storage::PointRetainOptions options;
    options.points_kept = 1;
    options.orphan_grace_ms = 0;
    storage::PointRetention retention(*job->objects, clock, options);
    const auto report = retention.run("job");
    if (!report) FAIL(report.error().text());
  }
  int run(const std::string& arguments, std::string& trouble) const {
    const storage::test::TempDir work{true};
    const std::string command =
        fmt::format("{} points hold {} </dev/null >{}/out 2>{}/err", program(), arguments, work.path, work.path);
    const int status = std::system(command.c_str());  // NOLINT(concurrency-mt-unsafe)
    std::ifstream in(work.path + "/err");
    trouble.assign(std::istreambuf_iterator<char>(in), {});
    return WIFEXITED(status) ? WEXITSTATUS(status) : -1;
  }
};

}  // namespace

TEST_CASE("a held point outlives retention until standard input is closed") {
  Points points;
  Holding holding(points.folder(), 1);
  REQUIRE(holding.line() == "held " + storage::point_key("job", 1, 1));
  CHECK(points.leases().size() == 1);
  holding.write("this means nothing\n");
  points.retain();
  CHECK(points.there(1));
  CHECK_FALSE(points.there(0));
  CHECK_FALSE(points.there(2));
  CHECK(points.there(3));
  // All that the point needs is there as well.
  const auto report = verify_whole_point(points.job->objects, "job", 1, 1);
  REQUIRE(report);
  CHECK(report->whole());
  holding.close_input();
  CHECK(holding.code() == 0);
  CHECK(points.leases().empty());
  points.retain();
  CHECK_FALSE(points.there(1));
  CHECK(points.there(3));
}

TEST_CASE("a signal ends it, and the lease with it; a killed one leaves a lease that runs out") {
  Points points;
  for (const int number : {SIGTERM, SIGINT, SIGHUP}) {
    Holding holding(points.folder(), 1);
    REQUIRE_FALSE(holding.line().empty());
    CHECK(points.leases().size() == 1);
    holding.signal(number);
    CHECK(holding.code() == 0);
    CHECK(points.leases().empty());
  }
  Holding killed(points.folder(), 1);
  REQUIRE_FALSE(killed.line().empty());
  killed.signal(SIGKILL);
  CHECK(killed.code() == -1);
  CHECK(points.leases().size() == 1);
}

TEST_CASE("a held lease is renewed") {
  Points points;
  Holding holding(points.folder(), 2, "1");
  REQUIRE_FALSE(holding.line().empty());
  const auto renewed = [&] {
    for (const std::string& key : points.leases())
      if (!key.ends_with("-00000000000000000000")) return true;
    return false;
  };
  bool seen = false;
  for (int i = 0; i < 600 && !seen; ++i, std::this_thread::sleep_for(100ms)) seen = renewed();
  CHECK(seen);
  holding.close_input();
  CHECK(holding.code() == 0);
  CHECK(points.leases().empty());
}

TEST_CASE("what cannot be held, by exit code and name") {
  Points points;
  std::string trouble;
  const std::string tail = " --job job --lineage 1 --holder test";
  CHECK(points.run("--step 9 --source " + points.folder() + tail, trouble) == 1);
  CHECK(trouble.find("POINT_NONE") != std::string::npos);
  CHECK(points.leases().empty());
  CHECK(points.run("--step 1 --source " + points.folder() + "/none" + tail, trouble) == 2);
  CHECK(points.run("--step 1 --source http://127.0.0.1:1" + tail, trouble) == 2);
  CHECK(points.run("--step 1 --source " + points.folder() + " --job job --lineage 0 --holder test", trouble) == 2);
  // Standard input is at its end from the start: held, and released at once.
  CHECK(points.run("--step 1 --source " + points.folder() + tail, trouble) == 0);
  CHECK(points.leases().empty());
  // A folder that is no store stays as it is.
  const storage::test::TempDir other{true};
  CHECK(points.run("--step 1 --source " + other.path + tail, trouble) == 1);
  CHECK(std::filesystem::is_empty(other.path));
  // A file where the folder of leases must be: as unwritable for root as for anybody.
  const std::string folder = points.folder() + "/" + storage::leases_prefix("job", 1);
  std::filesystem::remove_all(folder);
  std::ofstream(folder.substr(0, folder.size() - 1)) << "x";
  CHECK(points.run("--step 1 --source " + points.folder() + tail, trouble) == 1);
  CHECK(trouble.find("OBJECT_STORE") != std::string::npos);
}

}  // namespace gradtap::recovery
