// Frames and capture files from anywhere: parsed or refused, never read beyond their end.
#include <cstdint>
#include <cstdlib>

#include "dataplane/capture_file.h"
#include "dataplane/frame.h"

extern "C" int LLVMFuzzerTestOneInput(const std::uint8_t* data, std::size_t size) {
  using namespace gradtap;
  using namespace gradtap::dataplane;
  const ByteSpan bytes(data, size);
  for (const ChecksumPolicy policy : {ChecksumPolicy::kRequired, ChecksumPolicy::kOffload}) {
    FrameView view;
    if (parse_frame(bytes, 0, policy, view) != FrameDrop::kNone) continue;
    // The payload lies inside the frame.
    if (view.payload.data() < data || view.payload.data() + view.payload.size() > data + size) std::abort();
  }
  auto walker = CaptureWalker::over(bytes, "fuzz");
  if (!walker) return 0;
  CaptureRecord record;
  std::size_t total = 0;
  while (true) {
    const auto more = walker->next(record);
    if (!more || !*more) break;
    total += record.bytes.size();
  }
  if (total > size) std::abort();
  return 0;
}
