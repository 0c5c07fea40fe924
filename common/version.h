// The version of the software, as recovery points and metrics name it. A constant.
#pragma once

namespace gradtap {

inline constexpr const char* kVersion = "0.1.0";
inline constexpr const char* kSoftware = "gradtap 0.1.0";

}  // namespace gradtap
