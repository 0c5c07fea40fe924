#include "replica/shard.h"

#include <algorithm>
#include <cstring>

#include <fmt/format.h>

#include "common/sha256.h"

namespace gradtap::replica {
namespace {

// The kinds a piece has after one step of this group: bit k for optimizer kind k.
std::uint8_t kinds_used(const OptimizerSpec& optimizer, const GroupHyper& hyper) {
  std::uint8_t mask = 0;
  for (std::size_t k = 0; k < optimizer.kinds.size(); ++k) {
    const StateKind kind = optimizer.kinds[k];
    const bool used = kind == StateKind::kMomentumBuffer ? hyper.momentum != 0
                      : kind == StateKind::kMaxExpAvgSq  ? hyper.amsgrad
                                                         : true;
    if (used) mask = static_cast<std::uint8_t>(mask | 1U << k);
  }
  return mask;
}

}  // namespace

std::vector<const float*> contiguous_pieces(const ShardRange& range, const float* gradient) {
  std::vector<const float*> pieces;
  pieces.reserve(range.pieces.size());
  for (const Piece& piece : range.pieces) pieces.push_back(gradient + piece.shard_offset);
  return pieces;
}

Result<Shard> Shard::create(const Schema& schema, const ShardRange& range, const Recipe& recipe,
                            const Kernels& kernels) {
  Shard shard;
  shard.range_ = range;
  shard.context_ = {schema.optimizer.type, recipe, &kernels};
  shard.optimizer_ = schema.optimizer;
  shard.parameter_count_ = schema.parameters.size();
  for (const Piece& piece : range.pieces) {
    const ParameterSpec& parameter = schema.parameters[piece.parameter];
    shard.facts_.push_back({parameter.numel, parameter.group, parameter.has_gradient(), parameter.name});
  }
  shard.states_.resize(range.pieces.size());
  const std::size_t kinds = 1 + schema.optimizer.kinds.size();
  for (std::size_t k = 0; k < kinds; ++k) {
    StateArray array = StateArray::create(range.elements);
    if (!array)
      return fail(ErrorCode::kLimitReached, "no memory for a shard", fmt::format("shard {}", range.id),
                  fmt::format("{} bytes", range.elements * sizeof(float)));
    shard.arrays_.push_back(std::move(array));
  }
  shard.loaded_.assign(range.pieces.size(), std::vector<IntervalSet>(kinds));
  return shard;
}

std::string Shard::place(std::size_t piece) const {
  return fmt::format("shard {}, {}[{}..{})", range_.id, facts_[piece].name, range_.pieces[piece].begin,
                     range_.pieces[piece].begin + range_.pieces[piece].count);
}

Status Shard::load_range(std::uint32_t parameter, std::uint64_t begin, std::size_t kind, ByteSpan data) {
  if (version_)
    return fail(ErrorCode::kStepOutOfOrder, "a baseline range came after the baseline was complete",
                fmt::format("shard {}", range_.id));
  if (kind >= arrays_.size() || data.size() % sizeof(float) != 0)
    return fail(ErrorCode::kStateIncomplete, "a baseline range has an unknown kind or a cut element",
                fmt::format("shard {}, parameter {}", range_.id, parameter));
  const std::uint64_t count = data.size() / sizeof(float);
  const std::optional<std::size_t> found = piece_of(parameter);
  const bool inside = found && begin >= range_.pieces[*found].begin &&
                      begin - range_.pieces[*found].begin <= range_.pieces[*found].count &&
                      count <= range_.pieces[*found].count - (begin - range_.pieces[*found].begin);
  if (!inside)
    return fail(ErrorCode::kStateIncomplete, "a baseline range does not lie in this shard",
                fmt::format("shard {}, parameter {}, elements [{}, +{})", range_.id, parameter, begin, count));
  const std::size_t i = *found;
  const Piece& piece = range_.pieces[i];
  const std::uint64_t at = begin - piece.begin;
  auto* const target = reinterpret_cast<std::uint8_t*>(arrays_[kind].get() + piece.shard_offset);
  bool equal = true;
  loaded_[i][kind].split(at, at + count, [&](std::uint64_t from, std::uint64_t to, bool covered) {
    if (covered && std::memcmp(target + from * 4, data.data() + (from - at) * 4, (to - from) * 4) != 0) equal = false;
  });
  if (!equal)
    return fail(ErrorCode::kStateIncomplete, "a baseline range came twice with different bytes", place(i), {}, {},
                "attach again");
  if (count > 0) std::memcpy(target + at * 4, data.data(), data.size());
  loaded_[i][kind].add(at, at + count);
  return {};
}

std::optional<std::size_t> Shard::piece_of(std::uint32_t parameter) const {
  const auto found = std::lower_bound(range_.pieces.begin(), range_.pieces.end(), parameter,
                                      [](const Piece& piece, std::uint32_t value) { return piece.parameter < value; });
  if (found == range_.pieces.end() || found->parameter != parameter) return std::nullopt;
  return static_cast<std::size_t>(found - range_.pieces.begin());
}

void Shard::load_counter(std::uint32_t parameter, std::uint64_t counter) {
  const std::optional<std::size_t> found = piece_of(parameter);
  if (!version_ && found) states_[*found].counter = counter;
}

Status Shard::check_states(std::span<const PieceState> states) const {
  for (std::size_t i = 0; i < states.size(); ++i) {
    const PieceState& state = states[i];
    if (state.counter > kLastStepCounter || state.present >> optimizer_.kinds.size() != 0)
      return fail(ErrorCode::kStateIncomplete, "a step counter or a presence mask is impossible", place(i));
    if (optimizer_.type == OptimizerClass::kSgd) continue;
    const unsigned moments = state.present & 3U;
    if (moments == 1 || moments == 2 || (state.present != 0 && moments != 3) || (state.counter > 0 && moments != 3))
      return fail(ErrorCode::kStateIncomplete, "an optimizer state is there only in part", place(i),
                  "exp_avg and exp_avg_sq and a step counter, or none of them",
                  fmt::format("kinds {:#x}, counter {}", state.present, state.counter));
  }
  return {};
}

Status Shard::finish_baseline(StepNumber step) {
  if (version_)
    return fail(ErrorCode::kStepOutOfOrder, "the baseline was complete already", fmt::format("shard {}", range_.id));
  std::vector<PieceState> states = states_;
  for (std::size_t i = 0; i < range_.pieces.size(); ++i) {
    const std::uint64_t count = range_.pieces[i].count;
    states[i].present = 0;
    for (std::size_t k = 0; k < arrays_.size(); ++k) {
      const std::uint64_t loaded = loaded_[i][k].total();
      if (loaded == count) {
        if (k > 0) states[i].present = static_cast<std::uint8_t>(states[i].present | 1U << (k - 1));
      } else if (k == 0 || loaded != 0) {
        return fail(ErrorCode::kStateIncomplete, "the baseline has a hole", place(i), fmt::format("{} elements", count),
                    fmt::format("{} of kind {}", loaded, k));
      }
    }
  }
  GRADTAP_TRY(check_states(states));
  states_ = std::move(states);
  loaded_.clear();
  version_ = step;
  return {};
}

Status Shard::restore(StepNumber step, std::span<const PieceState> pieces, std::span<const ByteSpan> kinds) {
  const std::string where = fmt::format("shard {}", range_.id);
  if (pieces.size() != states_.size() || kinds.size() != arrays_.size())
    return fail(ErrorCode::kStateIncomplete, "a full version has another shape than the shard", where,
                fmt::format("{} pieces, {} kinds", states_.size(), arrays_.size()),
                fmt::format("{} pieces, {} kinds", pieces.size(), kinds.size()));
  GRADTAP_TRY(check_states(pieces));
  for (std::size_t k = 0; k < kinds.size(); ++k) {
    const bool needed = k == 0 || std::any_of(pieces.begin(), pieces.end(), [k](const PieceState& piece) {
                          return (piece.present >> (k - 1) & 1U) != 0;
                        });
    if (kinds[k].size() != range_.elements * 4 && (needed || !kinds[k].empty()))
      return fail(ErrorCode::kStateIncomplete, "a full version lacks bytes", fmt::format("{}, kind {}", where, k),
                  fmt::format("{}", range_.elements * 4), fmt::format("{}", kinds[k].size()));
  }
  for (std::size_t k = 0; k < kinds.size(); ++k) {
    if (kinds[k].empty())
      std::memset(arrays_[k].get(), 0, range_.elements * 4);
    else
      std::memcpy(arrays_[k].get(), kinds[k].data(), kinds[k].size());
    for (std::size_t i = 0; k > 0 && i < pieces.size(); ++i)  // absent is zero in memory, whatever was stored
      if ((pieces[i].present >> (k - 1) & 1U) == 0)
        std::memset(arrays_[k].get() + range_.pieces[i].shard_offset, 0, range_.pieces[i].count * 4);
  }
  states_.assign(pieces.begin(), pieces.end());
  loaded_.clear();
  version_ = step;
  return {};
}

Status Shard::check_step(const StepScalars& scalars, const GradientView& gradient) const {
  const std::string where = fmt::format("shard {}, step {}", range_.id, scalars.step);
  if (!version_ || scalars.step != *version_ + 1)
    return fail(ErrorCode::kStepOutOfOrder, "a step does not follow the shard's version", where,
                version_ ? fmt::format("{}", *version_ + 1) : "a baseline first", fmt::format("{}", scalars.step));
  if (scalars.verdict == Verdict::kAmbiguous)
    return fail(ErrorCode::kGradientUnwired, "the step had more than one optimizer call", where, {}, {},
                "call the optimizer once between commits");
  if (scalars.verdict == Verdict::kSkipped) return {};
  if (scalars.param_state.size() != parameter_count_)
    return fail(ErrorCode::kSchemaInvalid, "param_state has another number of parameters", where,
                fmt::format("{}", parameter_count_), fmt::format("{}", scalars.param_state.size()));
  GRADTAP_TRY(validate_groups(optimizer_, scalars.groups, "groups"));
  if (gradient.pieces.size() != range_.pieces.size())
    return fail(ErrorCode::kGradientIncomplete, "a gradient has another number of pieces than the shard", where,
                fmt::format("{}", range_.pieces.size()), fmt::format("{}", gradient.pieces.size()));
  for (std::size_t i = 0; i < range_.pieces.size(); ++i) {
    if (!facts_[i].has_gradient) continue;
    const ParamState state = scalars.param_state[range_.pieces[i].parameter];
    if (state == ParamState::kStale && facts_[i].group >= 0)
      return fail(ErrorCode::kGradientUnwired, "a gradient that the optimizer used was not on the wire", place(i));
    if (state == ParamState::kWire && gradient.pieces[i] == nullptr)
      return fail(ErrorCode::kGradientIncomplete, "a piece has no gradient", place(i));
  }
  return {};
}

TensorRange Shard::tensor_range(const Piece& piece, const PieceFacts& facts) const {
  TensorRange range;
  range.param = arrays_[0].get() + piece.shard_offset;
  range.begin = piece.begin;
  range.count = piece.count;
  range.tensor_numel = facts.numel;
  for (std::size_t k = 0; k < optimizer_.kinds.size(); ++k) {
    float* const state = arrays_[k + 1].get() + piece.shard_offset;
    switch (optimizer_.kinds[k]) {
      case StateKind::kMomentumBuffer:
        range.momentum = state;
        break;
      case StateKind::kExpAvg:
        range.exp_avg = state;
        break;
      case StateKind::kExpAvgSq:
        range.exp_avg_sq = state;
        break;
      case StateKind::kMaxExpAvgSq:
        range.max_exp_avg_sq = state;
        break;
    }
  }
  return range;
}

Status Shard::apply(const StepScalars& scalars, const GradientView& gradient) {
  GRADTAP_TRY(check_step(scalars, gradient));
  if (scalars.verdict == Verdict::kApplied) {
    for (std::size_t i = 0; i < range_.pieces.size(); ++i) {
      const Piece& piece = range_.pieces[i];
      const PieceFacts& facts = facts_[i];
      if (!facts.has_gradient || facts.group < 0 || scalars.param_state[piece.parameter] != ParamState::kWire) continue;
      const GroupHyper& hyper = scalars.groups[static_cast<std::size_t>(facts.group)];
      PieceState& state = states_[i];
      const std::uint8_t used = kinds_used(optimizer_, hyper);
      if (optimizer_.type != OptimizerClass::kSgd) state.counter = std::min(state.counter + 1, kLastStepCounter);
      apply_range(context_, hyper, state.counter, (state.present & used) == 0,
                  scalars.transforms.for_parameter(piece.parameter), tensor_range(piece, facts), gradient.pieces[i]);
      state.present = static_cast<std::uint8_t>(state.present | used);
    }
  }
  version_ = scalars.step;
  return {};
}

ByteSpan Shard::full_kind(std::size_t kind) const {
  return {reinterpret_cast<const std::uint8_t*>(arrays_[kind].get()), range_.elements * 4};
}

bool Shard::kind_present(std::size_t kind) const {
  return kind == 0 || std::any_of(states_.begin(), states_.end(),
                                  [kind](const PieceState& state) { return (state.present >> (kind - 1) & 1U) != 0; });
}

ShardDigest Shard::digest() const {
  ShardDigest result;
  Sha256Stream sha;
  const std::size_t kinds = arrays_.size();
  for (std::size_t i = 0; i < range_.pieces.size(); ++i) {
    const Piece& piece = range_.pieces[i];
    for (std::uint64_t at = 0; at < piece.count; at += kBlockElements) {
      const std::uint64_t count = std::min(kBlockElements, piece.count - at);
      const float* present[4] = {};
      std::size_t index[4] = {};
      std::size_t streams = 0;
      for (std::size_t k = 0; k < kinds; ++k)
        if (k == 0 || (states_[i].present >> (k - 1) & 1U) != 0) {
          index[streams] = k;
          present[streams++] = arrays_[k].get() + piece.shard_offset + at;
        }
      BlockDigest found[4] = {};
      BlockDigest all[4] = {};
      block_digests(*context_.kernels, std::span(present, streams), count, std::span(found, streams));
      for (std::size_t s = 0; s < streams; ++s) all[index[s]] = found[s];
      for (std::size_t k = 0; k < kinds; ++k) result.blocks.push_back(all[k]);
      sha.add(all, kinds * sizeof(BlockDigest));
      sha.add(&states_[i].counter, sizeof states_[i].counter);
    }
  }
  result.sha = sha.finish();
  return result;
}

}  // namespace gradtap::replica
