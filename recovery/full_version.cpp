#include "recovery/full_version.h"

#include <fmt/format.h>

namespace gradtap::recovery {

namespace {

constexpr std::size_t kPieceStateBytes = 9;

std::vector<std::uint8_t> encode(std::span<const replica::PieceState> pieces) {
  std::vector<std::uint8_t> bytes;
  bytes.reserve(pieces.size() * kPieceStateBytes);
  for (const replica::PieceState& piece : pieces) {
    for (unsigned i = 0; i < 8; ++i) bytes.push_back(static_cast<std::uint8_t>(piece.counter >> (8 * i)));
    bytes.push_back(piece.present);
  }
  return bytes;
}

Result<std::vector<replica::PieceState>> decode(ByteSpan bytes, std::size_t pieces, const std::string& where) {
  if (bytes.size() != pieces * kPieceStateBytes)
    return fail(ErrorCode::kStoreFormat, "piece states have a wrong length", where,
                std::to_string(pieces * kPieceStateBytes), std::to_string(bytes.size()),
                "the store was written for another schema: start with an empty data_dir");
  ByteReader reader(bytes);
  std::vector<replica::PieceState> states(pieces);
  for (replica::PieceState& state : states) {
    state.counter = reader.le<std::uint64_t>();
    state.present = reader.le<std::uint8_t>();
  }
  return states;
}

}  // namespace

FullVersion::FullVersion(const replica::Shard& shard) {
  for (std::size_t kind = 0; kind < shard.kind_count(); ++kind) {
    if (kind > 0 && !shard.kind_present(kind)) continue;
    const ByteSpan bytes = shard.full_kind(kind);
    kinds_.emplace_back(static_cast<std::uint8_t>(storage::kKindParam + kind),
                        std::vector<std::uint8_t>(bytes.begin(), bytes.end()));
  }
  kinds_.emplace_back(storage::kKindPresence, encode(shard.piece_states()));
}

std::vector<storage::FullPart> FullVersion::parts() const {
  std::vector<storage::FullPart> parts;
  for (const auto& [kind, bytes] : kinds_) parts.push_back({kind, {ByteSpan(bytes)}, {}});
  return parts;
}

Result<replica::Shard> read_full_version(const ShardSource& source, const JobPlan& plan, ShardId shard_id,
                                         StepNumber step) {
  const replica::ShardRange& range = plan.shards.shards()[shard_id];
  auto shard = replica::Shard::create(plan.schema, range, plan.recipe);
  if (!shard) return shard;
  auto parts = source.full_version(shard_id, step);
  if (!parts) return std::unexpected(parts.error());
  std::vector<ByteSpan> kinds(shard->kind_count());  // an absent kind is not stored
  std::vector<replica::PieceState> states;
  const std::string where = fmt::format("lineage {} shard {} step {}", plan.lineage, shard_id, step);
  for (const FullKind& part : *parts) {
    if (part.kind == storage::kKindPresence) {
      auto decoded = decode(part.content.bytes, range.pieces.size(), where);
      if (!decoded) return std::unexpected(decoded.error());
      states = std::move(*decoded);
    } else if (part.kind >= storage::kKindParam && part.kind - storage::kKindParam < static_cast<int>(kinds.size())) {
      kinds[part.kind - storage::kKindParam] = part.content.bytes;
    } else {
      return fail(ErrorCode::kStoreFormat, "a full version holds a kind that the optimizer does not have", where,
                  std::to_string(kinds.size()) + " kinds", "kind " + std::to_string(part.kind));
    }
  }
  GRADTAP_TRY(shard->restore(step, states, kinds));
  return shard;
}

}  // namespace gradtap::recovery
