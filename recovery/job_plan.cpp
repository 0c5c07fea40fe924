#include "recovery/job_plan.h"

#include <fmt/format.h>

#include "common/sha256.h"
#include "replica/contract.h"
#include "replica/json_fields.h"
#include "replica/schema_json.h"

namespace gradtap::recovery {

namespace {
constexpr std::size_t kExpectedSizesMax = 512;
constexpr std::size_t kTorchVersionMax = 64;
}  // namespace

Result<JobPlan> plan_from_attach(const std::string& attach_json, const std::string& job_name, std::uint32_t world,
                                 std::uint64_t shard_elements) {
  const std::string where = "attach";
  GRADTAP_LET(body, replica::parse_json_object(attach_json, where));
  JobPlan plan;
  plan.job = job_id(job_name);
  plan.job_name = job_name;
  plan.shard_elements = shard_elements;
  plan.schema_id = sha256(attach_json);
  GRADTAP_LET(announced_world, replica::json_uint(body, "world", where, 65'536));
  if (announced_world != world)
    return fail(ErrorCode::kAttachRefused, "the job has another number of ranks than the job file has endpoints",
                "attach.world", std::to_string(world), std::to_string(announced_world),
                "list every rank's address in job.endpoints, in rank order");
  plan.world = world;
  GRADTAP_LET(sequence, replica::json_uint(body, "sequence", where, ~std::uint64_t{0} >> 1));
  plan.sequence_at_attach = sequence;
  GRADTAP_LET(backend, replica::json_text(body, "backend", where));
  if (backend != "gloo")
    return fail(ErrorCode::kUnsupported, "the backend is not supported", "attach.backend", "gloo", backend,
                "this version follows gloo's ring all-reduce only");
  GRADTAP_LET(step, replica::json_uint(body, "step", where, ~std::uint64_t{0} >> 1));
  plan.base_step = step;
  if (const auto from = body.find("resume_from"); from != body.end()) plan.resumed = from->is_object();
  GRADTAP_LET(schema, replica::parse_schema(body));
  plan.schema = std::move(schema);
  GRADTAP_LET(shards, replica::ShardMap::cut(plan.schema, shard_elements));
  plan.shards = std::move(shards);
  GRADTAP_LET(inventory, replica::parse_inventory(body));
  plan.unknown_leaves = replica::unknown_leaves(inventory);
  if (body.contains("probe_cases")) {
    GRADTAP_LET(cases, replica::json_text(body, "probe_cases", where));
    if (cases != "standard" && cases != "recorded")
      return fail(ErrorCode::kRequestMalformed, "the kind of probe is unknown", "attach.probe_cases",
                  "standard or recorded", cases);
    plan.recorded_probe = cases == "recorded";
  }
  if (const auto torch = body.find("torch"); torch != body.end() && torch->is_string())
    plan.torch_version = torch->get<std::string>().substr(0, kTorchVersionMax);
  // Hints only: what is not a size is left out.
  if (const auto hints = body.find("layouts_expected"); hints != body.end() && hints->is_array())
    for (const auto& sizes : *hints) {
      if (!sizes.is_array()) continue;
      for (const auto& size : sizes)
        if (size.is_number_unsigned() && plan.expected_op_bytes.size() < kExpectedSizesMax)
          plan.expected_op_bytes.push_back(size.get<std::uint64_t>());
    }
  return plan;
}

Result<JobPlan> plan_from_record(const schema::LineageRecord& record) {
  const std::string attach(record.schema_json.begin(), record.schema_json.end());
  GRADTAP_LET(plan, plan_from_attach(attach, record.job_name, record.world, record.shard_elements));
  plan.lineage = record.lineage;
  const auto recipe = replica::recipe_of(record.recipe_id);
  if (!recipe)
    return fail(ErrorCode::kStoreFormat, "the lineage record names no known recipe",
                fmt::format("lineage {}", record.lineage), "a recipe of this version", record.recipe_id,
                "the attach did not complete: restart the job, or use the version that wrote the store");
  plan.recipe = *recipe;
  if (plan.shards.shards().size() != record.shard_count)
    return fail(ErrorCode::kStoreFormat, "the state is cut into another number of shards than the record says",
                fmt::format("lineage {}", record.lineage), std::to_string(record.shard_count),
                std::to_string(plan.shards.shards().size()), "use the version that wrote the store");
  return plan;
}

std::uint64_t gradient_bytes(const JobPlan& plan, ShardId shard) {
  return plan.shards.shards()[shard].elements * sizeof(float);
}

std::uint64_t state_bytes(const JobPlan& plan, ShardId shard) {
  return gradient_bytes(plan, shard) * (1 + plan.schema.optimizer.kinds.size());
}

}  // namespace gradtap::recovery
