#include "recovery/state_reader.h"

#include <algorithm>
#include <map>
#include <numeric>
#include <utility>

#include <fmt/format.h>
#include <nlohmann/json.hpp>

#include "common/log.h"
#include "recovery/rebuild_shard.h"
#include "replica/digest.h"
#include "replica/safetensors.h"

namespace gradtap::recovery {

namespace {

struct TensorPlan {
  std::uint32_t parameter = 0;
  std::size_t kind = 0;  // of the shard: 0 is the parameter
};

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

class StateReader {
 public:
  StateReader(std::shared_ptr<storage::ShardStore> store, JobPlanPtr plan, StepNumber step)
      : store_(std::move(store)), plan_(std::move(plan)), step_(step) {}

  Status write(const std::vector<TensorPlan>& tensors, const std::vector<replica::TensorDeclaration>& declarations,
               const std::map<std::string, std::string, std::less<>>& metadata, const replica::ByteSink& sink) {
    return replica::write_safetensors(
        declarations, metadata,
        [&](std::size_t index, const replica::ByteSink& out) { return write_tensor(tensors[index], out); }, sink);
  }

 private:
  Result<const replica::Shard*> shard(ShardId id) {
    if (const auto it = shards_.find(id); it != shards_.end()) return &it->second;
    auto rebuilt = rebuild_shard(*store_, *plan_, id, step_);
    if (!rebuilt) return std::unexpected(rebuilt.error());
    return &shards_.emplace(id, std::move(*rebuilt)).first->second;
  }

  Status write_tensor(const TensorPlan& tensor, const replica::ByteSink& sink) {
    const replica::ParameterSpec& spec = plan_->schema.parameters[tensor.parameter];
    const auto& refs = plan_->shards.pieces_of(tensor.parameter);
    if (refs.empty()) return {};
    // Tensors come in canonical order: earlier shards are not needed again.
    shards_.erase(shards_.begin(), shards_.lower_bound(refs.front().shard));
    const bool direct = row_major(spec);
    std::vector<float> whole;
    if (!direct) whole.reserve(spec.numel);
    for (const replica::PieceRef& ref : refs) {
      auto source = shard(ref.shard);
      if (!source) return std::unexpected(source.error());
      const replica::Piece& piece = (*source)->range().pieces[ref.piece];
      const auto values = (*source)->kind(tensor.kind).subspan(piece.shard_offset, piece.count);
      if (direct)
        GRADTAP_TRY(sink(ByteSpan(reinterpret_cast<const std::uint8_t*>(values.data()), values.size_bytes())));
      else
        whole.insert(whole.end(), values.begin(), values.end());
    }
    if (direct) return {};
    const std::vector<float> out = to_row_major(whole, spec);
    return sink(ByteSpan(reinterpret_cast<const std::uint8_t*>(out.data()), out.size() * sizeof(float)));
  }

