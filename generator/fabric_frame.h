// What the generator's stages hand on: a frame, when it passes the mirror, and what it is.
//
// The note is the generator's own knowledge, for tests that compute what a decoder can still know after loss; it is
// never written into a file. Ownership: a sink copies what it keeps. Threads: one.
#pragma once

#include <cstdint>

#include "common/bytes.h"

namespace gradtap::generator {

enum class FrameKind : std::uint8_t { kData, kClearToSend, kAcknowledge, kForeign };

struct FrameNote {
  FrameKind kind = FrameKind::kForeign;
  bool repeated = false;         // sent again
  std::uint32_t connection = 0;  // index of the job's connection
  std::uint64_t message = 0;     // of that connection, from 0
  std::uint32_t psn = 0;
  std::uint32_t op = 0;  // of the job, from 0
  // Bytes [begin, end) of the op's result that this frame carries in final form.
  std::uint64_t begin = 0;
  std::uint64_t end = 0;
};

class FrameSink {
 public:
  virtual ~FrameSink() = default;
  virtual void frame(std::uint64_t time_ns, ByteSpan bytes, const FrameNote& note) = 0;
};

}  // namespace gradtap::generator
