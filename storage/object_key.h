// Keys of the object store (PROTOCOLS 6.4, docs/formats.md): built and parsed in one place.
//
// J is the job's name with every byte outside A-Z a-z 0-9 _ - . (and a leading dot) as %HH; L and steps are 20 decimal
// digits, so that text order is number order; a shard has 5 digits at least; a uid is 1 to 64 of a-z 0-9.
//   cluster/store-id                      the store's nonce
//   cluster/seen/NODE-uid                 a node was here (store_identity.h)
//   cluster/epoch/n                       epoch record, n = 1, 2, 3, ...; 20 digits
//   jobs/J/lineage/n                      lineage claim
//   jobs/J/L/shard/NNNNN/full/SSS-uid     full version of a shard
//   jobs/J/L/shard/NNNNN/log/SSS-uid      gradient record of a shard
//   jobs/J/L/step/SSS-uid                 rank 0's step message
//   jobs/J/L/side/SSS-uid                 side state of all ranks
//   jobs/J/L/meta/uid                     lineage record
//   jobs/J/L/point/SSS                    recovery point record
//   jobs/J/L/lease/SSS-uid-k              a restore holds the point; k counts renewals
// Plain values and functions, any thread. parse_key() accepts exactly what build_key() writes: one name, one key.
#pragma once

#include <cstdint>
#include <optional>
#include <string>
#include <string_view>

#include "common/ids.h"
#include "common/random.h"

namespace gradtap::storage {

enum class KeyKind : std::uint8_t {
  kStoreId,
  kSeen,
  kLineage,
  kFull,
  kLog,
  kStep,
  kSide,
  kMeta,
  kPoint,
  kLease,
  kEpoch,
};

// Fields without a meaning for the kind are zero or empty.
struct ObjectKey {
  KeyKind kind = KeyKind::kStoreId;
  std::string job;  // the job's name; kSeen: the node's name
  LineageId lineage = 0;
  ShardId shard = 0;
  StepNumber step = 0;
  std::string uid;
  std::uint64_t counter = 0;  // kLease; kEpoch: its number
  friend bool operator==(const ObjectKey&, const ObjectKey&) = default;
};

[[nodiscard]] std::string build_key(const ObjectKey& key);
[[nodiscard]] std::optional<ObjectKey> parse_key(std::string_view key);

[[nodiscard]] std::string lineage_claim_key(std::string_view job, LineageId lineage);
[[nodiscard]] std::string full_key(std::string_view job, LineageId lineage, ShardId shard, StepNumber step,
                                   std::string_view uid);
[[nodiscard]] std::string log_key(std::string_view job, LineageId lineage, ShardId shard, StepNumber step,
                                  std::string_view uid);
[[nodiscard]] std::string step_key(std::string_view job, LineageId lineage, StepNumber step, std::string_view uid);
[[nodiscard]] std::string side_state_key(std::string_view job, LineageId lineage, StepNumber step,
                                         std::string_view uid);
[[nodiscard]] std::string meta_key(std::string_view job, LineageId lineage, std::string_view uid);
[[nodiscard]] std::string point_key(std::string_view job, LineageId lineage, StepNumber step);
[[nodiscard]] std::string epoch_key(std::uint64_t number);

// Prefixes to list, each with its closing '/'.
[[nodiscard]] std::string epochs_prefix();                                                  // cluster/epoch/
[[nodiscard]] std::string job_prefix(std::string_view job);                                 // jobs/J/
[[nodiscard]] std::string lineage_claims_prefix(std::string_view job);                      // jobs/J/lineage/
[[nodiscard]] std::string lineage_objects_prefix(std::string_view job, LineageId lineage);  // jobs/J/L/
[[nodiscard]] std::string points_prefix(std::string_view job, LineageId lineage);           // jobs/J/L/point/
[[nodiscard]] std::string leases_prefix(std::string_view job, LineageId lineage);           // jobs/J/L/lease/

// The job's name as a key segment, and back; nullopt when `segment` is not what a name becomes.
[[nodiscard]] std::string job_segment(std::string_view job);
[[nodiscard]] std::optional<std::string> job_of_segment(std::string_view segment);

// 32 hexadecimal digits: unique without asking anybody.
[[nodiscard]] std::string new_uid(Random& random);

// What a store accepts at all as a key: segments of A-Z a-z 0-9 _ - . %, none empty, none beginning with a dot, at most
// 1024 bytes. Keeps hostile keys inside the store.
[[nodiscard]] bool is_plain_key(std::string_view key);

}  // namespace gradtap::storage
