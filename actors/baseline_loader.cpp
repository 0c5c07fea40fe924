#include "actors/baseline_loader.h"

#include <algorithm>
#include <string_view>

#include <fmt/format.h>

#include "common/charged.h"
#include "common/number_text.h"
#include "common/sha256.h"
#include "replica/json_fields.h"
#include "replica/safetensors.h"

namespace gradtap::actors {

Result<std::unique_ptr<BaselineLoader>> BaselineLoader::create(JobPlanPtr plan,
                                                               const std::shared_ptr<MemoryLedger>& memory) {
  auto loader = std::unique_ptr<BaselineLoader>(new BaselineLoader(std::move(plan)));
  std::vector<MemoryLease> leases;
  for (const replica::ShardRange& range : loader->plan_->shards.shards()) {
    GRADTAP_LET(lease,
                memory->lease(MemoryAccount::kShards, recovery::state_bytes(*loader->plan_, range.id), "the baseline"));
    leases.push_back(std::move(lease));
  }
  for (const replica::ShardRange& range : loader->plan_->shards.shards()) {
    auto shard = replica::Shard::create(loader->plan_->schema, range, loader->plan_->recipe);
    if (!shard) return std::unexpected(shard.error());
    loader->shards_.push_back(charged(std::move(*shard), std::move(leases[range.id])));
  }
  return loader;
}

Status BaselineLoader::add_chunk(std::uint32_t chunk, ByteSpan body) {
  const Sha256 digest = sha256(body);
  const std::string where = fmt::format("baseline chunk {}", chunk);
  if (const auto known = chunks_.find(chunk); known != chunks_.end()) {
    if (known->second == digest) return {};
    return fail(ErrorCode::kSequenceConflict, "the chunk came twice with different bytes", where, {}, {},
                "attach again");
  }
  auto file = replica::read_safetensors(body);
  if (!file) return std::unexpected(file.error());
  const auto total = file->metadata.find("chunks");
  const auto count = total == file->metadata.end() ? std::nullopt : parse_integer<std::uint64_t>(total->second);
  if (!count || *count == 0 || *count > kChunksMax || (total_ != 0 && *count != total_) || chunk >= *count)
    return fail(ErrorCode::kSafetensorsMalformed, "the number of chunks is missing or contradicts earlier chunks",
                where, total_ != 0 ? std::to_string(total_) : "1..1000000",
                total == file->metadata.end() ? "" : total->second);
  for (const auto& [name, tensor] : file->tensors) GRADTAP_TRY(load_tensor(name, tensor.dtype, tensor.data));
  if (const auto counters = file->metadata.find("counters"); counters != file->metadata.end())
    GRADTAP_TRY(load_counters(counters->second));
  total_ = *count;
  chunks_.emplace(chunk, digest);
  return {};
}

Status BaselineLoader::load_tensor(const std::string& name, const std::string& dtype, ByteSpan data) {
  const auto bad = [&](const std::string& expected) {
    return fail(ErrorCode::kSafetensorsMalformed, "a baseline tensor has a wrong name or type", name, expected, dtype);
  };
  const std::size_t first = name.find(':');
  const std::size_t second = first == std::string::npos ? first : name.find(':', first + 1);
  if (second == std::string::npos) return bad("PARAMETER:BEGIN:KIND");
  const auto parameter = parse_integer<std::uint64_t>(std::string_view(name).substr(0, first));
  const auto begin = parse_integer<std::uint64_t>(std::string_view(name).substr(first + 1, second - first - 1));
  const std::string_view kind_name = std::string_view(name).substr(second + 1);
  if (!parameter || !begin || *parameter >= plan_->schema.parameters.size()) return bad("a parameter of the attach");
  if (dtype != "F32" || data.size() % sizeof(float) != 0) return bad("F32");
  std::size_t kind = 0;
  if (kind_name != "param") {
    const auto state = replica::state_kind_of(kind_name);
    const auto& kinds = plan_->schema.optimizer.kinds;
    const auto it = state ? std::find(kinds.begin(), kinds.end(), *state) : kinds.end();
    if (it == kinds.end()) return bad("param or a kind of the optimizer");
    kind = static_cast<std::size_t>(it - kinds.begin()) + 1;
  }
  std::uint64_t at = *begin;
  std::uint64_t left = data.size() / sizeof(float);
  if (at > plan_->schema.parameters[*parameter].numel || left > plan_->schema.parameters[*parameter].numel - at)
    return bad("a range inside the parameter");
  // An upload range need not respect the cut into shards.
  for (const replica::PieceRef& ref : plan_->shards.pieces_of(static_cast<std::uint32_t>(*parameter))) {
    const replica::Piece& piece = plan_->shards.shards()[ref.shard].pieces[ref.piece];
    if (left == 0) break;
    if (at < piece.begin || at >= piece.begin + piece.count) continue;
    const std::uint64_t part = std::min(left, piece.begin + piece.count - at);
    GRADTAP_TRY(shards_[ref.shard]->load_range(static_cast<std::uint32_t>(*parameter), at, kind,
                                               data.first(part * sizeof(float))));
    data = data.subspan(part * sizeof(float));
    at += part;
    left -= part;
  }
  return {};
}

Status BaselineLoader::load_counters(const std::string& text) {
  auto counters = replica::parse_json_object(text, "baseline counters");
  if (!counters) return std::unexpected(counters.error());
  for (const auto& [key, value] : counters->items()) {
    const auto parameter = parse_integer<std::uint64_t>(key);
    if (!parameter || *parameter >= plan_->schema.parameters.size())
      return fail(ErrorCode::kSafetensorsMalformed, "a step counter names no parameter", "baseline counters", {}, key);
    auto counter = replica::json_uint_value(value, "baseline counters." + key, replica::kLastStepCounter);
    if (!counter) return std::unexpected(counter.error());
    for (const auto& shard : shards_) shard->load_counter(static_cast<std::uint32_t>(*parameter), *counter);
  }
  return {};
}

Result<std::vector<std::shared_ptr<replica::Shard>>> BaselineLoader::finish() {
  for (const auto& shard : shards_) GRADTAP_TRY(shard->finish_baseline(plan_->base_step));
  return std::move(shards_);
}

}  // namespace gradtap::actors
