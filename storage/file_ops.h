// FileOps: the file system calls of the directory store as a parameter, so that tests and drills make any of them fail.
//
// Purpose: SystemFileOps makes the calls. FaultyFileOps lets a plan decide which call fails, is cut short or is slow.
// Ownership: FaultyFileOps does not own the one below it. Threads: any. Failure: as the calls themselves: -1 and errno.
#pragma once

#include <array>
#include <atomic>
#include <cstdint>
#include <string>
#include <string_view>
#include <vector>

#include <sys/types.h>

#include "common/error.h"

namespace gradtap::storage {

enum class FileOp : std::uint8_t { kOpen, kWrite, kRead, kSync, kSyncDirectory, kLink, kUnlink, kMakeDirectory, kList };
inline constexpr std::size_t kFileOps = 9;
[[nodiscard]] std::string_view file_op_name(FileOp op);  // "open", "write", "read", "fsync", "fsync_dir", "link", ...

class FileOps {
 public:
  virtual ~FileOps() = default;
  virtual int open(const std::string& path, int flags) = 0;  // new files have mode 0644
  virtual ssize_t write(int fd, const void* bytes, std::size_t count) = 0;
  virtual ssize_t read(int fd, void* bytes, std::size_t count, off_t offset) = 0;
  virtual int sync(int fd) = 0;
  virtual int sync_directory(const std::string& path) = 0;
  virtual int link(const std::string& from, const std::string& to) = 0;
  virtual int unlink(const std::string& path) = 0;
  virtual int make_directory(const std::string& path) = 0;
  // Names in a directory, without "." and ".."; directories end in '/'. Not sorted.
  virtual int list(const std::string& path, std::vector<std::string>& names) = 0;
  // Bytes of a regular file; -1 and errno (EINVAL: it is none).
  virtual std::int64_t length(int fd) = 0;
  // The first `bytes` of the file will be read soon: a hint, no call that can fail.
  virtual void expect(int /*fd*/, std::uint64_t /*bytes*/) {}
  virtual void close(int fd) = 0;
};

class SystemFileOps final : public FileOps {
 public:
  int open(const std::string& path, int flags) override;
  ssize_t write(int fd, const void* bytes, std::size_t count) override;
  ssize_t read(int fd, void* bytes, std::size_t count, off_t offset) override;
  int sync(int fd) override;
  int sync_directory(const std::string& path) override;
  int link(const std::string& from, const std::string& to) override;
  int unlink(const std::string& path) override;
  int make_directory(const std::string& path) override;
  int list(const std::string& path, std::vector<std::string>& names) override;
  std::int64_t length(int fd) override;
  void expect(int fd, std::uint64_t bytes) override;
  void close(int fd) override;
};

// Calls first..last of one operation (counted from 1) do something else than they should.
struct Fault {
  FileOp op = FileOp::kWrite;
  std::uint64_t first = 1;
  std::uint64_t last = 1;
  int error = 0;               // errno; 0: none
  bool half = false;           // a write takes half of its bytes (one at least)
  std::uint64_t delay_ms = 0;  // the call is slow
};

// "write:3:ENOSPC,fsync:2-9:EIO,link:1+:EROFS,write:1+:short,fsync_dir:1+:slow=200": operation, which calls ("n",
// "n-m", "n+"), what happens. Errors: ENOSPC, EIO, EDQUOT, EROFS, EACCES, ENOENT, ESTALE. Empty text: no faults.
[[nodiscard]] Result<std::vector<Fault>> parse_faults(std::string_view text);

// The faults that GRADTAP_FAULT names, over the system's calls, for the life of the process; null when it names none.
[[nodiscard]] Result<FileOps*> faults_from_environment();

class FaultyFileOps final : public FileOps {
 public:
  FaultyFileOps(FileOps& below, std::vector<Fault> faults) : below_(below), faults_(std::move(faults)) {}

  int open(const std::string& path, int flags) override;
  ssize_t write(int fd, const void* bytes, std::size_t count) override;
  ssize_t read(int fd, void* bytes, std::size_t count, off_t offset) override;
  int sync(int fd) override;
  int sync_directory(const std::string& path) override;
  int link(const std::string& from, const std::string& to) override;
  int unlink(const std::string& path) override;
  int make_directory(const std::string& path) override;
  int list(const std::string& path, std::vector<std::string>& names) override;
  std::int64_t length(int fd) override { return below_.length(fd); }
  void expect(int fd, std::uint64_t bytes) override { below_.expect(fd, bytes); }
  void close(int fd) override { below_.close(fd); }

  [[nodiscard]] std::uint64_t calls(FileOp op) const { return calls_[static_cast<std::size_t>(op)]; }

 private:
  const Fault* reached(FileOp op);  // counts the call, waits if it is slow
  bool fails(FileOp op);            // sets errno

  FileOps& below_;
  const std::vector<Fault> faults_;
  std::array<std::atomic<std::uint64_t>, kFileOps> calls_{};
};

}  // namespace gradtap::storage
