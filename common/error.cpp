#include "common/error.h"

#include <fmt/format.h>

namespace gradtap {

std::string_view error_name(ErrorCode code) {
  switch (code) {
    case ErrorCode::kConfigSyntax:
      return "CONFIG_SYNTAX";
    case ErrorCode::kConfigUnknownKey:
      return "CONFIG_UNKNOWN_KEY";
    case ErrorCode::kConfigWrongType:
      return "CONFIG_WRONG_TYPE";
    case ErrorCode::kConfigImpossibleValue:
      return "CONFIG_IMPOSSIBLE_VALUE";
    case ErrorCode::kConfigMissingKey:
      return "CONFIG_MISSING_KEY";
    case ErrorCode::kFileUnreadable:
      return "FILE_UNREADABLE";
    case ErrorCode::kFileUnwritable:
      return "FILE_UNWRITABLE";
    case ErrorCode::kOutOfRange:
      return "OUT_OF_RANGE";
    case ErrorCode::kBadNumber:
      return "BAD_NUMBER";
    case ErrorCode::kBadText:
      return "BAD_TEXT";
    case ErrorCode::kLimitReached:
      return "LIMIT_REACHED";
    case ErrorCode::kPortOpen:
      return "PORT_OPEN";
    case ErrorCode::kPortFrameTooLarge:
      return "PORT_FRAME_TOO_LARGE";
    case ErrorCode::kPortUnsupported:
      return "PORT_UNSUPPORTED";
    case ErrorCode::kCaptureMalformed:
      return "CAPTURE_MALFORMED";
    case ErrorCode::kCaptureEndsEarly:
      return "CAPTURE_ENDS_EARLY";
    case ErrorCode::kScheduleImpossible:
      return "SCHEDULE_IMPOSSIBLE";
    case ErrorCode::kSegmentRejected:
      return "SEGMENT_REJECTED";
    case ErrorCode::kUnknownEndpoint:
      return "UNKNOWN_ENDPOINT";
    case ErrorCode::kOpUnknown:
      return "OP_UNKNOWN";
    case ErrorCode::kOpIncomplete:
      return "OP_INCOMPLETE";
    case ErrorCode::kOpConflict:
      return "OP_CONFLICT";
    case ErrorCode::kOpSizeMismatch:
      return "OP_SIZE_MISMATCH";
    case ErrorCode::kOpAlreadyBound:
      return "OP_ALREADY_BOUND";
    case ErrorCode::kSchemaInvalid:
      return "SCHEMA_INVALID";
    case ErrorCode::kLayoutInvalid:
      return "LAYOUT_INVALID";
    case ErrorCode::kRecipeUnsupported:
      return "RECIPE_UNSUPPORTED";
    case ErrorCode::kRecipeNoMatch:
      return "RECIPE_NO_MATCH";
    case ErrorCode::kRecipeAmbiguous:
      return "RECIPE_AMBIGUOUS";
    case ErrorCode::kTransformInvalid:
      return "TRANSFORM_INVALID";
    case ErrorCode::kStepOutOfOrder:
      return "STEP_OUT_OF_ORDER";
    case ErrorCode::kGradientIncomplete:
      return "GRADIENT_INCOMPLETE";
    case ErrorCode::kStateIncomplete:
      return "STATE_INCOMPLETE";
    case ErrorCode::kDigestMismatch:
      return "DIGEST_MISMATCH";
    case ErrorCode::kSafetensorsMalformed:
      return "SAFETENSORS_MALFORMED";
    case ErrorCode::kGradientUnwired:
      return "GRADIENT_UNWIRED";
    case ErrorCode::kStoreOpen:
      return "STORE_OPEN";
    case ErrorCode::kStoreWrite:
      return "STORE_WRITE";
    case ErrorCode::kStoreRead:
      return "STORE_READ";
    case ErrorCode::kStoreCorrupt:
      return "STORE_CORRUPT";
    case ErrorCode::kStoreMissingChunk:
      return "STORE_MISSING_CHUNK";
    case ErrorCode::kStoreFormat:
      return "STORE_FORMAT";
    case ErrorCode::kStoreFull:
      return "STORE_FULL";
    case ErrorCode::kStoreLocked:
      return "STORE_LOCKED";
    case ErrorCode::kObjectMissing:
      return "OBJECT_MISSING";
    case ErrorCode::kObjectConflict:
      return "OBJECT_CONFLICT";
    case ErrorCode::kObjectStore:
      return "OBJECT_STORE";
    case ErrorCode::kObjectCorrupt:
      return "OBJECT_CORRUPT";
    case ErrorCode::kObjectForeign:
      return "OBJECT_FOREIGN";
    case ErrorCode::kPointNone:
      return "POINT_NONE";
    case ErrorCode::kSideStateMissing:
      return "SIDE_STATE_MISSING";
    case ErrorCode::kStoreNotShared:
      return "STORE_NOT_SHARED";
    case ErrorCode::kRequestMalformed:
      return "REQUEST_MALFORMED";
    case ErrorCode::kRequestTooLarge:
      return "REQUEST_TOO_LARGE";
    case ErrorCode::kSessionUnknown:
      return "SESSION_UNKNOWN";
    case ErrorCode::kLineageSuperseded:
      return "LINEAGE_SUPERSEDED";
    case ErrorCode::kSequenceConflict:
      return "SEQUENCE_CONFLICT";
    case ErrorCode::kAttachRefused:
      return "ATTACH_REFUSED";
    case ErrorCode::kJobUnknown:
      return "JOB_UNKNOWN";
    case ErrorCode::kStepUnavailable:
      return "STEP_UNAVAILABLE";
    case ErrorCode::kNodeBusy:
      return "NODE_BUSY";
    case ErrorCode::kPeerUnreachable:
      return "PEER_UNREACHABLE";
    case ErrorCode::kTimeout:
      return "TIMEOUT";
    case ErrorCode::kUnsupported:
      return "UNSUPPORTED";
    case ErrorCode::kCapacityExceeded:
      return "CAPACITY_EXCEEDED";
    case ErrorCode::kMemoryExhausted:
      return "MEMORY_EXHAUSTED";
    case ErrorCode::kPeerMalformed:
      return "PEER_MALFORMED";
    case ErrorCode::kPeerRefused:
      return "PEER_REFUSED";
    case ErrorCode::kPeerUntrusted:
      return "PEER_UNTRUSTED";
    case ErrorCode::kCertificate:
      return "CERTIFICATE";
    case ErrorCode::kNotAMember:
      return "NOT_A_MEMBER";
    case ErrorCode::kMemberUnknown:
      return "MEMBER_UNKNOWN";
    case ErrorCode::kMemberConflict:
      return "MEMBER_CONFLICT";
    case ErrorCode::kMemberUnsafe:
      return "MEMBER_UNSAFE";
    case ErrorCode::kUnauthorized:
      return "UNAUTHORIZED";
    case ErrorCode::kForbidden:
      return "FORBIDDEN";
  }
  return "UNKNOWN_CODE";
}

std::string Error::text() const {
  std::string line = fmt::format("E{} {}: {}", static_cast<unsigned>(code), error_name(code), what);
  if (!where.empty()) line += fmt::format(" at {}", where);
  if (!expected.empty()) line += fmt::format("; expected {}", expected);
  if (!actual.empty()) line += fmt::format("; found {}", actual);
  if (!remedy.empty()) line += fmt::format("; remedy: {}", remedy);
  return line;
}

}  // namespace gradtap
