// Error: the one error type of the project.
//
// Purpose: every fallible function returns Result<T>; an Error says what failed, where, what was expected, what was
// found and what to do about it. Codes are numbered, stable, and documented in docs/errors.md (a test compares them).
// Ownership and threads: plain values. Failure behaviour: none; exceptions stay inside library boundaries.
#pragma once

#include <cstdint>
#include <expected>
#include <string>
#include <string_view>
#include <utility>

namespace gradtap {

// Numbered by floor: 1xx common, 2xx dataplane, 3xx replica, 4xx storage, 5xx actors and side channel.
// A number is never reused.
enum class ErrorCode : std::uint16_t {
  // common
  kConfigSyntax = 100,
  kConfigUnknownKey = 101,
  kConfigWrongType = 102,
  kConfigImpossibleValue = 103,
  kConfigMissingKey = 104,
  kFileUnreadable = 105,
  kFileUnwritable = 106,
  kOutOfRange = 107,
  kBadNumber = 108,
  kBadText = 109,
  kLimitReached = 110,
  // dataplane
  kPortOpen = 200,
  kPortFrameTooLarge = 201,
  kPortUnsupported = 202,
  kCaptureMalformed = 203,
  kCaptureEndsEarly = 204,
  kScheduleImpossible = 205,
  kSegmentRejected = 206,
  kUnknownEndpoint = 207,
  kOpUnknown = 220,
  kOpIncomplete = 221,
  kOpConflict = 222,
  kOpSizeMismatch = 223,
  kOpAlreadyBound = 224,
  // replica
  kSchemaInvalid = 300,
  kLayoutInvalid = 301,
  kRecipeUnsupported = 302,
  kRecipeNoMatch = 303,
  kRecipeAmbiguous = 304,
  kTransformInvalid = 305,
  kStepOutOfOrder = 306,
  kGradientIncomplete = 307,
  kStateIncomplete = 308,
  kDigestMismatch = 309,
  kSafetensorsMalformed = 310,
  kGradientUnwired = 311,
  // storage
  kStoreOpen = 400,
  kStoreWrite = 401,
  kStoreRead = 402,
  kStoreCorrupt = 403,
  kStoreMissingChunk = 404,
  kStoreFormat = 405,
  kStoreFull = 406,
  kStoreLocked = 407,
  kObjectMissing = 420,
  kObjectConflict = 421,
  kObjectStore = 422,
  kObjectCorrupt = 423,
  kObjectForeign = 424,
  kPointNone = 425,
  kSideStateMissing = 428,
  kStoreNotShared = 426,
  // actors and side channel
  kRequestMalformed = 500,
  kRequestTooLarge = 501,
  kSessionUnknown = 502,
  kLineageSuperseded = 503,
  kSequenceConflict = 504,
  kAttachRefused = 505,
  kJobUnknown = 506,
  kStepUnavailable = 507,
  kNodeBusy = 508,
  kPeerUnreachable = 509,
  kTimeout = 510,
  kUnsupported = 511,
  kCapacityExceeded = 512,
  kMemoryExhausted = 513,
  // node link
  kPeerMalformed = 520,
  kPeerRefused = 521,
  kPeerUntrusted = 522,
  kCertificate = 523,
  // members
  kNotAMember = 530,
  kMemberUnknown = 531,
  kMemberConflict = 532,
  kMemberUnsafe = 533,
  // who may ask
  kUnauthorized = 540,
  kForbidden = 541,
};

struct Error {
  ErrorCode code{};
  std::string what;      // the failed thing, one sentence
  std::string where;     // file:line:key, flow, shard, tensor
  std::string expected;  // may be empty
  std::string actual;    // may be empty
  std::string remedy;    // what the reader can do

  // "E203 capture is malformed at a.pcap:24: expected ..., found ...; remedy: ..."
  [[nodiscard]] std::string text() const;
};

template <class T>
using Result = std::expected<T, Error>;
using Status = std::expected<void, Error>;

[[nodiscard]] std::string_view error_name(ErrorCode code);

[[nodiscard]] inline std::unexpected<Error> fail(ErrorCode code, std::string what, std::string where = {},
                                                 std::string expected = {}, std::string actual = {},
                                                 std::string remedy = {}) {
  return std::unexpected<Error>(
      Error{code, std::move(what), std::move(where), std::move(expected), std::move(actual), std::move(remedy)});
}

}  // namespace gradtap

// Propagates the error of EXPR to the caller; EXPR is a Result or a Status.
#define GRADTAP_TRY(expr)                                                   \
  do {                                                                      \
    if (auto gradtap_try_status = (expr); !gradtap_try_status)              \
      return std::unexpected<::gradtap::Error>(gradtap_try_status.error()); \
  } while (false)

// Declares NAME as a reference to the value of EXPR (a Result), or returns its error.
// NOLINTBEGIN(bugprone-macro-parentheses): a declared name takes none.
#define GRADTAP_LET(name, expr)                                                        \
  auto name##_result = (expr);                                                         \
  if (!name##_result) return std::unexpected<::gradtap::Error>(name##_result.error()); \
  auto& name = *name##_result
// NOLINTEND(bugprone-macro-parentheses)
