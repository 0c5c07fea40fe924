// CapturePort: a Port over a capture file of any kind, without DPDK.
//
// Purpose: inspection of files that the driver's library refuses. Ownership: owns the mapped file; frames are views of
// it and stay valid for `kept_bytes` of the file after they were handed out. Threads: one. Invariants: as of Port.
// Failure behaviour: damage ends the file there; error() says where, and what came before it stands.
#pragma once

#include <memory>
#include <optional>
#include <string>

#include "common/error.h"
#include "dataplane/capture_file.h"
#include "dataplane/port.h"

namespace gradtap::dataplane {

class CapturePort final : public Port {
 public:
  static constexpr std::size_t kKeptBytes = std::size_t{64} << 20;

  [[nodiscard]] static Result<std::unique_ptr<CapturePort>> open(const std::string& path);

  [[nodiscard]] std::uint16_t queue_count() const override { return 1; }
  [[nodiscard]] std::uint16_t rx_burst(std::uint16_t queue, std::span<Frame> out) override;
  void release(std::span<const Frame>) override {}
  [[nodiscard]] bool exhausted() const override { return exhausted_; }
  [[nodiscard]] bool live() const override { return false; }
  [[nodiscard]] PortCounters counters() const override { return counters_; }
  [[nodiscard]] std::string describe() const override;

  [[nodiscard]] const std::optional<Error>& error() const { return error_; }
  [[nodiscard]] std::uint64_t skipped_records() const { return walker_.skipped_records(); }
  [[nodiscard]] std::uint64_t records() const { return records_; }

 private:
  CapturePort(CaptureFile file, CaptureWalker walker) : file_(std::move(file)), walker_(std::move(walker)) {}

  CaptureFile file_;
  CaptureWalker walker_;
  PortCounters counters_;
  std::uint64_t records_ = 0;
  const std::uint8_t* kept_from_ = nullptr;
  bool exhausted_ = false;
  std::optional<Error> error_;
};

}  // namespace gradtap::dataplane
