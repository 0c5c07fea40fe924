#include "recovery/state_reader.h"

#include <algorithm>
#include <map>
#include <optional>
#include <utility>

#include <fmt/format.h>
#include <nlohmann/json.hpp>

#include "common/log.h"
#include "recovery/state_tensors.h"
#include "recovery/store_source.h"
#include "recovery/torch_state.h"
#include "replica/safetensors.h"

namespace gradtap::recovery {

namespace {

// Pieces small enough that a slow reader does not hold a large send buffer.
constexpr std::size_t kPartBytes = std::size_t{1} << 20;

struct TensorPlan {
  std::uint32_t parameter = 0;
  std::size_t kind = 0;  // of the shard: 0 is the parameter
};

struct SafetensorsPlan {
  std::vector<TensorPlan> tensors;
  std::vector<replica::TensorDeclaration> declarations;
  std::map<std::string, std::string, std::less<>> metadata;
};

SafetensorsPlan safetensors_plan(const JobPlan& plan, const StateFacts& facts, StepNumber step, bool optimizer) {
  SafetensorsPlan out;
  nlohmann::json counters = nlohmann::json::object();
  nlohmann::json aliases = nlohmann::json::object();
  for (std::uint32_t p = 0; p < plan.schema.parameters.size(); ++p) {
    const replica::ParameterSpec& spec = plan.schema.parameters[p];
    for (const std::string& alias : spec.aliases) aliases[alias] = spec.name;
    if (spec.alias_of) {
      aliases[spec.name] = plan.schema.parameters[*spec.alias_of].name;
      continue;
    }
    out.tensors.push_back({p, 0});
    out.declarations.push_back({spec.name, "F32", spec.shape});
    if (facts.parameters[p].counter > 0) counters[spec.name] = facts.parameters[p].counter;
    if (!optimizer) continue;
    for (std::size_t k = 0; k < plan.schema.optimizer.kinds.size(); ++k) {
      if ((facts.parameters[p].present >> k & 1) == 0) continue;
      out.tensors.push_back({p, k + 1});
      out.declarations.push_back(
          {spec.name + "#" + std::string(replica::state_kind_name(plan.schema.optimizer.kinds[k])), "F32", spec.shape});
    }
  }
  out.metadata["step"] = std::to_string(step);
  out.metadata["lineage"] = std::to_string(plan.lineage);
  out.metadata["job"] = plan.job_name;
  out.metadata["root"] = to_hex(facts.root);
  out.metadata["counters"] = counters.dump();
  out.metadata["aliases"] = aliases.dump();
  out.metadata["contents"] = optimizer ? "full" : "weights-only";
  return out;
}

struct PreparedStream {
  std::shared_ptr<const ShardSource> source;
  JobPlanPtr plan;
  StepNumber step = 0;
  StateChoice choice;
  StateFacts facts;
  std::optional<StateTensors> rebuilt;  // with the shards that facts() kept; the first run takes it
};

Status write_stream(PreparedStream& stream, const replica::ByteSink& sink) {
  StateTensors tensors = stream.rebuilt ? std::move(*std::exchange(stream.rebuilt, std::nullopt))
                                        : StateTensors(stream.source, stream.plan, stream.step);
  if (stream.choice.format == StateFormat::kTorch)
    return write_torch_state(tensors, stream.facts, stream.choice.side, stream.choice.optimizer, sink);
  const SafetensorsPlan plan = safetensors_plan(*stream.plan, stream.facts, stream.step, stream.choice.optimizer);
  return replica::write_safetensors(
      plan.declarations, plan.metadata,
      [&](std::size_t index, const replica::ByteSink& out) {
        return tensors.write(plan.tensors[index].parameter, plan.tensors[index].kind, ElementOrder::kRowMajor, out);
      },
      sink);
}

}  // namespace

Result<StateFormat> state_format_of(std::string_view name) {
  if (name == "safetensors") return StateFormat::kSafetensors;
  if (name == "torch") return StateFormat::kTorch;
  return fail(ErrorCode::kBadText, "the format of an export is unknown", "format", "safetensors or torch",
              std::string(name.substr(0, 32)));
}

Result<StateStream> prepare_state(std::shared_ptr<const ShardSource> source, JobPlanPtr plan, StepNumber step,
                                  const StateChoice& choice) {
  // Which optimizer state exists, and every shard's digest, must be known before the header can be written.
  StateTensors tensors(source, plan, step, choice.limits);
  auto facts = tensors.facts();
  if (!facts) return std::unexpected(facts.error());
  auto stream = std::make_shared<PreparedStream>(
      PreparedStream{std::move(source), std::move(plan), step, choice, std::move(*facts), std::move(tensors)});
  return [stream](const ByteSink& sink) {
    const Status done = write_stream(*stream, [&](ByteSpan bytes) -> Status {
      while (!bytes.empty()) {
        const std::size_t part = std::min(bytes.size(), kPartBytes);
        if (!sink(reinterpret_cast<const char*>(bytes.data()), part))
          return fail(ErrorCode::kPeerUnreachable, "the reader of the stream has gone");
        bytes = bytes.subspan(part);
      }
      return {};
    });
    if (!done) log_warn("a state stream ended early", {{"step", stream->step}, {"error", done.error().text()}});
    return done.has_value();
  };
}

Result<StateStream> prepare_state(std::shared_ptr<storage::ShardStore> store, const std::string& job_name,
                                  StepNumber step, bool optimizer) {
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
  auto source = std::make_shared<const StoreSource>(std::move(store), job, plan->lineage);
  return prepare_state(std::move(source), std::move(plan), step, {optimizer, StateFormat::kSafetensors});
}

}  // namespace gradtap::recovery
