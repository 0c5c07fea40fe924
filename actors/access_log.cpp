#include "actors/access_log.h"

#include <cerrno>
#include <chrono>
#include <cstdio>
#include <cstring>

#include <fcntl.h>
#include <nlohmann/json.hpp>
#include <sys/stat.h>
#include <unistd.h>

namespace gradtap::actors {

namespace {
constexpr mode_t kMode = S_IRUSR | S_IWUSR | S_IRGRP;
constexpr std::size_t kTextMax = 1000;
}  // namespace

bool AccessLog::reopen() {
  if (descriptor_ >= 0) ::close(descriptor_);
  descriptor_ = ::open(path_.c_str(), O_WRONLY | O_CREAT | O_APPEND | O_CLOEXEC | O_NOFOLLOW, kMode);
  struct stat about{};
  if (descriptor_ < 0 || ::fstat(descriptor_, &about) != 0) return false;
  bytes_ = static_cast<std::uint64_t>(about.st_size);
  return true;
}

Result<std::shared_ptr<AccessLog>> AccessLog::open(const std::string& path, std::uint64_t bytes_max) {
  std::shared_ptr<AccessLog> log(new AccessLog(path, bytes_max));
  if (!log->reopen())
    return fail(ErrorCode::kFileUnwritable, "the access log cannot be opened", path, "a file of this user",
                std::strerror(errno), "check node.data_dir and its permissions");
  return log;
}

AccessLog::~AccessLog() {
  if (descriptor_ >= 0) ::close(descriptor_);
}

void AccessLog::add(const AccessRecord& record) {
  const auto now =
      std::chrono::duration_cast<std::chrono::milliseconds>(std::chrono::system_clock::now().time_since_epoch());
  const nlohmann::json fields = {{"wall_ms", now.count()},
                                 {"caller", record.caller.substr(0, kTextMax)},
                                 {"path", record.path.substr(0, kTextMax)},
                                 {"query", record.query.substr(0, kTextMax)},
                                 {"bytes", record.bytes},
                                 {"result", record.result}};
  // Text from outside may not be UTF-8: replace instead of throwing.
  const std::string line = fields.dump(-1, ' ', false, nlohmann::json::error_handler_t::replace) + "\n";
  const std::lock_guard lock(mutex_);
  if (bytes_ + line.size() > bytes_max_ && bytes_ > 0) {
    (void)std::rename(path_.c_str(), (path_ + ".1").c_str());
    (void)reopen();
  }
  if (descriptor_ < 0 || ::write(descriptor_, line.data(), line.size()) != static_cast<ssize_t>(line.size())) {
    lost_.fetch_add(1, std::memory_order_relaxed);
    return;
  }
  bytes_ += line.size();
  added_.fetch_add(1, std::memory_order_relaxed);
}

}  // namespace gradtap::actors
