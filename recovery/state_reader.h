// StateReader: the state of a step as a stream: safetensors, or a file that plain torch.load reads.
//
// Purpose: rebuild shard by shard from a store or a recovery point and write tensors in canonical order. Threads: any
// (reads only); a stream is run by one at a time. Memory: what the limits keep, and the shards that one parameter
// touches; for safetensors, also that parameter twice where its memory order is not row-major. Failure behaviour: what
// is not there is STEP_UNAVAILABLE before the first byte; a digest that fails later ends the stream without its end, so
// that it cannot be taken for a whole one.
#pragma once

#include <functional>
#include <memory>
#include <string_view>

#include "common/error.h"
#include "recovery/job_plan.h"
#include "recovery/shard_source.h"
#include "recovery/state_tensors.h"
#include "recovery/torch_state.h"
#include "storage/shard_store.h"

namespace gradtap::recovery {

// Writes a part of a stream; false when the reader has gone.
using ByteSink = std::function<bool(const char* data, std::size_t count)>;
// Writes the whole stream; false when it could not be written whole.
using StateStream = std::function<bool(const ByteSink&)>;

enum class StateFormat : std::uint8_t { kSafetensors, kTorch };
// "safetensors" or "torch".
[[nodiscard]] Result<StateFormat> state_format_of(std::string_view name);

struct StateChoice {
  bool optimizer = false;  // moments and counters too
  StateFormat format = StateFormat::kSafetensors;
  SideBlobs side{};  // kTorch: what the trainer says of its groups and fixed tensors (torch_state.h)
  RebuildLimits limits{};
};

[[nodiscard]] Result<StateStream> prepare_state(std::shared_ptr<const ShardSource> source, JobPlanPtr plan,
                                                StepNumber step, const StateChoice& choice);

// A durable step of the newest lineage in a node's store, as safetensors.
[[nodiscard]] Result<StateStream> prepare_state(std::shared_ptr<storage::ShardStore> store, const std::string& job_name,
                                                StepNumber step, bool optimizer);

}  // namespace gradtap::recovery
