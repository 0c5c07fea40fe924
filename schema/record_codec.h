// Records on disk as plain structs, to and from sealed Cap'n Proto bytes.
//
// Purpose: nobody above this floor sees a Cap'n Proto type. Ownership: values. Threads: any. Failure: decoding bounds
// size, traversal and nesting, and answers STORE_CORRUPT or STORE_FORMAT; it never throws.
#pragma once

#include <cstdint>
#include <string>
#include <vector>

#include "common/bytes.h"
#include "common/error.h"
#include "common/ids.h"
#include "schema/envelope.h"

namespace gradtap::schema {

struct LineageRecord {
  JobId job{};
  std::string job_name;
  LineageId lineage = 0;
  std::string run_nonce;  // 32 hexadecimal digits
  LineageId parent_lineage = 0;
  StepNumber parent_step = 0;
  StepNumber base_step = 0;
  std::uint32_t world = 0;
  std::uint32_t group = 0;
  std::uint64_t sequence = 0;
  std::vector<std::uint8_t> schema_json;  // rank 0's attach message as received
  std::string optimizer_class;
  std::vector<std::string> kinds;
  std::string recipe_id;
  std::vector<std::string> transforms;
  std::uint64_t shard_elements = 0;
  std::uint32_t shard_count = 0;
  std::vector<std::string> endpoints;
  std::uint64_t created_wall_ms = 0;
  LayoutId layout_id{};
  friend bool operator==(const LineageRecord&, const LineageRecord&) = default;
};

enum class Verdict : std::uint16_t { kApplied = 0, kSkipped = 1, kAmbiguous = 2 };

struct StepRecord {
  LineageId lineage = 0;
  StepNumber step = 0;
  std::uint32_t rank = 0;
  std::uint64_t seq = 0;
  LayoutId layout_id{};
  std::uint64_t interval_from = 0;
  std::uint64_t interval_to = 0;
  Verdict verdict = Verdict::kApplied;
  std::vector<std::uint8_t> json;  // the message as received: the authority
  friend bool operator==(const StepRecord&, const StepRecord&) = default;
};

// What a synced batch promises about one shard. Invariants: full <= version; logs log_from..log_to have no hole and
// log_to == version, or there are none and log_from == log_to + 1.
struct MarkRecord {
  JobId job{};
  LineageId lineage = 0;
  ShardId shard = 0;
  StepNumber version = 0;   // V: the durable step
  StepNumber full = 0;      // F: newest full version
  StepNumber log_from = 1;  // oldest log kept
  StepNumber log_to = 0;    // L
  Sha256 schema_id{};
  std::uint64_t epoch = 0;
  Sha256 state_digest{};
  friend bool operator==(const MarkRecord&, const MarkRecord&) = default;
};

inline constexpr std::size_t kRecordBytesMax = std::size_t{64} << 20;

[[nodiscard]] std::vector<std::uint8_t> encode(const LineageRecord& record);
[[nodiscard]] std::vector<std::uint8_t> encode(const StepRecord& record);
[[nodiscard]] std::vector<std::uint8_t> encode(const MarkRecord& record);

[[nodiscard]] Result<LineageRecord> decode_lineage(ByteSpan bytes);
[[nodiscard]] Result<StepRecord> decode_step(ByteSpan bytes);
[[nodiscard]] Result<MarkRecord> decode_mark(ByteSpan bytes);

}  // namespace gradtap::schema
