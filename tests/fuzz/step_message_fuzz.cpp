// Any text as an attach body, a layout and a step message: an Error or a checked structure, never a crash.
#include <cstdlib>

#include "replica/contract.h"
#include "replica/schema_json.h"
#include "replica/shard_map.h"
#include "replica/step_message.h"

using namespace gradtap;
using namespace gradtap::replica;

namespace {

Schema small_schema() {
  Schema schema;
  for (const char* name : {"a", "b", "c"}) {
    ParameterSpec parameter;
    parameter.name = name;
    parameter.shape = {3};
    parameter.order = {0};
    parameter.numel = 3;
    parameter.group = 0;
    schema.parameters.push_back(parameter);
  }
  schema.optimizer.type = OptimizerClass::kAdamW;
  schema.optimizer.kinds = {StateKind::kExpAvg, StateKind::kExpAvgSq};
  schema.optimizer.groups.resize(1);
  return schema;
}

}  // namespace

extern "C" int LLVMFuzzerTestOneInput(const std::uint8_t* data, std::size_t size) {
  static const Schema schema = small_schema();
  const auto body = parse_json_object({reinterpret_cast<const char*>(data), size}, "body");
  if (!body) return 0;
  if (const auto step = parse_step_message(*body, schema)) {
    if (step->rank == 0 && step->scalars.param_state.size() != schema.parameters.size()) std::abort();
    (void)step->scalars.transforms.apply(1, 2);
  }
  if (const auto layout = parse_layout(*body, schema))
    for (std::size_t b = 0; b < layout->bucket_count(); ++b)
      for (std::uint64_t i = 0; i < layout->bucket_numel(b); ++i)
        if (layout->locate(b, i).element >= 3) std::abort();
  if (const auto parsed = parse_schema(*body)) {
    // A shard map of a model that fits in memory must cover it.
    if (parsed->elements() > 0 && parsed->elements() < (1U << 24)) {
      const auto map = ShardMap::cut(*parsed, 100'000);
      std::uint64_t total = 0;
      if (!map) std::abort();
      for (const ShardRange& shard : map->shards()) total += shard.elements;
      if (total != parsed->elements()) std::abort();
    }
  }
  (void)parse_inventory(*body);
  return 0;
}
