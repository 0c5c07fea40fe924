// CaptureFile: a bounded walk over the Ethernet records of a capture file, classic pcap or pcapng.
//
// Purpose: counting what a capture holds (the DPDK pcap driver never says that it reached the end) and feeding tests
// and tools without DPDK. Classic: micro- and nanosecond files of either byte order; pcapng: pcapng_walker.h.
// Ownership: maps the file; record bytes are valid while the CaptureFile lives (a file of any size costs no memory of
// its own; forget_before() gives back what the page cache mapped). Threads: const after open.
// Failure behaviour: a record that is cut by the end of the file, or is longer than any frame, ends the walk with a
// named error; nothing beyond the mapped bytes is read.
#pragma once

#include <cstddef>
#include <cstdint>
#include <optional>
#include <string>

#include "common/bytes.h"
#include "common/error.h"
#include "dataplane/capture_record.h"
#include "dataplane/pcapng_walker.h"

namespace gradtap::dataplane {

// Walks the records of a capture that is already in memory.
class CaptureWalker {
 public:
  static constexpr std::size_t kFileHeaderBytes = 24;
  static constexpr std::size_t kRecordHeaderBytes = 16;

  [[nodiscard]] static Result<CaptureWalker> over(ByteSpan file, std::string name);
  // True: `record` is filled. False: the end was reached.
  [[nodiscard]] Result<bool> next(CaptureRecord& record);
  [[nodiscard]] bool is_pcapng() const { return blocks_.has_value(); }
  // Records of interfaces that are not Ethernet.
  [[nodiscard]] std::uint64_t skipped_records() const { return blocks_ ? blocks_->skipped_records() : 0; }

 private:
  CaptureWalker(ByteSpan file, std::string name) : file_(file), name_(std::move(name)) {}
  [[nodiscard]] std::uint32_t word(std::size_t offset) const;

  ByteSpan file_;
  std::string name_;
  std::size_t offset_ = kFileHeaderBytes;
  bool swapped_ = false;
  bool nanoseconds_ = false;
  std::optional<PcapngWalker> blocks_;  // of a pcapng file
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
  // Every record in order; what was visited long ago does not stay mapped. Damage ends the walk there.
  template <class F>
  [[nodiscard]] Status each_record(F visit) const;
  [[nodiscard]] const std::string& path() const { return path_; }
  // The bytes before `position` (of a record) will not be read soon: their pages need not stay mapped.
  void forget_before(const std::uint8_t* position) const;

 private:
  CaptureFile() = default;
  [[nodiscard]] ByteSpan bytes() const { return {static_cast<const std::uint8_t*>(map_), size_}; }

  static constexpr std::size_t kKeptBytes = std::size_t{64} << 20;

  std::string path_;
  void* map_ = nullptr;
  std::size_t size_ = 0;
};

template <class F>
Status CaptureFile::each_record(F visit) const {
  auto walker = walk();
  if (!walker) return std::unexpected(walker.error());
  CaptureRecord record;
  const std::uint8_t* kept_from = bytes().data();
  while (true) {
    const auto more = walker->next(record);
    if (!more) return std::unexpected(more.error());
    if (!*more) return {};
    visit(record);
    if (static_cast<std::size_t>(record.bytes.data() - kept_from) > kKeptBytes) {
      kept_from = record.bytes.data();
      forget_before(kept_from);
    }
  }
}

}  // namespace gradtap::dataplane
