// SideStateReader: the side state of every rank at a step, out of the stored step messages and blobs.
//
// Purpose: what a recovery point holds besides tensors. Pure reading of the store; any thread. Failure behaviour:
// SIDE_STATE_MISSING names the rank and what is missing; bytes that are not what their digest says are STORE_CORRUPT.
#pragma once

#include <cstdint>
#include <vector>

#include "common/error.h"
#include "recovery/job_plan.h"
#include "schema/point_codec.h"
#include "storage/shard_store.h"

namespace gradtap::actors {

// `expected` of a SIDE_STATE_MISSING that a message on its way, or a peer, may still mend; of the others nothing will.
inline constexpr const char* kMayCome = "that it comes, or lies with a peer";

struct SideStateOfStep {
  schema::SideState state;
  std::vector<std::uint8_t> step_message;  // rank 0's, JSON
  schema::Verdict verdict = schema::Verdict::kApplied;
  LayoutId next_layout{};  // zero: the client does not know it
  std::vector<std::uint8_t> next_layout_json;
};

[[nodiscard]] Result<SideStateOfStep> read_side_state(const storage::ShardStore& store, const recovery::JobPlan& plan,
                                                      StepNumber step);

}  // namespace gradtap::actors
