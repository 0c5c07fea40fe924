#include "dataplane/frame_drop.h"

namespace gradtap::dataplane {

std::string_view frame_drop_name(FrameDrop drop) {
  switch (drop) {
    case FrameDrop::kNone:
      return "none";
    case FrameDrop::kNotIp:
      return "not_ip";
    case FrameDrop::kNotTcp:
      return "not_tcp";
    case FrameDrop::kFragment:
      return "fragment";
    case FrameDrop::kTruncated:
      return "truncated";
    case FrameDrop::kMalformed:
      return "malformed";
    case FrameDrop::kUnsupportedHeader:
      return "unsupported_header";
    case FrameDrop::kBadIpChecksum:
      return "bad_ip_checksum";
    case FrameDrop::kBadTcpChecksum:
      return "bad_tcp_checksum";
    case FrameDrop::kSampled:
      return "sampled";
    case FrameDrop::kSupersized:
      return "supersized";
    case FrameDrop::kNotRoce:
      return "not_roce";
    case FrameDrop::kBadIcrc:
      return "bad_icrc";
    case FrameDrop::kCount:
      break;
  }
  return "unknown";
}

}  // namespace gradtap::dataplane
