// Runs torch_check.py: the installed torch as the judge of torch files.
#pragma once

#include <cstdio>
#include <cstdlib>
#include <fstream>
#include <string>

#include <doctest/doctest.h>
#include <sys/wait.h>

namespace gradtap::recovery::test {

struct TorchAnswer {
  int status = -1;  // 77: torch is not installed
  std::string text;
};

// Kernels without FMA, so that the arithmetic is the same on every host.
inline TorchAnswer ask_torch(const std::string& arguments) {
  const char* const python = std::getenv("GRADTAP_PYTHON");
  const std::string command = std::string("ATEN_CPU_CAPABILITY=default OMP_NUM_THREADS=1 ") +
                              (python != nullptr ? python : "/usr/bin/python3") +
                              " " GRADTAP_SOURCE_DIR "/tests/unit/recovery/torch_check.py " + arguments + " 2>&1";
  TorchAnswer answer;
  std::FILE* const pipe = popen(command.c_str(), "r");
  REQUIRE(pipe != nullptr);
  char buffer[4096];
  while (const std::size_t count = std::fread(buffer, 1, sizeof buffer, pipe)) answer.text.append(buffer, count);
  const int status = pclose(pipe);
  answer.status = WIFEXITED(status) ? WEXITSTATUS(status) : -1;
  return answer;
}

// Empty when torch is not installed.
inline const std::string& torch_version() {
  static const std::string version = [] {
    TorchAnswer answer = ask_torch("version");
    if (answer.status == 77) {
      MESSAGE("SKIPPED: torch is not installed");
      return std::string();
    }
    REQUIRE_MESSAGE(answer.status == 0, answer.text);
    return answer.text.substr(0, answer.text.find('\n'));
  }();
  return version;
}

inline void write_file(const std::string& path, const std::string& bytes) {
  std::ofstream out(path, std::ios::binary);
  out.write(bytes.data(), static_cast<std::streamsize>(bytes.size()));
  REQUIRE(out.good());
}

}  // namespace gradtap::recovery::test
