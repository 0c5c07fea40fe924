// ShardMap: canonical coordinates. The state in attach order is cut into blocks of 2^16 elements that never span
// parameters, and consecutive blocks into shards, once per lineage.
//
// Purpose: from (bucket, offset) to (shard, piece) and back. Immutable after cut(), shared; any thread. Invariants:
// every element of every parameter that owns elements is in exactly one piece; pieces begin on block boundaries; every
// shard but the last holds at least shard_elements elements;
// a shard has at most one piece of a parameter, in order of parameter.
#pragma once

#include <cstdint>
#include <vector>

#include "common/ids.h"
#include "replica/digest.h"
#include "replica/layout.h"
#include "replica/schema.h"

namespace gradtap::replica {

// Consecutive elements of one parameter in one shard.
struct Piece {
  std::uint32_t parameter = 0;
  std::uint64_t begin = 0;  // element in the parameter, a multiple of kBlockElements
  std::uint64_t count = 0;
  std::uint64_t shard_offset = 0;  // element in the shard
};

struct ShardRange {
  ShardId id = 0;
  std::uint64_t elements = 0;
  std::vector<Piece> pieces;
};

// A part of a bucket and its place: elements [piece_offset, +elements) of the piece.
struct Slice {
  std::uint64_t bucket_offset = 0;
  ShardId shard = 0;
  std::uint32_t piece = 0;
  std::uint64_t piece_offset = 0;
  std::uint64_t elements = 0;
};

struct PieceRef {
  ShardId shard = 0;
  std::uint32_t piece = 0;
};

inline constexpr std::uint64_t kDefaultShardElements = 1ULL << 24;

class ShardMap {
 public:
  [[nodiscard]] static Result<ShardMap> cut(const Schema& schema, std::uint64_t shard_elements);

  [[nodiscard]] const std::vector<ShardRange>& shards() const { return shards_; }
  // The pieces of a parameter, in order of begin (none for an alias or an empty parameter).
  [[nodiscard]] const std::vector<PieceRef>& pieces_of(std::uint32_t parameter) const {
    return by_parameter_[parameter];
  }
  // All of a bucket, in order of bucket_offset, without gaps.
  [[nodiscard]] std::vector<Slice> slices(const Layout& layout, std::size_t bucket) const;

 private:
  std::vector<ShardRange> shards_;
  std::vector<std::vector<PieceRef>> by_parameter_;
};

}  // namespace gradtap::replica
