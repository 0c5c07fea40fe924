// Certificates for tests, in a folder that removes itself, and the openssl program as a judge that shares no code.
#pragma once

#include <array>
#include <chrono>
#include <cstdio>
#include <cstdlib>
#include <filesystem>
#include <string>
#include <vector>

#include <doctest/doctest.h>
#include <sys/wait.h>

#include "link/authority_folder.h"
#include "link/certificate.h"
#include "link/identity.h"
#include "link/small_file.h"

namespace gradtap::link::testing {

inline constexpr std::int64_t kDayS = 86400;

inline std::int64_t now_s() {
  return std::chrono::duration_cast<std::chrono::seconds>(std::chrono::system_clock::now().time_since_epoch()).count();
}

class Folder {
 public:
  Folder() {
    std::string pattern = (std::filesystem::temp_directory_path() / "gradtap-link-XXXXXX").string();
    REQUIRE(::mkdtemp(pattern.data()) != nullptr);
    path_ = pattern;
  }
  ~Folder() {
    std::error_code ignored;
    std::filesystem::remove_all(path_, ignored);
  }
  Folder(const Folder&) = delete;
  Folder& operator=(const Folder&) = delete;
  [[nodiscard]] std::string operator/(const std::string& name) const { return path_ + "/" + name; }
  [[nodiscard]] const std::string& path() const { return path_; }

 private:
  std::string path_;
};

struct Said {
  int code = -1;
  std::string text;  // output and errors
};

inline Said openssl(const std::string& arguments) {
  Said said;
  std::FILE* const pipe = ::popen(("openssl " + arguments + " 2>&1 </dev/null").c_str(), "r");
  REQUIRE(pipe != nullptr);
  std::array<char, 4096> part;
  for (std::size_t got = 0; (got = std::fread(part.data(), 1, part.size(), pipe)) > 0;)
    said.text.append(part.data(), got);
  const int status = ::pclose(pipe);
  said.code = WIFEXITED(status) ? WEXITSTATUS(status) : -1;
  return said;
}

inline Validity valid_now() {
  return {now_s() - 3600, now_s() + 30 * kDayS};
}

// Three files in a folder, as a node is given them.
inline IdentityFiles files_in(const std::string& folder) {
  return {folder + "/ca.crt", folder + "/node.crt", folder + "/node.key"};
}

inline IdentityFiles write_identity(const std::string& folder, const std::string& authorities,
                                    const CertifiedKey& node) {
  std::filesystem::create_directories(folder);
  const IdentityFiles files = files_in(folder);
  REQUIRE(write_small_file(files.authorities, authorities, 0644));
  REQUIRE(write_small_file(files.key, node.key, 0600));
  REQUIRE(write_small_file(files.certificate, node.certificate, 0644));
  return files;
}

}  // namespace gradtap::link::testing
