// StateReader: the durable state of a step as a safetensors stream (GET .../state).
//
// Purpose: rebuild shard by shard from the store and write tensors in canonical order, whole parameters in row-major
// order whatever their memory order was. Threads: any (reads the store only). Memory: the shards that one parameter
// touches. Failure behaviour: what is not durable is STEP_UNAVAILABLE before the first byte; a digest that fails later
// ends the stream without its end, so that it cannot be taken for a whole one.
#pragma once

#include <functional>
#include <memory>

#include "common/error.h"
#include "storage/shard_store.h"

namespace gradtap::recovery {

// Writes a part of a stream; false when the reader has gone.
using ByteSink = std::function<bool(const char* data, std::size_t count)>;

[[nodiscard]] Result<std::function<bool(const ByteSink&)>> prepare_state(std::shared_ptr<storage::ShardStore> store,
                                                                         const std::string& job_name, StepNumber step,
                                                                         bool optimizer);

}  // namespace gradtap::recovery
