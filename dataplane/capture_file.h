// CaptureFile: a bounded walk over the records of a classic pcap file.
//
// Purpose: counting what a capture holds (the DPDK pcap driver never says that it reached the end) and feeding tests
// and tools without DPDK. Micro- and nanosecond files of either byte order, Ethernet only. Ownership: maps the file;
// record bytes are valid while the CaptureFile lives. Threads: const after open.
// Failure behaviour: a record that is cut by the end of the file, or is longer than any frame, ends the walk with a
// named error; nothing beyond the mapped bytes is read.
#pragma once

#include <cstddef>
#include <cstdint>
#include <string>

#include "common/bytes.h"
#include "common/error.h"

namespace gradtap::dataplane {

struct CaptureRecord {
  ByteSpan bytes;
  std::uint32_t wire_bytes = 0;
  std::uint64_t time_ns = 0;
};

// Walks the records of a capture that is already in memory.
class CaptureWalker {
 public:
  static constexpr std::size_t kFileHeaderBytes = 24;
  static constexpr std::size_t kRecordHeaderBytes = 16;
  static constexpr std::uint32_t kMaxRecordBytes = 1U << 18;

  [[nodiscard]] static Result<CaptureWalker> over(ByteSpan file, std::string name);
  // True: `record` is filled. False: the end was reached.
  [[nodiscard]] Result<bool> next(CaptureRecord& record);

 private:
  CaptureWalker(ByteSpan file, std::string name) : file_(file), name_(std::move(name)) {}
  [[nodiscard]] std::uint32_t word(std::size_t offset) const;

  ByteSpan file_;
  std::string name_;
  std::size_t offset_ = kFileHeaderBytes;
  bool swapped_ = false;
  bool nanoseconds_ = false;
};

struct CaptureCounts {
  std::uint64_t records = 0;
  std::uint64_t bytes = 0;
  std::uint64_t cut_records = 0;    // captured shorter than on the wire
  std::uint32_t largest_bytes = 0;  // on the wire
};

class CaptureFile {
 public:
  [[nodiscard]] static Result<CaptureFile> open(const std::string& path);
  CaptureFile(CaptureFile&& other) noexcept;
  CaptureFile& operator=(CaptureFile&& other) noexcept;
  ~CaptureFile();

  [[nodiscard]] Result<CaptureWalker> walk() const { return CaptureWalker::over(bytes(), path_); }
  [[nodiscard]] Result<CaptureCounts> count() const;
  [[nodiscard]] const std::string& path() const { return path_; }

 private:
  CaptureFile() = default;
  [[nodiscard]] ByteSpan bytes() const { return {static_cast<const std::uint8_t*>(map_), size_}; }

  std::string path_;
  void* map_ = nullptr;
  std::size_t size_ = 0;
};

}  // namespace gradtap::dataplane
