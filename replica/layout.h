// Layout: which parameters each bucket of the gradient exchange holds, in order.
//
// Purpose: from a place in a bucket to (parameter, element), by value and checked: the announced id is the SHA-256 of
// the layout's canonical JSON, rebuilt here from the structure. Invariants after validate(): every parameter that
// carries a gradient is in exactly one bucket with its own size, nothing else is. Immutable, shared; any thread.
#pragma once

#include <cstdint>
#include <string>
#include <vector>

#include "common/ids.h"
#include "replica/schema.h"

namespace gradtap::replica {

struct LayoutEntry {
  std::uint32_t parameter = 0;
  std::uint64_t numel = 0;
};

struct BucketPosition {
  std::uint32_t parameter = 0;
  std::uint64_t element = 0;  // in memory order
};

class Layout {
 public:
  [[nodiscard]] static Result<Layout> create(std::vector<std::vector<LayoutEntry>> buckets, const Schema& schema);
  // Also refuses an announced id that is not the layout's own.
  [[nodiscard]] Status check_id(const LayoutId& announced) const;

  [[nodiscard]] const LayoutId& id() const { return id_; }
  [[nodiscard]] std::size_t bucket_count() const { return buckets_.size(); }
  [[nodiscard]] const std::vector<LayoutEntry>& bucket(std::size_t index) const { return buckets_[index]; }
  [[nodiscard]] std::uint64_t bucket_numel(std::size_t index) const { return offsets_[index].back(); }
  [[nodiscard]] std::uint64_t bucket_bytes(std::size_t index) const { return bucket_numel(index) * 4; }
  // offset < bucket_numel(index).
  [[nodiscard]] BucketPosition locate(std::size_t index, std::uint64_t offset) const;
  [[nodiscard]] std::string canonical_json() const;

 private:
  std::vector<std::vector<LayoutEntry>> buckets_;
  std::vector<std::vector<std::uint64_t>> offsets_;  // per bucket: start of each entry, then the total
  LayoutId id_{};
};

}  // namespace gradtap::replica
