#include "storage/object_store.h"

#include <algorithm>

#include <fmt/format.h>

namespace gradtap::storage {

Result<LargeBuffer> ObjectStore::load(std::string_view key, std::uint64_t bytes_max,
                                      const std::function<void(ByteSpan)>& seen) const {
  const auto bytes = get(key, bytes_max);
  if (!bytes) return std::unexpected<Error>(bytes.error());
  LargeBuffer buffer = LargeBuffer::create(bytes->size());
  if (buffer.data() == nullptr)
    return fail(ErrorCode::kLimitReached, "no memory for an object", std::string(key), {},
                fmt::format("{} bytes", bytes->size()), "free memory of this machine, or read it on another one");
  std::copy(bytes->begin(), bytes->end(), buffer.data());
  seen(buffer.bytes());
  return buffer;
}

}  // namespace gradtap::storage
