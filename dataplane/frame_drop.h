// FrameDrop: why a frame yielded nothing. One enumeration for every kind of traffic, so that counters and reports name
// a refusal the same way wherever it happened. Plain values; any thread.
#pragma once

#include <cstddef>
#include <cstdint>
#include <string_view>

namespace gradtap::dataplane {

enum class FrameDrop : std::uint8_t {
  kNone = 0,
  kNotIp,
  kNotTcp,
  kFragment,
  kTruncated,  // a header's length (or the wire length) exceeds the captured bytes, or the mirror says that it cut
  kMalformed,
  kUnsupportedHeader,  // an IPv6 extension header, or a depth of headers or tunnels, that is not walked
  kBadIpChecksum,
  kBadTcpChecksum,
  kSampled,     // a sampled copy of headers (sFlow), not a mirror
  kSupersized,  // merged by an interface or marked so by the mirror: no such frame was on the wire
  kNotRoce,
  kBadIcrc,
  kCount,
};
inline constexpr std::size_t kFrameDropCount = static_cast<std::size_t>(FrameDrop::kCount);
[[nodiscard]] std::string_view frame_drop_name(FrameDrop drop);

}  // namespace gradtap::dataplane
