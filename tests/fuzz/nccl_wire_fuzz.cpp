// Clear-to-send entries and LL lines from anywhere: the vector loop says what the plain one says.
#include <array>
#include <cstdint>
#include <cstdlib>
#include <vector>

#include "dataplane/nccl_cts.h"
#include "dataplane/nccl_ll.h"

extern "C" int LLVMFuzzerTestOneInput(const std::uint8_t* data, std::size_t size) {
  using namespace gradtap;
  using namespace gradtap::dataplane;
  const ByteSpan bytes(data, size);
  std::array<NcclCts, kMaxNcclReceives> entries;
  const std::size_t count = read_nccl_cts(bytes, entries);
  if (count > entries.size() || (count > 0 && size % count != 0)) std::abort();
  const auto flag = ll_flag(bytes);
  const std::uint32_t expected = flag.value_or(1);
  const std::size_t lines = size / kLlLineBytes;
  std::vector<std::uint8_t> fast(lines * kLlLineDataBytes), plain(fast.size());
  const bool same = strip_ll(data, lines, expected, fast.data());
  if (same != strip_ll_plainly(data, lines, expected, plain.data())) std::abort();
  if (same && fast != plain) std::abort();
  if (same != has_ll_flags(bytes.first(lines * kLlLineBytes), expected)) std::abort();
  return 0;
}
