// SIGKILL at every named kill point, in a process of its own (a process with an open store must not fork).
#include <csignal>
#include <cstdlib>
#include <filesystem>
#include <iterator>
#include <string>
#include <utility>

#include <fcntl.h>
#include <sys/wait.h>
#include <unistd.h>

#include "tests/unit/storage/store_fixture.h"

using namespace gradtap;
using namespace gradtap::storage;
using namespace gradtap::storage::test;

namespace {

const JobId kKillJob = job_id("kill test");
constexpr ShardId kShards = 3;
constexpr StepNumber kSteps = 8;
constexpr std::size_t kBytes = 9000;

struct ChildEnd {
  int status = 0;
  StepNumber acknowledged = 0;  // last step whose commit() returned in the child
};

ChildEnd run_child(const std::string& path, const std::string& kill_point) {
  int ends[2];
  REQUIRE(::pipe(ends) == 0);
  const pid_t pid = ::fork();
  REQUIRE(pid >= 0);
  if (pid == 0) {
    ::close(ends[0]);
    ::dup2(::open("/dev/null", O_WRONLY), STDOUT_FILENO);
    ::setenv("GRADTAP_STORE_CHILD", path.c_str(), 1);
    ::setenv("GRADTAP_STORE_CHILD_FD", std::to_string(ends[1]).c_str(), 1);
    ::setenv("GRADTAP_KILL_POINT", kill_point.c_str(), 1);
    ::execl("/proc/self/exe", "unit_storage", "--no-skip", "--test-case=child of the kill test", nullptr);
    ::_exit(127);
  }
  ::close(ends[1]);
  ChildEnd end;
  StepNumber step = 0;
  while (::read(ends[0], &step, sizeof step) == sizeof step) end.acknowledged = step;
  ::close(ends[0]);
  REQUIRE(::waitpid(pid, &end.status, 0) == pid);
  return end;
}

std::size_t files_in(const std::string& path) {
  return static_cast<std::size_t>(std::distance(std::filesystem::directory_iterator(path), {}));
}

}  // namespace

TEST_CASE("child of the kill test" * doctest::skip()) {
  const char* path = std::getenv("GRADTAP_STORE_CHILD");
  if (path == nullptr) return;
  const int fd = std::atoi(std::getenv("GRADTAP_STORE_CHILD_FD"));
  EnvironmentKillPoints kill_points;
  auto options = options_at(path);
  options.kill_points = &kill_points;
  auto store = open_or_fail(options);
  for (StepNumber step = 0; step <= kSteps; ++step) {
    OwnedCommit next(kKillJob, 1, step);
    for (ShardId shard = 0; shard < kShards; ++shard) next.shard(shard, step > 0, step % 3 == 0, kBytes + shard);
    require_ok(store->commit(next.commit));
    if (::write(fd, &step, sizeof step) != sizeof step) std::abort();
    if (step == 7) {
      const auto report = store->retain(kKillJob, 1, 6, 1);
      if (!report || report->logs == 0) std::abort();
    }
  }
}

TEST_CASE("killed at a named point: never older than the last acknowledged commit, no rest") {
  struct Case {
    std::string point;
    StepNumber step;      // commits 0.. reach the point once each: kill in commit of this step
    StepNumber expected;  // the only version that recovery may show
    bool stage_left;
    bool unmarked_left;
  };
  const Case cases[] = {
      {"store.after_stage:1", 0, ~StepNumber{0}, true, false},  // nothing durable at all
      {"store.after_stage:5", 4, 3, true, false},
      {"store.after_stage:7", 6, 5, true, false},
      {"store.after_ingest:1", 0, ~StepNumber{0}, false, true},
      {"store.after_ingest:5", 4, 3, false, true},
      {"store.after_ingest:7", 6, 5, false, true},
      {"store.after_mark:1", 0, 0, false, false},
      {"store.after_mark:5", 4, 4, false, false},
      {"store.after_mark:7", 6, 6, false, false},
      {"store.retain.after_mark:1", 8, 7, false, true},
      {"none", 9, 8, false, false},
  };
  for (const Case& each : cases) {
    CAPTURE(each.point);
    TempDir dir;
    const ChildEnd end = run_child(dir.path, each.point);
    if (each.point == "none") {
      REQUIRE(WIFEXITED(end.status));
      REQUIRE(WEXITSTATUS(end.status) == 0);
    } else {
      REQUIRE(WIFSIGNALED(end.status));
      REQUIRE(WTERMSIG(end.status) == SIGKILL);
    }
    CHECK((files_in(dir.path + "/stage") > 0) == each.stage_left);
    {
      auto store = open_or_fail(options_at(dir.path));
      CHECK((store->open_report().stage_files_deleted > 0) == each.stage_left);
      CHECK((store->open_report().unmarked_chunks_deleted > 0) == each.unmarked_left);
      const auto marks = store->marks(kKillJob).value();
      if (each.expected == ~StepNumber{0}) {
        CHECK(marks.empty());
      } else {
        REQUIRE(marks.size() == kShards);
        for (const Mark& mark : marks) {
          CHECK(mark.version == each.expected);
          CHECK(mark.version >= end.acknowledged);
          CHECK(mark.state_digest == digest_of(mark.shard, mark.version));
          for (std::uint8_t kind = kKindParam; kind < kKindParam + 3; ++kind)
            CHECK(store->read_full(kKillJob, 1, mark.shard, mark.full, kind).value() ==
                  bytes_of(mark.shard, mark.full, kind, kBytes + mark.shard));
          for (StepNumber step = mark.full + 1; step <= mark.log_to; ++step)
            CHECK(store->read_log(kKillJob, 1, mark.shard, step).value() ==
                  bytes_of(mark.shard, step, kKindGradient, kBytes + mark.shard));
        }
      }
      // The job goes on where recovery stands.
      const StepNumber next_step = each.expected == ~StepNumber{0} ? 0 : each.expected + 1;
      OwnedCommit next(kKillJob, 1, next_step);
      for (ShardId shard = 0; shard < kShards; ++shard)
        next.shard(shard, next_step > 0, next_step == 0, kBytes + shard);
      require_ok(store->commit(next.commit));
    }
    CHECK(files_in(dir.path + "/stage") == 0);
    auto again = open_or_fail(options_at(dir.path));
    CHECK(again->open_report().stage_files_deleted == 0);
    CHECK(again->open_report().unmarked_chunks_deleted == 0);
  }
}
