// GapReason: why the published step is behind the training step. A closed list (numbers of PROTOCOLS 4.6); every
// reason has a page in docs/operations.md with symptom, meaning and what to do.
#pragma once

#include <cstdint>
#include <string>
#include <string_view>

namespace gradtap {

enum class GapReason : std::uint8_t {
  kNone = 0,
  kBaselinePending = 1,
  kInFlight = 2,
  kScalarsMissing = 3,
  kLayoutUnknown = 4,
  kAnchorLost = 5,
  kCoverageHole = 6,
  kLostDefinitive = 7,
  kConflict = 8,
  kWitnessMismatch = 9,
  kUnwired = 10,
  kOpAmbiguous = 11,
  kUnsupported = 12,
  kOverloadShed = 15,
  kTapDown = 16,
  kOwnerDown = 17,
  kApplyLag = 18,
  kTrainerSilent = 19,
  kClientDisabled = 20,
  kFlushLag = 21,
  kLogOff = 22,
  kStorageFull = 23,
  kStorageError = 24,
  kReplicaShort = 25,
  kSideStateMissing = 26,
  kUnknownState = 27,
  kDiverged = 29,
  kPublishInterval = 31,
  kUploadLag = 32,
  kObjectStoreError = 33,
  kPublishConflict = 34,
};

enum class GapStage : std::uint8_t { kVerify, kDurable, kPublish };  // which pair of numbers the reason keeps apart

[[nodiscard]] std::string_view gap_reason_name(GapReason reason);  // "LOST_DEFINITIVE"
[[nodiscard]] GapStage gap_reason_stage(GapReason reason);

// One line of a status report.
struct Gap {
  GapReason reason = GapReason::kNone;
  std::uint64_t since_step = 0;
  std::string evidence;  // ranges, flows, sizes: enough to act on
  std::string action;    // what is being done about it
};

}  // namespace gradtap
