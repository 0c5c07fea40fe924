#include "common/gap_reason.h"

namespace gradtap {

std::string_view gap_reason_name(GapReason reason) {
  switch (reason) {
    case GapReason::kNone:
      return "NONE";
    case GapReason::kBaselinePending:
      return "BASELINE_PENDING";
    case GapReason::kInFlight:
      return "IN_FLIGHT";
    case GapReason::kScalarsMissing:
      return "SCALARS_MISSING";
    case GapReason::kLayoutUnknown:
      return "LAYOUT_UNKNOWN";
    case GapReason::kAnchorLost:
      return "ANCHOR_LOST";
    case GapReason::kCoverageHole:
      return "COVERAGE_HOLE";
    case GapReason::kLostDefinitive:
      return "LOST_DEFINITIVE";
    case GapReason::kConflict:
      return "CONFLICT";
    case GapReason::kWitnessMismatch:
      return "WITNESS_MISMATCH";
    case GapReason::kUnwired:
      return "UNWIRED";
    case GapReason::kOpAmbiguous:
      return "OP_AMBIGUOUS";
    case GapReason::kUnsupported:
      return "UNSUPPORTED";
    case GapReason::kOverloadShed:
      return "OVERLOAD_SHED";
    case GapReason::kTapDown:
      return "TAP_DOWN";
    case GapReason::kOwnerDown:
      return "OWNER_DOWN";
    case GapReason::kApplyLag:
      return "APPLY_LAG";
    case GapReason::kTrainerSilent:
      return "TRAINER_SILENT";
    case GapReason::kClientDisabled:
      return "CLIENT_DISABLED";
    case GapReason::kFlushLag:
      return "FLUSH_LAG";
    case GapReason::kLogOff:
      return "LOG_OFF";
    case GapReason::kStorageFull:
      return "STORAGE_FULL";
    case GapReason::kStorageError:
      return "STORAGE_ERROR";
    case GapReason::kReplicaShort:
      return "REPLICA_SHORT";
    case GapReason::kSideStateMissing:
      return "SIDE_STATE_MISSING";
    case GapReason::kUnknownState:
      return "UNKNOWN_STATE";
    case GapReason::kDiverged:
      return "DIVERGED";
    case GapReason::kPublishInterval:
      return "PUBLISH_INTERVAL";
    case GapReason::kUploadLag:
      return "UPLOAD_LAG";
    case GapReason::kObjectStoreError:
      return "OBJECT_STORE_ERROR";
    case GapReason::kPublishConflict:
      return "PUBLISH_CONFLICT";
  }
  return "UNKNOWN_REASON";
}

GapStage gap_reason_stage(GapReason reason) {
  const auto number = static_cast<unsigned>(reason);
  if (number <= 20) return GapStage::kVerify;
  if (number <= 25) return GapStage::kDurable;
  return GapStage::kPublish;
}

}  // namespace gradtap
