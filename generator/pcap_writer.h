// PcapWriter: frames into a classic pcap file with nanoseconds.
//
// Ownership: owns the file. Threads: one. Failure behaviour: a write that fails is remembered; close() says it. Frames
// are written whole.
#pragma once

#include <cstdint>
#include <cstdio>
#include <memory>
#include <string>

#include "common/error.h"
#include "generator/fabric_frame.h"

namespace gradtap::generator {

class PcapWriter final : public FrameSink {
 public:
  [[nodiscard]] static Result<std::unique_ptr<PcapWriter>> create(const std::string& path);
  ~PcapWriter() override;
  PcapWriter(const PcapWriter&) = delete;
  PcapWriter& operator=(const PcapWriter&) = delete;

  void frame(std::uint64_t time_ns, ByteSpan bytes, const FrameNote& note) override;
  [[nodiscard]] Status close();
  [[nodiscard]] std::uint64_t frames() const { return frames_; }

 private:
  PcapWriter(std::FILE* file, std::string path) : file_(file), path_(std::move(path)) {}
  void put(const void* bytes, std::size_t count);

  std::FILE* file_;
  std::string path_;
  std::uint64_t frames_ = 0;
  bool failed_ = false;
};

}  // namespace gradtap::generator
