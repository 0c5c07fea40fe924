#include "actors/http_answer.h"

#include <nlohmann/json.hpp>

namespace gradtap::actors {

namespace {
int status_of(ErrorCode code) {
  switch (code) {
    case ErrorCode::kRequestTooLarge:
      return 413;
    case ErrorCode::kRequestMalformed:
      return 400;
    case ErrorCode::kUnauthorized:
      return 401;
    case ErrorCode::kForbidden:
      return 403;
    case ErrorCode::kJobUnknown:
    case ErrorCode::kStepUnavailable:
    case ErrorCode::kObjectMissing:
    case ErrorCode::kPointNone:
      return 404;
    case ErrorCode::kSessionUnknown:
    case ErrorCode::kLineageSuperseded:
    case ErrorCode::kSequenceConflict:
      return 409;
    case ErrorCode::kNodeBusy:
    case ErrorCode::kMemoryExhausted:
    case ErrorCode::kTimeout:
    case ErrorCode::kStoreFull:
    case ErrorCode::kStoreWrite:
    case ErrorCode::kStoreRead:
    case ErrorCode::kObjectStore:
      return 503;
    default:
      return 422;
  }
}
}  // namespace

HttpAnswer http_error(const Error& error, int status) {
  const nlohmann::json body = {{"error",
                                {{"code", static_cast<unsigned>(error.code)},
                                 {"name", error_name(error.code)},
                                 {"what", error.what},
                                 {"where", error.where},
                                 {"expected", error.expected},
                                 {"actual", error.actual},
                                 {"remedy", error.remedy}}}};
  // Text from outside may not be UTF-8: replace instead of throwing.
  return {status != 0 ? status : status_of(error.code),
          body.dump(-1, ' ', false, nlohmann::json::error_handler_t::replace), "application/json"};
}

}  // namespace gradtap::actors
