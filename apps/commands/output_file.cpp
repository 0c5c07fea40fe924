#include "apps/commands/output_file.h"

#include <cerrno>
#include <cstring>
#include <filesystem>
#include <utility>

#include <fcntl.h>
#include <unistd.h>

namespace gradtap::commands {

Result<OutputFile> OutputFile::create(const std::string& path) {
  const std::string partial = path + ".partial";
  std::FILE* const file = std::fopen(partial.c_str(), "wb");
  if (file == nullptr)
    return fail(ErrorCode::kFileUnwritable, "cannot write the file", partial, {}, std::strerror(errno));
  return OutputFile(path, file);
}

OutputFile::OutputFile(OutputFile&& other) noexcept
    : path_(std::move(other.path_)),
      file_(std::exchange(other.file_, nullptr)),
      good_(other.good_),
      bytes_(other.bytes_) {}

OutputFile::~OutputFile() {
  if (file_ == nullptr) return;
  std::fclose(file_);
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
  good_ = ::fsync(fileno(file_)) == 0 && good_;
  if (!good_) return std::unexpected(error());
  std::fclose(std::exchange(file_, nullptr));
  std::error_code code;
  std::filesystem::rename(partial(), path_, code);
  if (!code) return {};
  const std::string reason = code.message();
  std::filesystem::remove(partial(), code);
  return fail(ErrorCode::kFileUnwritable, "cannot rename " + partial(), path_, {}, reason);
}

}  // namespace gradtap::commands
