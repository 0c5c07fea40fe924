// The program `gradtap`, run beside a test.
#pragma once

#include <array>
#include <cstdio>
#include <filesystem>
#include <string>

#include <doctest/doctest.h>
#include <sys/wait.h>

namespace gradtap::testing {

struct Answer {
  int code = -1;
  std::string text;  // standard output and errors
};

// environment: assignments before the command, as a shell takes them.
inline Answer run_gradtap(const std::string& arguments, const std::string& environment = {}) {
  const std::string program = std::filesystem::read_symlink("/proc/self/exe").parent_path() / "gradtap";
  std::FILE* const pipe = ::popen((environment + " " + program + " " + arguments + " 2>&1 </dev/null").c_str(), "r");
  REQUIRE(pipe != nullptr);
  Answer answer;
  std::array<char, 4096> part;
  for (std::size_t n = 0; (n = std::fread(part.data(), 1, part.size(), pipe)) > 0;) answer.text.append(part.data(), n);
  const int status = ::pclose(pipe);
  answer.code = WIFEXITED(status) ? WEXITSTATUS(status) : -1;
  return answer;
}

}  // namespace gradtap::testing
