// ObjectStore: where recovery points lie, shared by all nodes (PROTOCOLS 6.4, 6.5).
//
// Purpose: write-once objects under text keys, and one register: conditional create. Whatever has several contenders
// (lineage numbers, point records) is decided by create() alone. Ownership: an implementation owns its connection or
// directory handles, never the objects. Threads: every function blocks and may be called from any thread.
// Invariants: a key is either absent or holds the whole of what was written; what put() or create() reported as done is
// durable; nothing is overwritten. Failure: an Error; *error is never the same as absent*: OBJECT_MISSING means that
// the store was reached and holds no such key, OBJECT_STORE that it could not be asked (try again), STORE_FULL that it
// has no space. After any failure the key is absent or whole, and the same call may be repeated.
#pragma once

#include <cstdint>
#include <functional>
#include <string>
#include <string_view>
#include <vector>

#include "common/bytes.h"
#include "common/error.h"
#include "common/large_buffer.h"

namespace gradtap::storage {

enum class Created : std::uint8_t {
  kCreated,
  kExistsEqual,  // the key was there with exactly these bytes: an own earlier try whose answer was lost, or a twin's
  kExists,       // the key was there with other bytes
};

class ObjectStore {
 public:
  virtual ~ObjectStore() = default;

  // A data object, given in parts that are only read during the call. Its name must be new; the same bytes again are
  // success, other bytes OBJECT_CONFLICT.
  [[nodiscard]] virtual Status put(std::string_view key, const std::vector<ByteSpan>& parts) = 0;
  // Conditional create: of any number of contenders exactly one gets kCreated.
  [[nodiscard]] virtual Result<Created> create(std::string_view key, ByteSpan bytes) = 0;

  // The whole object; LIMIT_REACHED when it is longer than bytes_max.
  [[nodiscard]] virtual Result<std::vector<std::uint8_t>> get(std::string_view key, std::uint64_t bytes_max) const = 0;
  // As get(), for objects of any size; `seen` gets every piece in order while it is still in the cache.
  [[nodiscard]] virtual Result<LargeBuffer> load(std::string_view key, std::uint64_t bytes_max,
                                                 const std::function<void(ByteSpan)>& seen) const;
  // Bytes offset..offset+count; fewer where the object ends.
  [[nodiscard]] virtual Result<std::vector<std::uint8_t>> read(std::string_view key, std::uint64_t offset,
                                                               std::uint64_t count) const = 0;
  [[nodiscard]] virtual Result<std::uint64_t> length(std::string_view key) const = 0;
  // Keys that begin with `prefix`, sorted. Bounded by the implementation's own limit (LIMIT_REACHED beyond it).
  [[nodiscard]] virtual Result<std::vector<std::string>> list(std::string_view prefix) const = 0;

  // Durable when it returns; a key that is absent is success. On an error some of the keys may be gone.
  [[nodiscard]] virtual Status remove(const std::vector<std::string>& keys) = 0;
  // Deletes what interrupted writes of this writer's earlier lives left behind; how many.
  [[nodiscard]] virtual Result<std::uint64_t> remove_stray() { return 0; }

  [[nodiscard]] virtual std::string describe() const = 0;  // "directory /mnt/points"
};

}  // namespace gradtap::storage
