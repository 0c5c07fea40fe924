// StepMessage: one commit of one rank, as the side channel carries it (docs/side-channel.md, "Step message").
//
// Purpose: rank 0's message is everything a step needs besides the gradient; other ranks' messages carry only the
// interval and counters. Parsing checks it against the schema. Plain values, immutable after parsing; any thread.
// Failure behaviour: an Error whose `where` names the field.
#pragma once

#include <array>
#include <cstdint>
#include <vector>

#include "common/witness.h"
#include "replica/hyper.h"
#include "replica/json_fields.h"
#include "replica/layout.h"
#include "replica/schema.h"

namespace gradtap::replica {

struct WitnessBucket {
  std::uint64_t bucket = 0;
  std::array<std::uint32_t, kWitnessPositions> bits{};  // float32 bits at witness_positions(..)[j]
};

struct ClientCounters {
  std::uint64_t dropped = 0, queue_bytes = 0, commit_us = 0;
};

struct StepMessage {
  std::uint64_t seq = 0;
  std::uint32_t rank = 0;
  StepNumber step = 0;
  std::uint64_t interval_begin = 0, interval_end = 0;  // group sequence numbers [begin, end)
  ClientCounters counters;
  // Rank 0 only:
  LayoutId layout_id{};
  std::uint64_t micro_steps = 0, synced_backwards = 0;
  StepScalars scalars;
  std::vector<WitnessBucket> witness;  // sorted by bucket, unique; buckets may be missing
};

[[nodiscard]] Result<StepMessage> parse_step_message(const Json& message, const Schema& schema);

// "param_state": 2 bits a parameter, as hex.
[[nodiscard]] Result<std::vector<ParamState>> parse_param_state(std::string_view hex, std::size_t parameters);
[[nodiscard]] Result<TransformChain> parse_transforms(const Json& transforms, std::size_t parameters);

}  // namespace gradtap::replica
