// ShardSource: where the bytes of a lineage's shards come from: a node's store, or a recovery point.
//
// Purpose: rebuilding a shard is one path, whoever holds the bytes. Threads: any, at once. Invariants: bytes are given
// only after they have passed every digest that the source keeps apart from them. Failure behaviour: a named error that
// says which record or object; nothing is half given.
#pragma once

#include <cstdint>
#include <memory>
#include <optional>
#include <string>
#include <utility>
#include <vector>

#include "common/bytes.h"
#include "common/error.h"
#include "common/ids.h"

namespace gradtap::recovery {

// Bytes and what keeps them alive.
struct SourceBytes {
  ByteSpan bytes;
  std::shared_ptr<const void> owner;

  [[nodiscard]] static SourceBytes of(std::vector<std::uint8_t> bytes) {
    auto owned = std::make_shared<const std::vector<std::uint8_t>>(std::move(bytes));
    return {ByteSpan(*owned), owned};
  }
};

// One kind of a full version: storage::kKindParam.. or kKindPresence.
struct FullKind {
  std::uint8_t kind = 0;
  SourceBytes content;
};

class ShardSource {
 public:
  virtual ~ShardSource() = default;

  // Steps at which a full version is there, ascending.
  [[nodiscard]] virtual Result<std::vector<StepNumber>> full_steps(ShardId shard) const = 0;
  [[nodiscard]] virtual Result<std::vector<FullKind>> full_version(ShardId shard, StepNumber step) const = 0;
  // Gradient of the shard in shard order; empty for a skipped step.
  [[nodiscard]] virtual Result<SourceBytes> log(ShardId shard, StepNumber step) const = 0;
  // Rank 0's step message: an encoded StepRecord.
  [[nodiscard]] virtual Result<std::vector<std::uint8_t>> step_message(StepNumber step) const = 0;
  // Shard digest after the step; nothing where the source keeps none of that step.
  [[nodiscard]] virtual Result<std::optional<Sha256>> state_digest(ShardId shard, StepNumber step) const = 0;
};

}  // namespace gradtap::recovery
