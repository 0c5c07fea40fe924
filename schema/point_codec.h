// Records of the object store as plain structs, to and from sealed Cap'n Proto bytes (docs/formats.md, Object store).
//
// Purpose: nobody above this floor sees a Cap'n Proto type. Ownership: values. Threads: any. Invariants: what decodes
// is possible in itself: ids ascending and unique, logs and step objects without a hole up to the step, every rank
// there. Failure: encoding a record beyond its limit is LIMIT_REACHED; decoding answers STORE_CORRUPT, STORE_FORMAT or
// LIMIT_REACHED and never throws.
#pragma once

#include <cstdint>
#include <string>
#include <vector>

#include "common/bytes.h"
#include "common/error.h"
#include "common/ids.h"
#include "schema/record_codec.h"

namespace gradtap::schema {

// Who holds a lineage number: jobs/J/lineage/n.
struct LineageClaim {
  JobId job{};
  std::string job_name;
  LineageId lineage = 0;
  std::string run_nonce;
  LineageId parent_lineage = 0;  // 0: none
  StepNumber parent_step = 0;    // the step this lineage was restored from
  Sha256 parent_record{};        // SHA-256 of that point's record as stored; zero without one
  StepNumber base_step = 0;
  std::string node;
  std::uint64_t created_wall_ms = 0;
  friend bool operator==(const LineageClaim&, const LineageClaim&) = default;
};

struct ObjectRef {
  std::string key;
  std::uint64_t bytes = 0;  // as stored, header included
  Sha256 sha256{};          // of the stored bytes
  friend bool operator==(const ObjectRef&, const ObjectRef&) = default;
};

struct ShardDigest {
  ShardId shard = 0;
  Sha256 digest{};
  friend bool operator==(const ShardDigest&, const ShardDigest&) = default;
};

struct RankDigest {
  std::uint32_t rank = 0;
  Sha256 digest{};  // side_digest() of the rank
  friend bool operator==(const RankDigest&, const RankDigest&) = default;
};

inline constexpr std::uint16_t kPointFormat = 1;

// Equal for every publisher of the same step of the same lineage; two that differ are a PUBLISH_CONFLICT.
struct PointCanonical {
  std::uint16_t format = kPointFormat;
  JobId job{};
  std::string job_name;
  LineageId lineage = 0;
  LineageId parent_lineage = 0;
  StepNumber parent_step = 0;
  Sha256 parent_record{};
  StepNumber step = 0;
  Sha256 state_root{};
  std::vector<ShardDigest> shards;  // 0, 1, 2, ...
  std::vector<RankDigest> ranks;    // 0..world-1
  Sha256 schema_id{};
  LayoutId layout_id{};                   // the layout of step + 1; zero when not known
  std::vector<std::uint8_t> layout_json;  // its body; empty when not known
  Sha256 step_message{};                  // SHA-256 of rank 0's step message JSON; zero at the baseline
  Verdict verdict = Verdict::kApplied;
  std::uint32_t world = 0;
  std::string recipe_id;
  std::string optimizer_class;
  std::string qualified_by = "baseline";
  friend bool operator==(const PointCanonical&, const PointCanonical&) = default;
};

struct StepObject {
  StepNumber step = 0;
  ObjectRef object;
  friend bool operator==(const StepObject&, const StepObject&) = default;
};

struct ShardObjects {
  ShardId shard = 0;
  StepNumber base_step = 0;
  ObjectRef base;                // full version at base_step
  std::vector<StepObject> logs;  // base_step + 1 .. step
  friend bool operator==(const ShardObjects&, const ShardObjects&) = default;
};

struct PointRecord {
  PointCanonical canonical;
  std::vector<ShardObjects> shards;  // the same shards as in the canonical part
  std::vector<StepObject> steps;     // lowest base_step + 1 .. step
  ObjectRef side;
  ObjectRef meta;
  StepNumber previous_step = 0;
  Sha256 previous_record{};  // SHA-256 of the previous point's record as stored; zero: none
  std::string publisher;
  std::uint64_t created_wall_ms = 0;
  StepNumber training = 0;  // the four numbers when the record was made
  StepNumber verified = 0;
  StepNumber durable = 0;
  StepNumber published = 0;
  std::string software;
  friend bool operator==(const PointRecord&, const PointRecord&) = default;
};

struct SideBlob {
  std::string name;
  std::vector<std::uint8_t> bytes;
  friend bool operator==(const SideBlob&, const SideBlob&) = default;
};

struct SideRank {
  std::uint32_t rank = 0;
  std::vector<std::uint8_t> message;  // the rank's step message as received; empty at the baseline
  std::vector<SideBlob> blobs;        // ascending names
  friend bool operator==(const SideRank&, const SideRank&) = default;
};

// Payload of the side-state object of a step.
struct SideState {
  LineageId lineage = 0;
  StepNumber step = 0;
  std::vector<SideRank> ranks;  // ascending
  friend bool operator==(const SideState&, const SideState&) = default;
};

inline constexpr std::size_t kPointRecordBytesMax = std::size_t{1} << 20;
inline constexpr std::size_t kClaimBytesMax = std::size_t{64} << 10;
inline constexpr std::size_t kSideStateBytesMax = std::size_t{256} << 20;

// LIMIT_REACHED beyond the limits above. The arguments must be possible in themselves: what decode refuses is made.
[[nodiscard]] Result<std::vector<std::uint8_t>> encode(const LineageClaim& claim);
[[nodiscard]] Result<std::vector<std::uint8_t>> encode(const PointRecord& record);
[[nodiscard]] Result<std::vector<std::uint8_t>> encode(const SideState& side);

[[nodiscard]] Result<LineageClaim> decode_claim(ByteSpan bytes);
[[nodiscard]] Result<PointRecord> decode_point(ByteSpan bytes);
[[nodiscard]] Result<SideState> decode_side_state(ByteSpan bytes);

// SHA-256 over "gradtap side state 1", rank, message and blobs, each with its length (docs/formats.md): independent of
// how the object is encoded.
[[nodiscard]] Sha256 side_digest(const SideRank& rank);

}  // namespace gradtap::schema
