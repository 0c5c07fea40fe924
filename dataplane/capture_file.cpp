#include "dataplane/capture_file.h"

#include <algorithm>
#include <bit>
#include <cerrno>
#include <cstring>
#include <utility>

#include <fcntl.h>
#include <fmt/format.h>
#include <sys/mman.h>
#include <sys/stat.h>
#include <unistd.h>

namespace gradtap::dataplane {
namespace {

constexpr std::uint32_t kMagicMicro = 0xa1b2c3d4;
constexpr std::uint32_t kMagicNano = 0xa1b23c4d;
constexpr std::uint32_t kLinkEthernet = 1;

std::uint32_t swap32(std::uint32_t value) {
  return __builtin_bswap32(value);
}

}  // namespace

std::uint32_t CaptureWalker::word(std::size_t offset) const {
  const auto value = load_le<std::uint32_t>(file_.data() + offset);
  return swapped_ ? swap32(value) : value;
}

Result<CaptureWalker> CaptureWalker::over(ByteSpan file, std::string name) {
  if (PcapngWalker::recognises(file)) {
    auto blocks = PcapngWalker::over(file, name);
    if (!blocks) return std::unexpected(blocks.error());
    CaptureWalker walker(file, std::move(name));
    walker.blocks_ = std::move(*blocks);
    return walker;
  }
  if (file.size() < kFileHeaderBytes) {
    return fail(ErrorCode::kCaptureEndsEarly, "capture has no file header", std::move(name),
                fmt::format("{} bytes", kFileHeaderBytes), fmt::format("{} bytes", file.size()), "record it again");
  }
  CaptureWalker walker(file, std::move(name));
  const auto magic = load_le<std::uint32_t>(file.data());
  walker.swapped_ = magic == swap32(kMagicMicro) || magic == swap32(kMagicNano);
  const std::uint32_t plain = walker.word(0);
  walker.nanoseconds_ = plain == kMagicNano;
  if (plain != kMagicMicro && plain != kMagicNano) {
    return fail(ErrorCode::kCaptureMalformed, "neither a pcap nor a pcapng file", walker.name_,
                "magic a1b2c3d4, a1b23c4d or 0a0d0d0a", fmt::format("{:08x}", magic), "name a capture file");
  }
  // The upper bits of the word hold the length of a frame check sequence.
  if ((walker.word(20) & 0x03ffffff) != kLinkEthernet) {
    return fail(ErrorCode::kCaptureMalformed, "capture is not of Ethernet frames", walker.name_, "link type 1",
                fmt::format("link type {}", walker.word(20) & 0x03ffffff), "capture on an Ethernet interface");
  }
  return walker;
}

Result<bool> CaptureWalker::next(CaptureRecord& record) {
  if (blocks_) return blocks_->next(record);
  const std::size_t left = file_.size() - offset_;
  if (left == 0) return false;
  const auto where = [&] { return fmt::format("{}:{}", name_, offset_); };
  if (left < kRecordHeaderBytes) {
    return fail(ErrorCode::kCaptureEndsEarly, "capture ends inside a record header", where(),
                fmt::format("{} bytes", kRecordHeaderBytes), fmt::format("{} bytes", left),
                "the capture was cut; use the records before it by cutting the file here");
  }
  const std::uint32_t captured = word(offset_ + 8);
  if (captured > kMaxRecordBytes) {
    return fail(ErrorCode::kCaptureMalformed, "record is longer than any frame", where(),
                fmt::format("at most {} bytes", kMaxRecordBytes), fmt::format("{} bytes", captured),
                "the file is damaged");
  }
  if (captured > left - kRecordHeaderBytes) {
    return fail(ErrorCode::kCaptureEndsEarly, "capture ends inside a record", where(),
                fmt::format("{} bytes", captured), fmt::format("{} bytes", left - kRecordHeaderBytes),
                "the capture was cut; use the records before it by cutting the file here");
  }
  record.bytes = file_.subspan(offset_ + kRecordHeaderBytes, captured);
  record.interface = 0;
  record.wire_bytes = word(offset_ + 12);
  record.time_ns =
      std::uint64_t{word(offset_)} * 1'000'000'000 + std::uint64_t{word(offset_ + 4)} * (nanoseconds_ ? 1 : 1000);
  offset_ += kRecordHeaderBytes + captured;
  return true;
}

Result<CaptureFile> CaptureFile::open(const std::string& path) {
  const int fd = ::open(path.c_str(), O_RDONLY | O_CLOEXEC);
  const auto failed = [&](const char* what) {
    return fail(ErrorCode::kFileUnreadable, what, path, {}, std::strerror(errno), "check the path and its permissions");
  };
  if (fd < 0) return failed("capture cannot be opened");
  struct stat info{};
  if (fstat(fd, &info) != 0 || !S_ISREG(info.st_mode)) {
    ::close(fd);
    return fail(ErrorCode::kFileUnreadable, "capture is not a regular file", path, {}, {}, "name a capture file");
  }
  CaptureFile file;
  file.path_ = path;
  file.size_ = static_cast<std::size_t>(info.st_size);
  if (file.size_ > 0) {
    void* const map = mmap(nullptr, file.size_, PROT_READ, MAP_PRIVATE, fd, 0);
    if (map == MAP_FAILED) {
      file.size_ = 0;
      ::close(fd);
      return failed("capture cannot be mapped");
    }
    file.map_ = map;
  }
  ::close(fd);
  return file;
}

CaptureFile::CaptureFile(CaptureFile&& other) noexcept {
  *this = std::move(other);
}

CaptureFile& CaptureFile::operator=(CaptureFile&& other) noexcept {
  std::swap(path_, other.path_);
  std::swap(map_, other.map_);
  std::swap(size_, other.size_);
  return *this;
}

CaptureFile::~CaptureFile() {
  if (map_ != nullptr) munmap(map_, size_);
}

void CaptureFile::forget_before(const std::uint8_t* position) const {
  constexpr std::size_t kPage = 4096;
  const std::size_t length = static_cast<std::size_t>(position - bytes().data()) & ~(kPage - 1);
  if (length > 0 && length <= size_) madvise(map_, length, MADV_DONTNEED);
}

Result<CaptureCounts> CaptureFile::count() const {
  auto walker = walk();
  if (!walker) return std::unexpected(walker.error());
  CaptureCounts counts;
  CaptureRecord record;
  while (true) {
    const auto more = walker->next(record);
    if (!more) return std::unexpected(more.error());
    if (!*more) return counts;
    ++counts.records;
    counts.bytes += record.bytes.size();
    if (record.bytes.size() < record.wire_bytes) ++counts.cut_records;
    counts.largest_bytes =
        std::max(counts.largest_bytes, std::max(record.wire_bytes, static_cast<std::uint32_t>(record.bytes.size())));
  }
}

}  // namespace gradtap::dataplane
