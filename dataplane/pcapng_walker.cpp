#include "dataplane/pcapng_walker.h"

#include <algorithm>
#include <limits>

#include <fmt/format.h>

namespace gradtap::dataplane {
namespace {

constexpr std::uint32_t kSectionHeader = 0x0a0d0d0a;  // the same in both byte orders
constexpr std::uint32_t kInterfaceDescription = 1;
constexpr std::uint32_t kObsoletePacket = 2;
constexpr std::uint32_t kSimplePacket = 3;
constexpr std::uint32_t kEnhancedPacket = 6;
constexpr std::uint32_t kByteOrderMagic = 0x1a2b3c4d;
constexpr std::size_t kBlockFrameBytes = 12;  // type and both lengths
constexpr std::uint16_t kPcapngEthernet = 1;
constexpr std::uint16_t kOptionEnd = 0;
constexpr std::uint16_t kOptionResolution = 9;
constexpr std::uint16_t kOptionOffset = 14;

}  // namespace

bool PcapngWalker::recognises(ByteSpan file) {
  return file.size() >= 4 && load_le<std::uint32_t>(file.data()) == kSectionHeader;
}

std::uint16_t PcapngWalker::half(const std::uint8_t* p) const {
  return swapped_ ? load_be<std::uint16_t>(p) : load_le<std::uint16_t>(p);
}

std::uint32_t PcapngWalker::word(const std::uint8_t* p) const {
  return swapped_ ? load_be<std::uint32_t>(p) : load_le<std::uint32_t>(p);
}

std::unexpected<Error> PcapngWalker::malformed(std::size_t offset, std::string what) const {
  return fail(ErrorCode::kCaptureMalformed, std::move(what), fmt::format("{}:{}", name_, offset), {}, {},
              "the file is damaged");
}

Result<PcapngWalker> PcapngWalker::over(ByteSpan file, std::string name) {
  PcapngWalker walker(file, std::move(name));
  if (!recognises(file)) return walker.malformed(0, "not a pcapng file");
  const auto first = walker.read_block();
  if (!first) return std::unexpected(first.error());
  return walker;
}

// Reads the block at offset_ and goes behind it. A section header sets the byte order of what follows.
Result<PcapngWalker::Block> PcapngWalker::read_block() {
  const std::size_t left = file_.size() - offset_;
  const std::uint8_t* const at = file_.data() + offset_;
  const auto ends_early = [&](std::uint64_t needed) {
    return fail(ErrorCode::kCaptureEndsEarly, "capture ends inside a block", fmt::format("{}:{}", name_, offset_),
                fmt::format("{} bytes", needed), fmt::format("{} bytes", left),
                "the capture was cut; use the records before it by cutting the file here");
  };
  if (left < kBlockFrameBytes) return ends_early(kBlockFrameBytes);
  const bool section = load_le<std::uint32_t>(at) == kSectionHeader;
  if (section) {
    if (load_le<std::uint32_t>(at + 8) == kByteOrderMagic) {
      swapped_ = false;
    } else if (load_be<std::uint32_t>(at + 8) == kByteOrderMagic) {
      swapped_ = true;
    } else {
      return malformed(offset_, "section header has no byte-order magic");
    }
  }
  const std::uint32_t length = word(at + 4);
  if (length < kBlockFrameBytes || length % 4 != 0) return malformed(offset_, "block has an impossible length");
  if (length > left) return ends_early(length);
  if (word(at + length - 4) != length) return malformed(offset_, "block ends with another length than it began with");
  if (section) {
    if (length < 28) return malformed(offset_, "section header is too short");
    if (half(at + 12) != 1) return malformed(offset_, "section has a major version that is not known");
    section_begin_ = interfaces_.size();
  }
  Block block{word(at), offset_, file_.subspan(offset_ + 8, length - kBlockFrameBytes)};
  offset_ += length;
  return block;
}

Status PcapngWalker::add_interface(const Block& block) {
  if (block.body.size() < 8) return malformed(block.offset, "interface description is too short");
  if (interfaces_.size() >= kMaxInterfaces) return malformed(block.offset, "capture describes too many interfaces");
  Interface interface{.link = half(block.body.data()), .snap_bytes = word(&block.body[4])};
  ByteSpan options = block.body.subspan(8);
  while (options.size() >= 4) {
    const std::uint16_t code = half(options.data());
    const std::size_t length = half(&options[2]);
    const std::size_t padded = (length + 3) & ~std::size_t{3};
    if (code == kOptionEnd) break;
    if (padded > options.size() - 4) return malformed(block.offset, "option is longer than its block");
    if (code == kOptionResolution && length == 1) interface.resolution = options[4];
    if (code == kOptionOffset && length == 8) {
      const std::uint64_t low = word(&options[swapped_ ? 8 : 4]);
      const std::uint64_t high = word(&options[swapped_ ? 4 : 8]);
      interface.offset_s = static_cast<std::int64_t>(high << 32 | low);
    }
    options = options.subspan(4 + padded);
  }
  interfaces_.push_back(interface);
  return {};
}

std::uint64_t PcapngWalker::nanoseconds(const Interface& interface, std::uint64_t ticks) {
  __extension__ using Wide = __int128;  // 64 bit of ticks times 10^9 fit
  constexpr Wide kSecond = 1'000'000'000;
  Wide value = ticks;
  const int exponent = interface.resolution & 0x7f;
  if ((interface.resolution & 0x80) != 0) {
    value = exponent >= 96 ? 0 : value * kSecond >> exponent;
  } else {
    for (int i = exponent; i < 9; ++i) value *= 10;
    for (int i = 9; i < exponent && value != 0; ++i) value /= 10;
  }
  value += Wide{interface.offset_s} * kSecond;
  return static_cast<std::uint64_t>(std::clamp<Wide>(value, 0, std::numeric_limits<std::uint64_t>::max()));
}

// False: the record is of an interface that is not Ethernet.
Result<bool> PcapngWalker::read_packet(const Block& block, CaptureRecord& record) {
  const ByteSpan body = block.body;
  const std::size_t header = block.type == kSimplePacket ? 4 : 20;
  if (body.size() < header) return malformed(block.offset, "packet block is too short");
  std::uint32_t number = 0;
  if (block.type == kEnhancedPacket) number = word(body.data());
  if (block.type == kObsoletePacket) number = half(body.data());
  if (number >= interfaces_.size() - section_begin_) {
    return malformed(block.offset, "packet of an interface that was not described");
  }
  const Interface& interface = interfaces_[section_begin_ + number];
  std::uint32_t captured = 0;
  if (block.type == kSimplePacket) {
    record.wire_bytes = word(body.data());
    captured = record.wire_bytes;
    if (interface.snap_bytes != 0) captured = std::min(captured, interface.snap_bytes);
    record.time_ns = 0;
  } else {
    captured = word(&body[12]);
    record.wire_bytes = word(&body[16]);
    record.time_ns = nanoseconds(interface, std::uint64_t{word(&body[4])} << 32 | word(&body[8]));
  }
  if (captured > kMaxRecordBytes) return malformed(block.offset, "record is longer than any frame");
  if (captured > body.size() - header) return malformed(block.offset, "record is longer than its block");
  record.bytes = body.subspan(header, captured);
  record.interface = static_cast<std::uint32_t>(section_begin_ + number);
  if (interface.link == kPcapngEthernet) return true;
  ++skipped_records_;
  return false;
}

Result<bool> PcapngWalker::next(CaptureRecord& record) {
  while (offset_ < file_.size()) {
    const auto block = read_block();
    if (!block) return std::unexpected(block.error());
    if (block->type == kInterfaceDescription) {
      GRADTAP_TRY(add_interface(*block));
    } else if (block->type == kEnhancedPacket || block->type == kSimplePacket || block->type == kObsoletePacket) {
      const auto filled = read_packet(*block, record);
      if (!filled || *filled) return filled;
    }
  }
  return false;
}

}  // namespace gradtap::dataplane
