#include "generator/pcap_writer.h"

#include <array>
#include <cerrno>
#include <cstring>

#include "common/clock.h"

namespace gradtap::generator {
namespace {

constexpr std::uint32_t kNanosecondMagic = 0xa1b23c4d;
constexpr std::uint32_t kVersion = 2 | 4U << 16;
constexpr std::uint32_t kSnapBytes = 1U << 18;
constexpr std::uint32_t kEthernet = 1;

Error unwritable(const std::string& path, int error) {
  return Error{ErrorCode::kFileUnwritable,
               "the capture cannot be written",
               path,
               {},
               std::strerror(error),
               "check the folder, its rights and the space left"};
}

}  // namespace

Result<std::unique_ptr<PcapWriter>> PcapWriter::create(const std::string& path) {
  std::FILE* const file = std::fopen(path.c_str(), "wb");
  if (file == nullptr) return std::unexpected(unwritable(path, errno));
  std::unique_ptr<PcapWriter> writer(new PcapWriter(file, path));
  const std::array<std::uint32_t, 6> header{kNanosecondMagic, kVersion, 0, 0, kSnapBytes, kEthernet};
  writer->put(header.data(), sizeof header);
  return writer;
}

PcapWriter::~PcapWriter() {
  if (file_ != nullptr) std::fclose(file_);
}

void PcapWriter::put(const void* bytes, std::size_t count) {
  if (count > 0 && (file_ == nullptr || std::fwrite(bytes, 1, count, file_) != count)) failed_ = true;
}

void PcapWriter::frame(std::uint64_t time_ns, ByteSpan bytes, const FrameNote&) {
  const auto length = static_cast<std::uint32_t>(bytes.size());
  const std::array<std::uint32_t, 4> record{static_cast<std::uint32_t>(time_ns / kNsPerSecond),
                                            static_cast<std::uint32_t>(time_ns % kNsPerSecond), length, length};
  put(record.data(), sizeof record);
  put(bytes.data(), bytes.size());
  frames_ += 1;
}

Status PcapWriter::close() {
  if (file_ == nullptr) return {};
  const int closed = std::fclose(file_);
  file_ = nullptr;
  if (closed != 0 || failed_) return std::unexpected(unwritable(path_, errno));
  return {};
}

}  // namespace gradtap::generator
