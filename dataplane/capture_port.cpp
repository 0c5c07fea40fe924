#include "dataplane/capture_port.h"

#include <fmt/format.h>

namespace gradtap::dataplane {

Result<std::unique_ptr<CapturePort>> CapturePort::open(const std::string& path) {
  auto file = CaptureFile::open(path);
  if (!file) return std::unexpected(file.error());
  auto walker = file->walk();
  if (!walker) return std::unexpected(walker.error());
  return std::unique_ptr<CapturePort>(new CapturePort(std::move(*file), std::move(*walker)));
}

std::uint16_t CapturePort::rx_burst(std::uint16_t, std::span<Frame> out) {
  std::uint16_t count = 0;
  CaptureRecord record;
  while (count < out.size() && !exhausted_) {
    const auto more = walker_.next(record);
    if (!more) error_ = more.error();
    exhausted_ = !more || !*more;
    if (exhausted_) break;
    ++records_;
    const auto bytes = static_cast<std::uint32_t>(record.bytes.size());
    if (bytes < record.wire_bytes) {
      ++counters_.oversized;
      continue;
    }
    out[count++] = {record.bytes.data(), bytes, record.wire_bytes, nullptr};
    ++counters_.frames;
    counters_.bytes += bytes;
  }
  if (count > 0) {
    const std::uint8_t* const last = out[count - 1].data;
    if (kept_from_ == nullptr) kept_from_ = last;
    if (static_cast<std::size_t>(last - kept_from_) > 2 * kKeptBytes) {
      kept_from_ = last - kKeptBytes;
      file_.forget_before(kept_from_);
    }
  }
  return count;
}

std::string CapturePort::describe() const {
  return fmt::format("capture {} ({})", file_.path(), walker_.is_pcapng() ? "pcapng" : "pcap");
}

}  // namespace gradtap::dataplane
