// CaptureRecord: one frame of a capture file, as both file formats give it. Plain value; `bytes` points into the file.
#pragma once

#include <cstdint>

#include "common/bytes.h"

namespace gradtap::dataplane {

inline constexpr std::uint32_t kMaxRecordBytes = 1U << 18;

struct CaptureRecord {
  ByteSpan bytes;
  std::uint32_t wire_bytes = 0;
  std::uint64_t time_ns = 0;    // 0 where the record has no time
  std::uint32_t interface = 0;  // counted over the whole file, from 0
};

}  // namespace gradtap::dataplane
