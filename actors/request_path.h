// RequestPath: the parts of a request's path, as the gateway and its guard both see them. Plain functions, any thread.
#pragma once

#include <string_view>
#include <vector>

namespace gradtap::actors {

// Without empty parts.
[[nodiscard]] inline std::vector<std::string_view> split_path(std::string_view path) {
  std::vector<std::string_view> parts;
  while (!path.empty()) {
    const std::size_t slash = path.find('/');
    const std::string_view part = path.substr(0, slash);
    if (!part.empty()) parts.push_back(part);
    if (slash == std::string_view::npos) break;
    path.remove_prefix(slash + 1);
  }
  return parts;
}

// What a trainer sends: goes to the home.
[[nodiscard]] inline bool of_side_channel(std::string_view what) {
  return what == "attach" || what == "messages" || what == "detach" || what == "chunks" || what == "blobs";
}

}  // namespace gradtap::actors
