#include "actors/placement_view.h"

#include <nlohmann/json.hpp>

namespace gradtap::actors {

nlohmann::json to_json(const PlacementView& view, const std::vector<std::string>& names) {
  using nlohmann::json;
  json shards = json::array();
  for (const ShardView& shard : view.shards) {
    json holders = json::array();
    for (const HolderView& holder : shard.holders) {
      json entry = {{"node", holder.member < names.size() ? names[holder.member] : std::to_string(holder.member)},
                    {"role", holder_role_name(holder.role)},
                    {"live", holder.live},
                    {"version", holder.version ? json(*holder.version) : json()},
                    {"durable", holder.durable ? json(*holder.durable) : json()},
                    {"from", holder.from}};
      if (!holder.assigned) entry["waits_for"] = holder.waits_for;
      holders.push_back(std::move(entry));
    }
    shards.push_back({{"shard", shard.shard}, {"state_bytes", shard.state_bytes}, {"holders", std::move(holders)}});
  }
  return {{"epoch", view.epoch},     {"lineage", view.lineage},     {"training", view.training},
          {"durable", view.durable}, {"published", view.published}, {"shards", std::move(shards)}};
}

}  // namespace gradtap::actors
