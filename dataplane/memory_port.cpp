#include "dataplane/memory_port.h"

#include <algorithm>

#include <fmt/format.h>

#include "common/random.h"
#include "dataplane/capture_file.h"
#include "dataplane/frame.h"

namespace gradtap::dataplane {
namespace {

std::uint64_t symmetric_hash(ByteSpan bytes) {
  FrameView view;
  if (parse_frame(bytes, 0, ChecksumPolicy::kOffload, view) != FrameDrop::kNone) return 0;
  const auto side = [](const IpAddress& address, std::uint16_t port) {
    return splitmix64_mix(load_le<std::uint64_t>(&address.bytes[0]) ^
                          splitmix64_mix(load_le<std::uint64_t>(&address.bytes[8]) + port));
  };
  return splitmix64_mix(side(view.source, view.source_port) + side(view.target, view.target_port));
}

}  // namespace

Result<std::vector<MemoryFrame>> read_capture(const std::string& path, std::uint64_t max_bytes) {
  const auto file = CaptureFile::open(path);
  if (!file) return std::unexpected(file.error());
  auto walker = file->walk();
  if (!walker) return std::unexpected(walker.error());
  std::vector<MemoryFrame> frames;
  CaptureRecord record;
  std::uint64_t total = 0;
  while (true) {
    const auto more = walker->next(record);
    if (!more) return std::unexpected(more.error());
    if (!*more) return frames;
    total += record.bytes.size();
    if (total > max_bytes) {
      return fail(ErrorCode::kLimitReached, "capture does not fit into memory", path,
                  fmt::format("at most {} bytes", max_bytes), {}, "read it through the pcap port");
    }
    frames.push_back({{record.bytes.begin(), record.bytes.end()}, record.wire_bytes});
  }
}

MemoryPort::MemoryPort(std::vector<MemoryFrame> frames, std::uint16_t queues, std::string name)
    : frames_(std::move(frames)), name_(std::move(name)) {
  for (int i = 0; i < std::max<int>(queues, 1); ++i) queues_.push_back(std::make_unique<Queue>());
  for (std::uint32_t i = 0; i < frames_.size(); ++i) {
    if (frames_[i].wire_bytes > frames_[i].bytes.size()) {
      ++oversized_;
      continue;
    }
    const std::size_t queue = queues_.size() == 1 ? 0 : symmetric_hash(frames_[i].bytes) % queues_.size();
    queues_[queue]->order.push_back(i);
  }
}

std::uint16_t MemoryPort::rx_burst(std::uint16_t queue, std::span<Frame> out) {
  Queue& from = *queues_.at(queue);
  const std::size_t next = from.next.load(std::memory_order_relaxed);
  const std::size_t count = std::min({out.size(), from.order.size() - next, std::size_t{0xffff}});
  for (std::size_t i = 0; i < count; ++i) {
    const MemoryFrame& frame = frames_[from.order[next + i]];
    out[i] = Frame{frame.bytes.data(), static_cast<std::uint32_t>(frame.bytes.size()), frame.wire_bytes, nullptr};
    from.bytes += frame.bytes.size();
  }
  out_.fetch_add(count, std::memory_order_relaxed);
  from.next.store(next + count, std::memory_order_release);
  return static_cast<std::uint16_t>(count);
}

void MemoryPort::release(std::span<const Frame> frames) {
  out_.fetch_sub(frames.size(), std::memory_order_relaxed);
}

bool MemoryPort::exhausted() const {
  return std::ranges::all_of(
      queues_, [](const auto& queue) { return queue->next.load(std::memory_order_acquire) == queue->order.size(); });
}

PortCounters MemoryPort::counters() const {
  PortCounters counters;
  counters.oversized = oversized_;
  for (const auto& queue : queues_) {
    counters.frames += queue->next.load(std::memory_order_acquire);
    counters.bytes += queue->bytes;
  }
  return counters;
}

std::string MemoryPort::describe() const {
  return fmt::format("{}: {} frames on {} queues", name_, frames_.size(), queues_.size());
}

}  // namespace gradtap::dataplane
