#include "dataplane/nccl_cts.h"

#include "dataplane/nccl_schedule.h"

namespace gradtap::dataplane {
namespace {

constexpr std::uint64_t kMaxBytes = 1ULL << 40;
constexpr std::uint64_t kMaxIndex = 1ULL << 48;

NcclCts read_up_to_2_19(const std::uint8_t* p) {
  return {load_le<std::uint64_t>(p),      load_le<std::uint32_t>(p + 8),  load_le<std::uint32_t>(p + 12),
          load_le<std::uint32_t>(p + 16), load_le<std::uint32_t>(p + 20), load_le<std::uint64_t>(p + 24)};
}

NcclCts read_from_2_20(const std::uint8_t* p) {
  return {load_le<std::uint64_t>(p),      load_le<std::uint32_t>(p + 8),  load_le<std::uint32_t>(p + 12),
          load_le<std::uint32_t>(p + 20), load_le<std::uint32_t>(p + 24), load_le<std::uint64_t>(p + 32)};
}

NcclCts read_from_2_27(const std::uint8_t* p) {
  return {load_le<std::uint64_t>(p),      load_le<std::uint64_t>(p + 8),  load_le<std::uint32_t>(p + 16),
          load_le<std::uint32_t>(p + 32), load_le<std::uint32_t>(p + 36), load_le<std::uint64_t>(p + 40)};
}

bool plausible(const NcclCts& entry, std::size_t count) {
  return entry.address != 0 && entry.bytes <= kMaxBytes && entry.requests == count && entry.tag < kMaxNcclRanks &&
         entry.index >= 1 && entry.index < kMaxIndex;
}

template <class F>
std::size_t read_as(ByteSpan payload, std::size_t entry_bytes, std::span<NcclCts, kMaxNcclReceives> entries, F read) {
  const std::size_t count = payload.size() / entry_bytes;
  if (payload.size() % entry_bytes != 0 || count == 0 || count > entries.size()) return 0;
  for (std::size_t i = 0; i < count; ++i) {
    entries[i] = read(&payload[i * entry_bytes]);
    if (!plausible(entries[i], count) || entries[i].index != entries[0].index) return 0;
  }
  return count;
}

}  // namespace

std::size_t read_nccl_cts(ByteSpan payload, std::span<NcclCts, kMaxNcclReceives> entries) {
  for (const auto& [bytes, read] :
       {std::pair(std::size_t{32}, &read_up_to_2_19), std::pair(std::size_t{64}, &read_from_2_20),
        std::pair(std::size_t{64}, &read_from_2_27)})
    if (const std::size_t count = read_as(payload, bytes, entries, read)) return count;
  return 0;
}

}  // namespace gradtap::dataplane