  std::shared_ptr<storage::ShardStore> store_;
  JobPlanPtr plan_;
  StepNumber step_;
  std::map<ShardId, replica::Shard> shards_;
};

struct PreparedStream {
  std::shared_ptr<storage::ShardStore> store;
  JobPlanPtr plan;
  StepNumber step = 0;
  std::vector<TensorPlan> tensors;
  std::vector<replica::TensorDeclaration> declarations;
  std::map<std::string, std::string, std::less<>> metadata;
};

bool write_stream(const PreparedStream& stream, const ByteSink& sink) {
  StateReader reader(stream.store, stream.plan, stream.step);
  const Status done = reader.write(stream.tensors, stream.declarations, stream.metadata, [&](ByteSpan bytes) -> Status {
    // Pieces small enough that a slow reader does not hold a large send buffer.
    while (!bytes.empty()) {
      const std::size_t part = std::min<std::size_t>(bytes.size(), std::size_t{1} << 20);
      if (!sink(reinterpret_cast<const char*>(bytes.data()), part))
        return fail(ErrorCode::kPeerUnreachable, "the reader of the stream has gone");
      bytes = bytes.subspan(part);
    }
    return {};
  });
  if (!done) log_warn("a state stream ended early", {{"step", stream.step}, {"error", done.error().text()}});
  return done.has_value();
}

// Presence and step counter of every parameter at the step.
struct ParameterFacts {
  std::uint64_t counter = 0;
  std::uint8_t present = 0;
};

}  // namespace

Result<std::function<bool(const ByteSink&)>> prepare_state(std::shared_ptr<storage::ShardStore> store,
                                                           const std::string& job_name, StepNumber step,
                                                           bool optimizer) {
  const JobId job = job_id(job_name);
  const auto lineages = store->lineages(job);
  if (!lineages) return std::unexpected(lineages.error());
  if (lineages->empty() || lineages->back().recipe_id.empty())
    return fail(ErrorCode::kStepUnavailable, "the job has no durable state yet", job_name, {}, {},
                "wait for the attach");
  auto parsed = plan_from_record(lineages->back());
  if (!parsed) return std::unexpected(parsed.error());
  auto plan = std::make_shared<const JobPlan>(std::move(*parsed));
  const auto marks = store->marks(job, plan->lineage);
  if (!marks) return std::unexpected(marks.error());
  StepNumber durable = marks->empty() ? 0 : marks->front().version;
  for (const storage::Mark& mark : *marks) durable = std::min(durable, mark.version);
  if (marks->size() != plan->shards.shards().size() || step > durable)
    return fail(ErrorCode::kStepUnavailable, "the step is not durable", fmt::format("step {}", step),
                fmt::format("at most {}", durable), std::to_string(step), "see gradtap status");
  // Which optimizer state exists, and every shard's digest, must be known before the header can be written.
  std::vector<ParameterFacts> facts(plan->schema.parameters.size());
  std::vector<Sha256> digests;
  for (const replica::ShardRange& range : plan->shards.shards()) {
    auto shard = rebuild_shard(*store, *plan, range.id, step);
    if (!shard) return std::unexpected(shard.error());
    for (std::size_t i = 0; i < range.pieces.size(); ++i) {
      facts[range.pieces[i].parameter].counter = shard->piece_states()[i].counter;
      facts[range.pieces[i].parameter].present |= shard->piece_states()[i].present;
    }
    digests.push_back(shard->digest().sha);
  }
  std::vector<TensorPlan> tensors;
  std::vector<replica::TensorDeclaration> declarations;
  nlohmann::json counters = nlohmann::json::object();
  nlohmann::json aliases = nlohmann::json::object();
  for (std::uint32_t p = 0; p < plan->schema.parameters.size(); ++p) {
    const replica::ParameterSpec& spec = plan->schema.parameters[p];
    if (spec.alias_of) {
      aliases[spec.name] = plan->schema.parameters[*spec.alias_of].name;
      continue;
    }
    tensors.push_back({p, 0});
    declarations.push_back({spec.name, "F32", spec.shape});
    if (facts[p].counter > 0) counters[spec.name] = facts[p].counter;
    if (!optimizer) continue;
    for (std::size_t k = 0; k < plan->schema.optimizer.kinds.size(); ++k) {
      if ((facts[p].present >> k & 1) == 0) continue;
      tensors.push_back({p, k + 1});
      declarations.push_back({spec.name + "#" + std::string(replica::state_kind_name(plan->schema.optimizer.kinds[k])),
                              "F32", spec.shape});
    }
  }
  auto stream = std::make_shared<PreparedStream>();
  stream->store = std::move(store);
  stream->plan = plan;
  stream->step = step;
  stream->tensors = std::move(tensors);
  stream->declarations = std::move(declarations);
  stream->metadata["step"] = std::to_string(step);
  stream->metadata["lineage"] = std::to_string(plan->lineage);
  stream->metadata["job"] = job_name;
  stream->metadata["root"] = to_hex(replica::state_root(digests));
  stream->metadata["counters"] = counters.dump();
  stream->metadata["aliases"] = aliases.dump();
  return [stream](const ByteSink& sink) { return write_stream(*stream, sink); };
}

}  // namespace gradtap::recovery
