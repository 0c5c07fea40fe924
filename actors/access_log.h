// AccessLog: who read the state of a job, what, how many bytes, and how it ended; one JSON object a line.
//
// Purpose: what a restore or a download took stays on record in the data directory. Ownership: its file. Threads: any,
// one lock; a line is one write. Invariants: never larger than bytes_max twice: at the bound the file becomes NAME.1,
// replacing the one before. Failure behaviour: a line that cannot be written is counted, the read goes on.
#pragma once

#include <atomic>
#include <cstdint>
#include <memory>
#include <mutex>
#include <string>

#include "common/error.h"

namespace gradtap::actors {

struct AccessRecord {
  std::string caller;  // address, and key or token
  std::string path;    // names job, lineage and step
  std::string query;
  std::uint64_t bytes = 0;  // of the stream
  std::string result;       // whole, cut, or the name of an error
};

class AccessLog {
 public:
  [[nodiscard]] static Result<std::shared_ptr<AccessLog>> open(const std::string& path, std::uint64_t bytes_max);
  ~AccessLog();
  AccessLog(const AccessLog&) = delete;
  AccessLog& operator=(const AccessLog&) = delete;

  void add(const AccessRecord& record);
  [[nodiscard]] std::uint64_t added() const { return added_.load(std::memory_order_relaxed); }
  [[nodiscard]] std::uint64_t lost() const { return lost_.load(std::memory_order_relaxed); }

 private:
  AccessLog(std::string path, std::uint64_t bytes_max) : path_(std::move(path)), bytes_max_(bytes_max) {}
  [[nodiscard]] bool reopen();

  const std::string path_;
  const std::uint64_t bytes_max_;
  std::mutex mutex_;
  int descriptor_ = -1;
  std::uint64_t bytes_ = 0;
  std::atomic<std::uint64_t> added_{0};
  std::atomic<std::uint64_t> lost_{0};
};

}  // namespace gradtap::actors
