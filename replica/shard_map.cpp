#include "replica/shard_map.h"

#include <algorithm>

#include <fmt/format.h>

namespace gradtap::replica {

Result<ShardMap> ShardMap::cut(const Schema& schema, std::uint64_t shard_elements) {
  if (shard_elements == 0)
    return fail(ErrorCode::kOutOfRange, "a shard must have elements", "shard_elements", "at least 1", "0");
  if (schema.elements() == 0)
    return fail(ErrorCode::kSchemaInvalid, "the model has no elements", "parameters", "at least one element");
  ShardMap map;
  map.by_parameter_.resize(schema.parameters.size());
  for (std::uint32_t p = 0; p < schema.parameters.size(); ++p) {
    const ParameterSpec& parameter = schema.parameters[p];
    if (!parameter.owns_elements()) continue;
    for (std::uint64_t at = 0; at < parameter.numel; at += kBlockElements) {
      const std::uint64_t count = std::min(kBlockElements, parameter.numel - at);
      if (map.shards_.empty() || map.shards_.back().elements >= shard_elements)
        map.shards_.push_back({static_cast<ShardId>(map.shards_.size()), 0, {}});
      ShardRange& shard = map.shards_.back();
      if (!shard.pieces.empty() && shard.pieces.back().parameter == p) {
        shard.pieces.back().count += count;
      } else {
        map.by_parameter_[p].push_back({shard.id, static_cast<std::uint32_t>(shard.pieces.size())});
        shard.pieces.push_back({p, at, count, shard.elements});
      }
      shard.elements += count;
    }
  }
  return map;
}

std::vector<Slice> ShardMap::slices(const Layout& layout, std::size_t bucket) const {
  std::vector<Slice> result;
  std::uint64_t offset = 0;
  for (const LayoutEntry& entry : layout.bucket(bucket))
    for (const PieceRef& ref : by_parameter_[entry.parameter]) {
      const Piece& piece = shards_[ref.shard].pieces[ref.piece];
      result.push_back({offset, ref.shard, ref.piece, 0, piece.count});
      offset += piece.count;
    }
  return result;
}

}  // namespace gradtap::replica
