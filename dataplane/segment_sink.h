// SegmentSink: where a Decoder puts what it found in a burst of frames.
//
// Lifetime rule: Segment::data points either into a frame of the burst being decoded or into a block that was passed
// to keep() before the segment. Whoever forwards segments to other threads holds the burst's frames *and* the kept
// blocks until the last segment of that decode() call has been consumed, then drops both; nothing else is needed.
// Threads: called by the decoder's thread only. The calls must not throw.
#pragma once

#include <cstdint>
#include <memory>

#include "dataplane/segment.h"

namespace gradtap::dataplane {

using OwnedBytes = std::shared_ptr<const std::uint8_t[]>;

class SegmentSink {
 public:
  virtual ~SegmentSink() = default;
  virtual void segment(const Segment& segment) = 0;
  // The following segments may point into `bytes` (data that waited for a late header).
  virtual void keep(const OwnedBytes& bytes) = 0;
  // Frame `frame_index` of the burst belongs to a flow that another queue's decoder owns.
  virtual void hand_over(std::uint16_t queue, std::uint32_t frame_index) = 0;
};

}  // namespace gradtap::dataplane
