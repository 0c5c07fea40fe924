// PcapngWalker: a bounded walk over the Ethernet records of a pcapng file.
//
// Purpose: what libpcap refuses must be readable: several interfaces with different snap lengths, resolutions and link
// types, several sections, either byte order. Enhanced, simple and obsolete packet blocks are records; every other
// block is skipped by its length. Records of interfaces that are not Ethernet are skipped and counted. Ownership: none;
// record bytes are views of the file. Threads: one. Invariants: nothing beyond `file` is read; the table of interfaces
// is bounded. Failure behaviour: a block whose lengths contradict one another or the file ends the walk with a named
// error.
#pragma once

#include <cstddef>
#include <cstdint>
#include <string>
#include <vector>

#include "common/bytes.h"
#include "common/error.h"
#include "dataplane/capture_record.h"

namespace gradtap::dataplane {

class PcapngWalker {
 public:
  static constexpr std::size_t kMaxInterfaces = 4096;  // of all sections

  // Whether the file begins like a pcapng file.
  [[nodiscard]] static bool recognises(ByteSpan file);
  [[nodiscard]] static Result<PcapngWalker> over(ByteSpan file, std::string name);

  // True: `record` is filled. False: the end was reached.
  [[nodiscard]] Result<bool> next(CaptureRecord& record);
  [[nodiscard]] std::size_t interfaces() const { return interfaces_.size(); }
  [[nodiscard]] std::uint64_t skipped_records() const { return skipped_records_; }

 private:
  struct Interface {
    std::uint16_t link = 0;
    std::uint32_t snap_bytes = 0;  // 0: no limit
    std::uint8_t resolution = 6;   // a power of ten below one second, of two if the top bit is set
    std::int64_t offset_s = 0;
  };
  struct Block {
    std::uint32_t type = 0;
    std::size_t offset = 0;  // of the block in the file
    ByteSpan body;
  };

  PcapngWalker(ByteSpan file, std::string name) : file_(file), name_(std::move(name)) {}
  [[nodiscard]] Result<Block> read_block();
  [[nodiscard]] Status add_interface(const Block& block);
  [[nodiscard]] Result<bool> read_packet(const Block& block, CaptureRecord& record);
  [[nodiscard]] static std::uint64_t nanoseconds(const Interface& interface, std::uint64_t ticks);
  [[nodiscard]] std::uint16_t half(const std::uint8_t* p) const;
  [[nodiscard]] std::uint32_t word(const std::uint8_t* p) const;
  [[nodiscard]] std::unexpected<Error> malformed(std::size_t offset, std::string what) const;

  ByteSpan file_;
  std::string name_;
  std::size_t offset_ = 0;
  bool swapped_ = false;
  std::vector<Interface> interfaces_;
  std::size_t section_begin_ = 0;  // its first interface
  std::uint64_t skipped_records_ = 0;
};

}  // namespace gradtap::dataplane
