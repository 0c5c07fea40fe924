// OutputFile: a file that is whole or not there: written as FILE.partial, synced, renamed by commit().
//
// "/dev/fd/N" is a descriptor that the caller opened (memory, or a file without a name): it is written from its
// beginning, in place, and not synced; the exit code alone says that it is whole. One thread. A file that is not
// committed is deleted. Failure behaviour: FILE_UNWRITABLE with the path.
#pragma once

#include <cstdint>
#include <cstdio>
#include <string>
#include <string_view>

#include "common/error.h"

namespace gradtap::commands {

class OutputFile {
 public:
  [[nodiscard]] static Result<OutputFile> create(const std::string& path);
  ~OutputFile();
  OutputFile(OutputFile&& other) noexcept;
  OutputFile(const OutputFile&) = delete;
  OutputFile& operator=(const OutputFile&) = delete;
  OutputFile& operator=(OutputFile&&) = delete;

  [[nodiscard]] bool write(std::string_view bytes);  // false: commit() says why
  [[nodiscard]] Status commit();
  [[nodiscard]] bool good() const { return good_; }
  [[nodiscard]] std::uint64_t bytes() const { return bytes_; }
  [[nodiscard]] Error error() const;
  // Starts again from the beginning.
  [[nodiscard]] bool rewind();

 private:
  OutputFile(std::string path, std::FILE* file, bool in_place)
      : path_(std::move(path)), file_(file), in_place_(in_place) {}
  [[nodiscard]] std::string partial() const { return in_place_ ? path_ : path_ + ".partial"; }

  std::string path_;
  std::FILE* file_;
  bool in_place_ = false;
  bool good_ = true;
  std::uint64_t bytes_ = 0;
};

}  // namespace gradtap::commands
