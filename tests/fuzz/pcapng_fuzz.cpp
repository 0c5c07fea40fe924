// pcapng files from anywhere: records lie inside the file, the walk ends.
#include <cstdint>
#include <cstdlib>
#include <vector>

#include "dataplane/capture_file.h"

extern "C" int LLVMFuzzerTestOneInput(const std::uint8_t* data, std::size_t size) {
  using namespace gradtap;
  using namespace gradtap::dataplane;
  // A section header in front, so that blocks are reached.
  std::vector<std::uint8_t> file{0x0a, 0x0d, 0x0d, 0x0a, 28,   0,    0,    0,    0x4d, 0x3c, 0x2b, 0x1a, 1, 0,
                                 0,    0,    0xff, 0xff, 0xff, 0xff, 0xff, 0xff, 0xff, 0xff, 28,   0,    0, 0};
  file.insert(file.end(), data, data + size);
  for (const ByteSpan bytes : {ByteSpan(file), ByteSpan(data, size)}) {
    auto walker = CaptureWalker::over(bytes, "fuzz");
    if (!walker) continue;
    CaptureRecord record;
    std::size_t total = 0;
    while (true) {
      const auto more = walker->next(record);
      if (!more || !*more) break;
      if (record.bytes.data() < bytes.data() || record.bytes.data() + record.bytes.size() > bytes.data() + bytes.size())
        std::abort();
      total += record.bytes.size();
    }
    if (total > bytes.size()) std::abort();
  }
  return 0;
}
