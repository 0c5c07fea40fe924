// Envelope: 24 bytes before every record and every side value, so that a reader knows what it holds and that it is
// whole.
//
// Plain functions, any thread. seal() never fails; unseal() treats its input as hostile: another magic, a newer format,
// a length that does not fit or a checksum that differs is an error. Layout: docs/formats.md.
#pragma once

#include <cstddef>
#include <cstdint>
#include <vector>

#include "common/bytes.h"
#include "common/error.h"
#include "common/ids.h"

namespace gradtap::schema {

enum class RecordType : std::uint16_t {
  kRaw = 0,
  kLineage = 1,
  kStep = 2,
  kMark = 3,
  kLineageClaim = 4,
  kPoint = 5,
  kSideState = 6,
  kEpoch = 7,
};

inline constexpr std::uint16_t kRecordFormat = 1;  // the newest format this build reads and writes
inline constexpr std::size_t kEnvelopeBytes = 24;

[[nodiscard]] std::vector<std::uint8_t> seal(RecordType type, ByteSpan payload);

// The payload inside `bytes` (a view, not a copy).
[[nodiscard]] Result<ByteSpan> unseal(RecordType type, ByteSpan bytes);

}  // namespace gradtap::schema
