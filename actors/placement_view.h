// PlacementView: who holds which shard and how far each holder is, as one node's coordinator knows it.
//
// Plain values, any thread; made by Coordination, read by whoever decides about members or shows them.
#pragma once

#include <cstdint>
#include <memory>
#include <optional>
#include <string>
#include <vector>

#include <nlohmann/json_fwd.hpp>

#include "actors/job_progress.h"

namespace gradtap::actors {

struct HolderView {
  MemberIndex member = 0;
  HolderRole role = HolderRole::kSyncing;
  bool assigned = true;
  bool live = false;
  std::optional<StepNumber> version;  // empty: nothing yet
  std::optional<StepNumber> durable;
  StepNumber from = 0;    // the oldest step that it can produce
  std::string waits_for;  // why a leaving holder does not release it yet
};

struct ShardView {
  ShardId shard = 0;
  std::uint64_t state_bytes = 0;  // of one version
  std::vector<HolderView> holders;
};

struct PlacementView {
  std::uint64_t epoch = 0;
  LineageId lineage = 0;
  StepNumber training = 0;
  StepNumber durable = 0;
  StepNumber published = 0;
  std::vector<ShardView> shards;
  std::vector<bool> heard;  // by member: it is live, and what it holds is what it said in this epoch or a later one
};
using PlacementViewPtr = std::shared_ptr<const PlacementView>;

// `names`: of the members, by index.
[[nodiscard]] nlohmann::json to_json(const PlacementView& view, const std::vector<std::string>& names);

}  // namespace gradtap::actors
