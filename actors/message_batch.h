// MessageBatch: the lines of one POST messages, read and checked before anything of them is accepted.
//
// Purpose: from hostile text to values that can be stored and passed on (docs/side-channel.md). Pure; any thread.
// Invariants: either every line of the batch is good, or the batch is refused with the first line's error and the
// client sends them one by one. Bounded by MessageLimits.
#pragma once

#include <cstdint>
#include <optional>
#include <string_view>
#include <vector>

#include "actors/messages.h"
#include "actors/session_table.h"
#include "common/error.h"
#include "replica/schema.h"
#include "storage/shard_store.h"

namespace gradtap::actors {

struct MessageLimits {
  std::size_t batch_lines_max = 64;
  std::size_t batch_bytes_max = std::size_t{1} << 20;
};

// What one message asks for. `entry` is what must be stored before it counts as received.
struct BatchedMessage {
  std::uint64_t seq = 0;
  Sha256 digest{};
  std::optional<storage::SideEntry> entry;
  StepMessagePtr step;
  LayoutPtr layout;
  std::optional<ClientNotice> notice;
  std::vector<std::uint64_t> dropped_seqs;
};

[[nodiscard]] Result<std::vector<BatchedMessage>> read_message_batch(std::string_view body, const Session& session,
                                                                     const JobId& job, const replica::Schema& schema,
                                                                     const MessageLimits& limits);

}  // namespace gradtap::actors
