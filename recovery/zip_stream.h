// ZipStream: a zip archive of stored (not compressed) members, written front to back.
//
// Purpose: the container of torch files, in bounded memory: sizes are known before, checksums only after. A member's
// data begins on a 64-byte boundary, as torch writes it (readers may map it). Members and offsets of 4 GiB and more,
// and more than 65534 members, use ZIP64. Not thread-safe. Failure behaviour: the sink's error, or OUT_OF_RANGE where a
// member gets another number of bytes than announced.
#pragma once

#include <cstdint>
#include <string>
#include <string_view>
#include <vector>

#include "common/bytes.h"
#include "common/error.h"
#include "replica/safetensors.h"

namespace gradtap::recovery {

// CRC-32 of zip, incremental: crc32(crc32(0, a), b) is that of a followed by b.
[[nodiscard]] std::uint32_t crc32(std::uint32_t crc, ByteSpan bytes);

class ZipStream {
 public:
  // `zip64_from`: sizes and offsets from here on are written in ZIP64 form.
  explicit ZipStream(replica::ByteSink sink, std::uint64_t zip64_from = 0xFFFF'FFFF)
      : sink_(std::move(sink)), zip64_from_(zip64_from) {}

  [[nodiscard]] Status add(std::string_view name, std::string_view bytes);  // a member that is at hand
  [[nodiscard]] Status begin(std::string_view name, std::uint64_t bytes);
  [[nodiscard]] Status write(ByteSpan part);
  [[nodiscard]] Status end();
  [[nodiscard]] Status finish();  // the central directory

 private:
  struct Member {
    std::string name;
    std::uint64_t offset = 0;
    std::uint64_t bytes = 0;
    std::uint32_t crc = 0;
    bool described_after = false;  // checksum and sizes in a data descriptor
  };

  [[nodiscard]] Status open(std::string_view name, std::uint64_t bytes, std::uint32_t crc, bool described_after);
  [[nodiscard]] Status emit(ByteSpan bytes);
  [[nodiscard]] Status emit(const std::string& bytes);

  replica::ByteSink sink_;
  std::uint64_t zip64_from_;
  std::uint64_t position_ = 0;
  std::uint64_t written_ = 0;  // of the open member
  std::vector<Member> members_;
};

}  // namespace gradtap::recovery
