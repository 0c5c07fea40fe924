#include "recovery/state_tensors.h"

#include <utility>

#include "recovery/rebuild_shard.h"
#include "replica/digest.h"

namespace gradtap::recovery {

namespace {

bool row_major(const replica::ParameterSpec& spec) {
  for (std::size_t i = 0; i < spec.order.size(); ++i)
    if (spec.order[i] != i) return false;
  return true;
}

// From memory order (dims from slowest to fastest in spec.order) to row-major order.
std::vector<float> to_row_major(const std::vector<float>& memory, const replica::ParameterSpec& spec) {
  const std::size_t dims = spec.shape.size();
  std::vector<std::uint64_t> stride(dims, 1);
  std::uint64_t step = 1;
  for (std::size_t i = dims; i > 0; --i) {
    stride[spec.order[i - 1]] = step;
    step *= spec.shape[spec.order[i - 1]];
  }
  std::vector<float> out(memory.size());
  for (std::size_t n = 0; n < out.size(); ++n) {
    std::uint64_t rest = n;
    std::uint64_t at = 0;
    for (std::size_t d = dims; d > 0; --d) {
      at += rest % spec.shape[d - 1] * stride[d - 1];
      rest /= spec.shape[d - 1];
    }
    out[n] = memory[at];
  }
  return out;
}

}  // namespace

Result<StateFacts> StateTensors::facts() const {
  StateFacts facts;
  facts.parameters.resize(plan_->schema.parameters.size());
  for (const replica::ShardRange& range : plan_->shards.shards()) {
    auto shard = rebuild_shard(*source_, *plan_, range.id, step_);
    if (!shard) return std::unexpected(shard.error());
    for (std::size_t i = 0; i < range.pieces.size(); ++i) {
      ParameterFacts& parameter = facts.parameters[range.pieces[i].parameter];
      parameter.counter = shard->piece_states()[i].counter;
      parameter.present |= shard->piece_states()[i].present;
    }
    facts.digests.push_back(shard->digest().sha);
  }
  facts.root = replica::state_root(facts.digests);
  facts.groups = plan_->schema.optimizer.groups;
  if (step_ > plan_->base_step) {
    auto bytes = source_->step_message(step_);
    if (!bytes) return std::unexpected(bytes.error());
    auto message = read_message(*plan_, *bytes);
    if (!message) return std::unexpected(message.error());
    facts.groups = (*message)->scalars.groups;
  }
  return facts;
}

Result<const replica::Shard*> StateTensors::shard(ShardId id) {
  if (const auto it = shards_.find(id); it != shards_.end()) return &it->second;
  auto rebuilt = rebuild_shard(*source_, *plan_, id, step_);
  if (!rebuilt) return std::unexpected(rebuilt.error());
  return &shards_.emplace(id, std::move(*rebuilt)).first->second;
}

Status StateTensors::write(std::uint32_t parameter, std::size_t kind, ElementOrder order,
                           const replica::ByteSink& sink) {
  const replica::ParameterSpec& spec = plan_->schema.parameters[parameter];
  const auto& refs = plan_->shards.pieces_of(parameter);
  if (refs.empty()) return {};
  shards_.erase(shards_.begin(), shards_.lower_bound(refs.front().shard));
  const bool direct = order == ElementOrder::kMemory || row_major(spec);
  std::vector<float> whole;
  if (!direct) whole.reserve(spec.numel);
  for (const replica::PieceRef& ref : refs) {
    auto source = shard(ref.shard);
    if (!source) return std::unexpected(source.error());
    const replica::Piece& piece = (*source)->range().pieces[ref.piece];
    const auto values = (*source)->kind(kind).subspan(piece.shard_offset, piece.count);
    if (direct)
      GRADTAP_TRY(sink(ByteSpan(reinterpret_cast<const std::uint8_t*>(values.data()), values.size_bytes())));
    else
      whole.insert(whole.end(), values.begin(), values.end());
  }
  if (direct) return {};
  const std::vector<float> out = to_row_major(whole, spec);
  return sink(ByteSpan(reinterpret_cast<const std::uint8_t*>(out.data()), out.size() * sizeof(float)));
}

}  // namespace gradtap::recovery
