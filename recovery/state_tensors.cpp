#include "recovery/state_tensors.h"

#include <algorithm>
#include <atomic>
#include <mutex>
#include <optional>
#include <system_error>
#include <thread>
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

Result<std::vector<StateTensors::ShardFacts>> StateTensors::rebuild_all() {
  const auto& ranges = plan_->shards.shards();
  // The first shards are written first: which of them are kept does not depend on who is rebuilt first.
  std::size_t kept = 0;
  for (std::uint64_t bytes = 0; kept < ranges.size(); ++kept) {
    bytes += ranges[kept].elements * sizeof(float) * (1 + plan_->schema.optimizer.kinds.size());
    if (bytes > limits_.kept_bytes) break;
  }
  std::vector<ShardFacts> facts(ranges.size());
  std::vector<std::optional<Error>> errors(ranges.size());
  std::atomic<std::size_t> next = 0;
  std::atomic<bool> failed = false;
  std::mutex mutex;
  const auto work = [&] {
    for (std::size_t i = next++; i < ranges.size() && !failed; i = next++) {
      auto rebuilt = rebuild_with_digest(*source_, *plan_, ranges[i].id, step_);
      if (!rebuilt) {
        errors[i] = rebuilt.error();
        failed = true;
        break;
      }
      const auto states = rebuilt->shard.piece_states();
      facts[i].states.assign(states.begin(), states.end());
      facts[i].digest = rebuilt->digest;
      if (i >= kept) continue;
      const std::lock_guard lock(mutex);
      shards_.emplace(ranges[i].id, std::move(rebuilt->shard));
    }
  };
  {
    std::vector<std::jthread> helpers;
    const std::size_t threads = std::min<std::size_t>(limits_.threads, ranges.size());
    try {
      for (std::size_t i = 1; i < threads; ++i) helpers.emplace_back(work);
    } catch (const std::system_error&) {
      // No more threads to be had: those that run do it all.
    }
    work();
  }
  for (std::optional<Error>& error : errors)
    if (error) {
      shards_.clear();
      return std::unexpected(std::move(*error));
    }
  return facts;
}

Result<StateFacts> StateTensors::facts() {
  StateFacts facts;
  facts.parameters.resize(plan_->schema.parameters.size());
  auto rebuilt = rebuild_all();
  if (!rebuilt) return std::unexpected(rebuilt.error());
  for (const replica::ShardRange& range : plan_->shards.shards()) {
    const ShardFacts& shard = (*rebuilt)[facts.digests.size()];
    for (std::size_t i = 0; i < range.pieces.size(); ++i) {
      ParameterFacts& parameter = facts.parameters[range.pieces[i].parameter];
      parameter.counter = shard.states[i].counter;
      parameter.present |= shard.states[i].present;
    }
    facts.digests.push_back(shard.digest);
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
