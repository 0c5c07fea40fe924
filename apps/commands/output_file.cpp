#include "apps/commands/output_file.h"

#include <cerrno>
#include <charconv>
#include <cstring>
#include <filesystem>
#include <utility>

#include <fcntl.h>
#include <sys/stat.h>
#include <unistd.h>

namespace gradtap::commands {

namespace {

constexpr std::string_view kDescriptors = "/dev/fd/";

// A stream over a copy of the caller's descriptor, which must be a regular file (or memory) that is writable.
std::FILE* open_descriptor(std::string_view number) {
  int fd = -1;
  const auto [end, error] = std::from_chars(number.data(), number.data() + number.size(), fd);
  struct stat status{};
  if (error != std::errc{} || end != number.data() + number.size() || ::fstat(fd, &status) != 0 ||
      !S_ISREG(status.st_mode)) {
    errno = EBADF;
    return nullptr;
  }
  const int own = ::fcntl(fd, F_DUPFD_CLOEXEC, 3);
  if (own < 0) return nullptr;
  std::FILE* const file = ::ftruncate(own, 0) == 0 && ::lseek(own, 0, SEEK_SET) == 0 ? ::fdopen(own, "wb") : nullptr;
  if (file == nullptr) {
    const int reason = errno;
    ::close(own);
    errno = reason;
  }
  return file;
}

}  // namespace

Result<OutputFile> OutputFile::create(const std::string& path) {
  if (path.starts_with(kDescriptors)) {
    std::FILE* const file = open_descriptor(std::string_view(path).substr(kDescriptors.size()));
    if (file == nullptr)
      return fail(ErrorCode::kFileUnwritable, "cannot write the descriptor", path, "an open regular file",
                  std::strerror(errno), "pass on a descriptor of a file or of memory, or name a file");
    return OutputFile(path, file, true);
  }
  const std::string partial = path + ".partial";
  std::FILE* const file = std::fopen(partial.c_str(), "wb");
  if (file == nullptr)
    return fail(ErrorCode::kFileUnwritable, "cannot write the file", partial, {}, std::strerror(errno));
  return OutputFile(path, file, false);
}

OutputFile::OutputFile(OutputFile&& other) noexcept
    : path_(std::move(other.path_)),
      file_(std::exchange(other.file_, nullptr)),
      in_place_(other.in_place_),
      good_(other.good_),
      bytes_(other.bytes_) {}

OutputFile::~OutputFile() {
  if (file_ == nullptr) return;
  std::fclose(file_);
  if (in_place_) return;
  std::error_code ignored;
  std::filesystem::remove(partial(), ignored);
}

bool OutputFile::write(std::string_view bytes) {
  good_ = good_ && std::fwrite(bytes.data(), 1, bytes.size(), file_) == bytes.size();
  bytes_ += bytes.size();
  return good_;
}

bool OutputFile::rewind() {
  good_ = std::fseek(file_, 0, SEEK_SET) == 0 && ::ftruncate(fileno(file_), 0) == 0;
  bytes_ = 0;
  return good_;
}

Error OutputFile::error() const {
  return {ErrorCode::kFileUnwritable, "cannot write the file", partial(), {},
          std::strerror(errno),       "is the disk full?"};
}

Status OutputFile::commit() {
  good_ = std::fflush(file_) == 0 && good_;
  if (!in_place_) good_ = ::fsync(fileno(file_)) == 0 && good_;
  if (!good_) return std::unexpected(error());
  std::fclose(std::exchange(file_, nullptr));
  if (in_place_) return {};
  std::error_code code;
  std::filesystem::rename(partial(), path_, code);
  if (!code) return {};
  const std::string reason = code.message();
  std::filesystem::remove(partial(), code);
  return fail(ErrorCode::kFileUnwritable, "cannot rename " + partial(), path_, {}, reason);
}

}  // namespace gradtap::commands
