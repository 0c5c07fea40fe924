// Small files: certificates and keys, read and written whole.
//
// Plain functions, any thread. Invariants: a written file is whole or not there, and never readable by more than its
// mode says, not even for a moment. Failure behaviour: FILE_UNREADABLE or FILE_UNWRITABLE with the path.
#pragma once

#include <string>
#include <string_view>

#include <sys/types.h>

#include "common/error.h"

namespace gradtap::link {

inline constexpr std::size_t kSmallFileBytesMax = std::size_t{1} << 20;

[[nodiscard]] Result<std::string> read_small_file(const std::string& path);
// Replaces what is there: written beside it, synced, renamed.
[[nodiscard]] Status write_small_file(const std::string& path, std::string_view bytes, mode_t mode);

}  // namespace gradtap::link
