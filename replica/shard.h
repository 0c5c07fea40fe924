// Shard: a fixed, block-aligned range of the state at one uniform version.
//
// Purpose: hold parameters and optimizer state of a shard, load the baseline, apply steps, digest, give and take full
// versions. Ownership: owns its arrays (one per kind, in shard order, zero where a state is absent). One thread.
// Invariants: the version is uniform; a step is applied completely or not at all, in order, once; an absent state
// (never created by the optimizer) is not the same as zeros. Failure behaviour: a named Error and an unchanged shard
// (a failed load_range leaves a shard that can only go on loading).
#pragma once

#include <cstdint>
#include <optional>
#include <span>
#include <string>
#include <vector>

#include "common/bytes.h"
#include "common/interval_set.h"
#include "replica/digest.h"
#include "replica/hyper.h"
#include "replica/recipe.h"
#include "replica/shard_map.h"
#include "replica/state_array.h"

namespace gradtap::replica {

// Gradient of a shard in one step: for each piece its piece.count floats, or null where nothing was collected.
// The bytes belong to the caller, are shared, and are never written.
struct GradientView {
  std::span<const float* const> pieces;
};

// Pointers into one array in shard order: the form of the log.
[[nodiscard]] std::vector<const float*> contiguous_pieces(const ShardRange& range, const float* gradient);

// What a full version says about a piece besides its bytes.
struct PieceState {
  std::uint64_t counter = 0;  // the optimizer's step counter; 0 for SGD
  std::uint8_t present = 0;   // bit k: optimizer kind k exists
  friend bool operator==(const PieceState&, const PieceState&) = default;
};

struct ShardDigest {
  Sha256 sha{};
  // Per block in canonical order: one digest per kind (param first; zeros where absent).
  std::vector<BlockDigest> blocks;
};

class Shard {
 public:
  // Starts without a version: load a baseline or restore a full version.
  [[nodiscard]] static Result<Shard> create(const Schema& schema, const ShardRange& range, const Recipe& recipe,
                                            const Kernels& kernels = best_kernels());

  // kind 0 is the parameter, kind k the optimizer's kind k-1. Data is float32 in memory order. Bytes loaded twice
  // must be equal.
  [[nodiscard]] Status load_range(std::uint32_t parameter, std::uint64_t begin, std::size_t kind, ByteSpan data);
  void load_counter(std::uint32_t parameter, std::uint64_t counter);  // ignored for other shards' parameters
  // Every element of every parameter is there; each optimizer kind covers its piece completely or not at all.
  [[nodiscard]] Status finish_baseline(StepNumber step);

  // A full version: kind arrays in shard order, byte for byte as full_kind() gave them.
  [[nodiscard]] Status restore(StepNumber step, std::span<const PieceState> pieces, std::span<const ByteSpan> kinds);

  // Applies step version()+1. Every piece whose gradient is on the wire must be in the view.
  [[nodiscard]] Status apply(const StepScalars& scalars, const GradientView& gradient);

  [[nodiscard]] ShardDigest digest() const;

  [[nodiscard]] bool has_version() const { return version_.has_value(); }
  [[nodiscard]] StepNumber version() const { return version_.value_or(0); }
  [[nodiscard]] const ShardRange& range() const { return range_; }
  [[nodiscard]] const Recipe& recipe() const { return context_.recipe; }
  [[nodiscard]] std::size_t kind_count() const { return arrays_.size(); }
  [[nodiscard]] std::span<const float> kind(std::size_t kind) const { return {arrays_[kind].get(), range_.elements}; }
  [[nodiscard]] ByteSpan full_kind(std::size_t kind) const;
  [[nodiscard]] bool kind_present(std::size_t kind) const;  // in any piece; an absent kind need not be stored
  [[nodiscard]] std::span<const PieceState> piece_states() const { return states_; }

 private:
  // What apply needs to know of a piece's parameter.
  struct PieceFacts {
    std::uint64_t numel = 0;
    std::int32_t group = -1;
    bool has_gradient = false;
    std::string name;
  };

  Shard() = default;
  [[nodiscard]] Status check_step(const StepScalars& scalars, const GradientView& gradient) const;
  [[nodiscard]] Status check_states(std::span<const PieceState> states) const;
  [[nodiscard]] TensorRange tensor_range(const Piece& piece, const PieceFacts& facts) const;
  // A shard has at most one piece of a parameter, and they are sorted.
  [[nodiscard]] std::optional<std::size_t> piece_of(std::uint32_t parameter) const;
  [[nodiscard]] std::string place(std::size_t piece) const;

  ShardRange range_;
  StepContext context_;
  OptimizerSpec optimizer_;
  std::size_t parameter_count_ = 0;
  std::vector<PieceFacts> facts_;
  std::vector<PieceState> states_;
  std::vector<StateArray> arrays_;                // param, then the optimizer's kinds
  std::vector<std::vector<IntervalSet>> loaded_;  // [piece][kind], while loading
  std::optional<StepNumber> version_;
};

}  // namespace gradtap::replica
