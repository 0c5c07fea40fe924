#include "storage/file_ops.h"

#include <cerrno>
#include <charconv>
#include <chrono>
#include <thread>

#include <dirent.h>
#include <fcntl.h>
#include <fmt/format.h>
#include <sys/stat.h>
#include <unistd.h>

namespace gradtap::storage {
namespace {

constexpr std::string_view kOpNames[kFileOps] = {"open", "write",  "read",  "fsync", "fsync_dir",
                                                 "link", "unlink", "mkdir", "list"};
struct ErrorWord {
  std::string_view name;
  int number;
};
constexpr ErrorWord kErrors[] = {{"ENOSPC", ENOSPC}, {"EIO", EIO},       {"EDQUOT", EDQUOT}, {"EROFS", EROFS},
                                 {"EACCES", EACCES}, {"ENOENT", ENOENT}, {"ESTALE", ESTALE}};
constexpr std::uint64_t kDelayMax = 600'000;

std::string_view cut(std::string_view& text, char end) {
  const std::size_t at = text.find(end);
  const std::string_view part = text.substr(0, at);
  text.remove_prefix(at == std::string_view::npos ? text.size() : at + 1);
  return part;
}

bool read_number(std::string_view text, std::uint64_t& out) {
  const auto [end, error] = std::from_chars(text.data(), text.data() + text.size(), out);
  return error == std::errc{} && end == text.data() + text.size();
}

bool parse_calls(std::string_view text, Fault& fault) {
  if (text.ends_with('+')) {
    fault.last = ~std::uint64_t{0};
    return read_number(text.substr(0, text.size() - 1), fault.first) && fault.first > 0;
  }
  const std::string_view first = cut(text, '-');
  if (!read_number(first, fault.first)) return false;
  fault.last = fault.first;
  return (text.empty() || read_number(text, fault.last)) && fault.first > 0 && fault.last >= fault.first;
}

bool parse_effect(std::string_view text, Fault& fault) {
  if (text == "short") {
    fault.half = true;
    return fault.op == FileOp::kWrite;
  }
  if (text.starts_with("slow=")) return read_number(text.substr(5), fault.delay_ms) && fault.delay_ms <= kDelayMax;
  for (const ErrorWord& word : kErrors)
    if (word.name == text) fault.error = word.number;
  return fault.error != 0;
}

bool parse_op(std::string_view text, Fault& fault) {
  for (std::size_t i = 0; i < kFileOps; ++i) {
    if (kOpNames[i] != text) continue;
    fault.op = static_cast<FileOp>(i);
    return true;
  }
  return false;
}

}  // namespace

std::string_view file_op_name(FileOp op) {
  return kOpNames[static_cast<std::size_t>(op)];
}

int SystemFileOps::open(const std::string& path, int flags) {
  return ::open(path.c_str(), flags | O_CLOEXEC | O_NOFOLLOW, 0644);
}

ssize_t SystemFileOps::write(int fd, const void* bytes, std::size_t count) {
  return ::write(fd, bytes, count);
}

ssize_t SystemFileOps::read(int fd, void* bytes, std::size_t count, off_t offset) {
  return ::pread(fd, bytes, count, offset);
}

void SystemFileOps::expect(int fd, std::uint64_t bytes) {
  (void)::posix_fadvise(fd, 0, static_cast<off_t>(bytes), POSIX_FADV_WILLNEED);
}

int SystemFileOps::sync(int fd) {
  return ::fsync(fd);
}

int SystemFileOps::sync_directory(const std::string& path) {
  const int fd = ::open(path.c_str(), O_RDONLY | O_DIRECTORY | O_CLOEXEC);
  if (fd < 0) return -1;
  const int result = ::fsync(fd);
  const int error = errno;
  ::close(fd);
  errno = error;
  return result;
}

int SystemFileOps::link(const std::string& from, const std::string& to) {
  return ::link(from.c_str(), to.c_str());
}

int SystemFileOps::unlink(const std::string& path) {
  return ::unlink(path.c_str());
}

int SystemFileOps::make_directory(const std::string& path) {
  return ::mkdir(path.c_str(), 0755);
}

int SystemFileOps::list(const std::string& path, std::vector<std::string>& names) {
  DIR* const directory = ::opendir(path.c_str());
  if (directory == nullptr) return -1;
  for (;;) {
    errno = 0;
    const dirent* const entry = ::readdir(directory);
    if (entry == nullptr) break;
    std::string name = entry->d_name;
    if (name == "." || name == "..") continue;
    bool folder = entry->d_type == DT_DIR;
    if (entry->d_type == DT_UNKNOWN) {
      struct stat status{};
      folder =
          ::fstatat(::dirfd(directory), entry->d_name, &status, AT_SYMLINK_NOFOLLOW) == 0 && S_ISDIR(status.st_mode);
    }
    if (folder) name += '/';
    names.push_back(std::move(name));
  }
  const int error = errno;
  ::closedir(directory);
  errno = error;
  return error == 0 ? 0 : -1;
}

std::int64_t SystemFileOps::length(int fd) {
  struct stat status{};
  if (::fstat(fd, &status) != 0) return -1;
  if (S_ISREG(status.st_mode)) return status.st_size;
  errno = EINVAL;
  return -1;
}

void SystemFileOps::close(int fd) {
  ::close(fd);
}

Result<std::vector<Fault>> parse_faults(std::string_view text) {
  std::vector<Fault> faults;
  while (!text.empty()) {
    const std::string_view part = cut(text, ',');
    std::string_view rest = part;
    Fault fault;
    if (!parse_op(cut(rest, ':'), fault) || !parse_calls(cut(rest, ':'), fault) || !parse_effect(rest, fault))
      return fail(ErrorCode::kBadText, "fault plan has a wrong form", std::string(part),
                  "operation:n|n-m|n+:ENOSPC|EIO|EDQUOT|EROFS|EACCES|ENOENT|ESTALE|short|slow=MS",
                  fmt::format("\"{}\"", part), "operations: open write read fsync fsync_dir link unlink mkdir list");
    faults.push_back(fault);
  }
  return faults;
}

const Fault* FaultyFileOps::reached(FileOp op) {
  const std::uint64_t call = ++calls_[static_cast<std::size_t>(op)];
  const Fault* hit = nullptr;
  for (const Fault& fault : faults_) {
    if (fault.op != op || call < fault.first || call > fault.last) continue;
    if (fault.delay_ms > 0) std::this_thread::sleep_for(std::chrono::milliseconds(fault.delay_ms));
    if (fault.error != 0 || fault.half) hit = &fault;
  }
  return hit;
}

bool FaultyFileOps::fails(FileOp op) {
  const Fault* const fault = reached(op);
  if (fault == nullptr || fault->error == 0) return false;
  errno = fault->error;
  return true;
}

int FaultyFileOps::open(const std::string& path, int flags) {
  return fails(FileOp::kOpen) ? -1 : below_.open(path, flags);
}

ssize_t FaultyFileOps::write(int fd, const void* bytes, std::size_t count) {
  const Fault* const fault = reached(FileOp::kWrite);
  if (fault != nullptr && fault->error != 0) {
    errno = fault->error;
    return -1;
  }
  return below_.write(fd, bytes, fault != nullptr && count > 1 ? count / 2 : count);
}

ssize_t FaultyFileOps::read(int fd, void* bytes, std::size_t count, off_t offset) {
  return fails(FileOp::kRead) ? -1 : below_.read(fd, bytes, count, offset);
}

int FaultyFileOps::sync(int fd) {
  return fails(FileOp::kSync) ? -1 : below_.sync(fd);
}

int FaultyFileOps::sync_directory(const std::string& path) {
  return fails(FileOp::kSyncDirectory) ? -1 : below_.sync_directory(path);
}

int FaultyFileOps::link(const std::string& from, const std::string& to) {
  return fails(FileOp::kLink) ? -1 : below_.link(from, to);
}

int FaultyFileOps::unlink(const std::string& path) {
  return fails(FileOp::kUnlink) ? -1 : below_.unlink(path);
}

int FaultyFileOps::make_directory(const std::string& path) {
  return fails(FileOp::kMakeDirectory) ? -1 : below_.make_directory(path);
}

int FaultyFileOps::list(const std::string& path, std::vector<std::string>& names) {
  return fails(FileOp::kList) ? -1 : below_.list(path, names);
}

Result<FileOps*> faults_from_environment() {
  const char* text = std::getenv("GRADTAP_FAULT");
  if (text == nullptr || *text == 0) return nullptr;
  auto faults = parse_faults(text);
  if (!faults) return std::unexpected(faults.error());
  static SystemFileOps system;
  static FaultyFileOps faulty(system, std::move(*faults));
  return &faulty;
}

}  // namespace gradtap::storage
