#include "link/small_file.h"

#include <array>
#include <cerrno>
#include <cstring>
#include <filesystem>

#include <fcntl.h>
#include <fmt/format.h>
#include <sys/stat.h>
#include <unistd.h>

#include "common/descriptor.h"

namespace gradtap::link {

Result<std::string> read_small_file(const std::string& path) {
  const Descriptor file(::open(path.c_str(), O_RDONLY | O_CLOEXEC));
  struct stat about{};
  if (file.get() < 0 || ::fstat(file.get(), &about) != 0)
    return fail(ErrorCode::kFileUnreadable, "cannot read the file", path, {}, std::strerror(errno));
  if (!S_ISREG(about.st_mode))
    return fail(ErrorCode::kFileUnreadable, "cannot read the file", path, "a file", "something else");
  std::string bytes;
  std::array<char, 16384> part;
  for (;;) {
    const ssize_t got = ::read(file.get(), part.data(), part.size());
    if (got < 0 && errno == EINTR) continue;
    if (got < 0) return fail(ErrorCode::kFileUnreadable, "cannot read the file", path, {}, std::strerror(errno));
    if (got == 0) return bytes;
    bytes.append(part.data(), static_cast<std::size_t>(got));
    if (bytes.size() > kSmallFileBytesMax)
      return fail(ErrorCode::kFileUnreadable, "the file is too large", path,
                  fmt::format("at most {} bytes", kSmallFileBytesMax), "more");
  }
}

Status write_small_file(const std::string& path, std::string_view bytes, mode_t mode) {
  const std::string partial = path + ".partial";
  const auto failed = [&](int why) {
    ::unlink(partial.c_str());
    return fail(ErrorCode::kFileUnwritable, "cannot write the file", path, {}, std::strerror(why),
                "check the folder's permissions and free space");
  };
  ::unlink(partial.c_str());
  {
    const Descriptor file(::open(partial.c_str(), O_WRONLY | O_CREAT | O_EXCL | O_CLOEXEC, mode & S_IRWXU));
    if (file.get() < 0) return failed(errno);
    while (!bytes.empty()) {
      const ssize_t put = ::write(file.get(), bytes.data(), bytes.size());
      if (put < 0 && errno == EINTR) continue;
      if (put < 0) return failed(errno);
      bytes.remove_prefix(static_cast<std::size_t>(put));
    }
    if (::fchmod(file.get(), mode) != 0 || ::fsync(file.get()) != 0) return failed(errno);
  }
  if (::rename(partial.c_str(), path.c_str()) != 0) return failed(errno);
  const std::string folder = std::filesystem::path(path).parent_path().string();
  const Descriptor parent(::open(folder.empty() ? "." : folder.c_str(), O_RDONLY | O_DIRECTORY | O_CLOEXEC));
  if (parent.get() >= 0) (void)::fsync(parent.get());
  return {};
}

}  // namespace gradtap::link
