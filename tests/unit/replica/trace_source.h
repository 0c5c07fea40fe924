// Reads what optimizer_trace.py writes: the arithmetic of the installed torch, through a pipe.
#pragma once

#include <cstdint>
#include <cstdio>
#include <cstdlib>
#include <string>
#include <vector>

#include <nlohmann/json.hpp>

#include "common/bytes.h"

namespace gradtap::replica {

class TraceSource {
 public:
  // `environment` like "NAME=value"; `script` lies beside this file and may have arguments.
  TraceSource(const std::string& environment, const std::string& script) {
    const char* const python = std::getenv("GRADTAP_PYTHON");
    const std::string command = environment + " " + (python != nullptr ? python : "/usr/bin/python3") +
                                " " GRADTAP_SOURCE_DIR "/tests/unit/replica/" + script;
    pipe_ = popen(command.c_str(), "r");
  }
  ~TraceSource() { (void)close(); }
  TraceSource(const TraceSource&) = delete;
  TraceSource& operator=(const TraceSource&) = delete;

  // False at the end.
  bool header(nlohmann::json& head) {
    std::string line;
    for (int c = std::fgetc(pipe_); c != EOF && c != '\n'; c = std::fgetc(pipe_)) line.push_back(static_cast<char>(c));
    if (line.empty()) return false;
    head = nlohmann::json::parse(line);
    return true;
  }
  std::vector<float> floats(std::size_t count) {
    std::vector<float> values(count);
    ok_ = ok_ && std::fread(values.data(), 4, count, pipe_) == count;
    return values;
  }
  std::vector<std::uint8_t> bytes(std::size_t count) {
    std::vector<std::uint8_t> values(count);
    ok_ = ok_ && std::fread(values.data(), 1, count, pipe_) == count;
    return values;
  }
  [[nodiscard]] bool ok() const { return ok_; }
  // The exit status; 77 when torch is not installed.
  int close() {
    if (pipe_ == nullptr) return status_;
    const int status = pclose(pipe_);
    pipe_ = nullptr;
    status_ = WIFEXITED(status) ? WEXITSTATUS(status) : -1;
    return status_;
  }

 private:
  std::FILE* pipe_ = nullptr;
  bool ok_ = true;
  int status_ = -1;
};

inline ByteSpan as_bytes(const float* values, std::size_t count) {
  return {reinterpret_cast<const std::uint8_t*>(values), count * 4};
}

}  // namespace gradtap::replica
