// gradtap points hold: a program holds a point of a directory for a restore that reads it there.
//
// Ends, and releases the lease, when standard input is closed (whoever started it is done, or dead) or on SIGTERM,
// SIGINT, SIGHUP. Whoever it cannot release for (SIGKILL) leaves a lease that runs out.
#include <algorithm>
#include <cerrno>
#include <chrono>
#include <csignal>
#include <cstdio>

#include <fmt/format.h>
#include <poll.h>
#include <sys/signalfd.h>
#include <unistd.h>

#include "apps/commands/commands.h"
#include "apps/commands/points_command.h"
#include "common/random.h"
#include "storage/directory_store.h"
#include "storage/lease_table.h"

namespace gradtap::commands {

namespace {

using SteadyClock = std::chrono::steady_clock;

// 1: the point is not there, or there can be no lease; 2: it could not be asked.
int not_held(const Error& error) {
  std::fputs((error.text() + "\n").c_str(), stderr);
  return error.code == ErrorCode::kStoreOpen || error.code == ErrorCode::kOutOfRange ? 2 : 1;
}

// A descriptor that becomes readable on SIGTERM, SIGINT or SIGHUP, which no longer end the program by themselves.
class EndSignals {
 public:
  EndSignals() {
    sigset_t set;
    sigemptyset(&set);
    for (const int signal : {SIGTERM, SIGINT, SIGHUP}) sigaddset(&set, signal);
    (void)pthread_sigmask(SIG_BLOCK, &set, nullptr);
    (void)std::signal(SIGPIPE, SIG_IGN);
    fd_ = ::signalfd(-1, &set, SFD_CLOEXEC);
  }
  ~EndSignals() {
    if (fd_ >= 0) ::close(fd_);
  }
  EndSignals(const EndSignals&) = delete;
  EndSignals& operator=(const EndSignals&) = delete;
  [[nodiscard]] int fd() const { return fd_; }

 private:
  int fd_ = -1;
};

// Waits for the end until `until`; true when it has come. What is written to standard input means nothing.
bool end_comes(const EndSignals& signals, SteadyClock::time_point until) {
  for (;;) {
    const auto left = std::chrono::ceil<std::chrono::milliseconds>(until - SteadyClock::now()).count();
    if (left <= 0) return false;
    pollfd waits[2] = {{STDIN_FILENO, POLLIN, 0}, {signals.fd(), POLLIN, 0}};
    const int ready = ::poll(waits, 2, static_cast<int>(std::min<std::int64_t>(left, 60'000)));
    if (ready < 0 && errno != EINTR) return true;
    if (ready <= 0) continue;
    if (waits[1].revents != 0) return true;
    if (waits[0].revents == 0) continue;
    char ignored[4096];
    const ssize_t count = ::read(STDIN_FILENO, ignored, sizeof ignored);
    if (count == 0 || (count < 0 && errno != EINTR && errno != EAGAIN)) return true;
  }
}

Result<std::unique_ptr<storage::DirectoryStore>> open_store(const std::string& path, Random& random, bool read_only) {
  storage::DirectoryStoreOptions options;
  options.path = path;
  options.read_only = read_only;
  if (!read_only) options.writer = "hold-" + storage::new_uid(random);
  return storage::DirectoryStore::open(options);
}

}  // namespace

int points_hold(const PointOptions& options, const std::string& holder, unsigned renew_s) {
  if (options.source.find("://") != std::string::npos)
    return not_held({ErrorCode::kOutOfRange,
                     "points hold is for a directory",
                     options.source,
                     "a directory",
                     {},
                     "a node's gateway takes POST /v1/jobs/J/points/L/S/lease"});
  if (!options.lineage || *options.lineage < 1 || *options.lineage > ~LineageId{0} || !options.step)
    return not_held({ErrorCode::kOutOfRange,
                     "no point has this name",
                     "--lineage, --step",
                     "a lineage and a step",
                     {},
                     "see gradtap points list"});
  const auto lineage = static_cast<LineageId>(*options.lineage);
  const StepNumber step = *options.step;
  const std::string key = storage::point_key(options.job, lineage, step);
  SystemRandom random;
  {
    // Nothing is written where there is no such point.
    const auto reading = open_store(options.source, random, true);
    if (!reading) return not_held(reading.error());
    const auto length = (*reading)->length(key);
    if (!length && length.error().code == ErrorCode::kObjectMissing)
      return not_held({ErrorCode::kPointNone,
                       "the recovery point is not there, or no longer",
                       key,
                       "its record",
                       {},
                       "see gradtap points list"});
    if (!length) return not_held(length.error());
  }
  const EndSignals signals;
  const auto store = open_store(options.source, random, false);
  // kStoreOpen too: it could be read a moment ago.
  if (!store) {
    std::fputs((store.error().text() + "\n").c_str(), stderr);
    return 1;
  }
  auto lease = storage::take_lease_of_point(**store, options.job, lineage, step, holder, random);
  if (!lease) return not_held(lease.error());
  std::puts(("held " + key).c_str());
  const bool heard = std::fflush(stdout) == 0;
  bool told = false;
  const std::chrono::seconds pause(renew_s);
  while (heard && !end_comes(signals, SteadyClock::now() + pause)) {
    const Status renewed = lease->renew();
    if (!renewed && !told) std::fputs(("the lease is not renewed: " + renewed.error().text() + "\n").c_str(), stderr);
    told = !renewed;
  }
  if (const Status released = lease->release(); !released) return not_held(released.error());
  return 0;
}

}  // namespace gradtap::commands
