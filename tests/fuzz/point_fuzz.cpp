// What is read from the object store is hostile: keys, point records, claims, side state, epochs, object headers, part
// tables, whole objects in pieces.
#include <algorithm>
#include <cstddef>
#include <cstdint>
#include <cstdlib>
#include <string>

#include "schema/epoch_codec.h"
#include "schema/point_codec.h"
#include "storage/file_ops.h"
#include "storage/object_format.h"
#include "storage/point_record.h"

using namespace gradtap;

namespace {

void require(bool holds) {
  if (!holds) std::abort();
}

// What was accepted must survive a round trip unchanged.
template <class Decode>
void round_trip(ByteSpan bytes, Decode decode) {
  const auto record = decode(bytes);
  if (!record) {
    require(!record.error().what.empty());
    return;
  }
  const auto written = schema::encode(*record);
  if (!written) {
    require(written.error().code == ErrorCode::kLimitReached);
    return;
  }
  const auto again = decode(ByteSpan(*written));
  require(again.has_value() && *again == *record);
}

}  // namespace

extern "C" int LLVMFuzzerTestOneInput(const std::uint8_t* data, std::size_t size) {
  if (size < 2) return 0;
  const ByteSpan bytes(data + 2, size - 2);
  const std::string text(bytes.begin(), bytes.end());
  switch (data[0] % 11) {
    case 0:
      round_trip(schema::seal(schema::RecordType::kPoint, bytes), schema::decode_point);
      break;
    case 1:
      round_trip(schema::seal(schema::RecordType::kLineageClaim, bytes), schema::decode_claim);
      break;
    case 2:
      round_trip(schema::seal(schema::RecordType::kSideState, bytes), schema::decode_side_state);
      break;
    case 3:
      round_trip(bytes, schema::decode_point);
      break;
    case 4:
      if (const auto header = storage::parse_object_header(bytes)) {
        require(header->object_bytes() >= storage::kObjectHeaderBytes + header->stored_bytes);
        require(storage::parse_object_header(storage::encode(*header)).value() == *header);
      }
      break;
    case 5:
      if (const auto parts = storage::parse_parts(bytes)) {
        std::uint64_t total = 0;
        for (const storage::Part& part : *parts) total += part.bytes.size();
        require(total <= bytes.size());
      }
      break;
    case 6:
      if (const auto key = storage::parse_key(text)) require(storage::build_key(*key) == text);
      break;
    case 7:
      (void)storage::parse_faults(text);
      break;
    case 8:
      if (const auto record = schema::decode_point(schema::seal(schema::RecordType::kPoint, bytes)))
        (void)storage::check_point_names(*record, storage::point_key(record->canonical.job_name, 1, 1));
      break;
    case 9:
      round_trip(schema::seal(schema::RecordType::kEpoch, bytes), schema::decode_epoch);
      break;
    default: {
      schema::ObjectRef ref{storage::log_key("a", 1, 2, 3, "u"), bytes.size(), sha256(bytes)};
      if (data[1] % 2 == 0) ref.sha256[0] ^= 1;
      storage::ObjectCheck check(ref);
      const std::size_t piece = 1 + data[1];
      for (ByteSpan rest = bytes; !rest.empty(); rest = rest.subspan(std::min(piece, rest.size())))
        check.add(rest.first(std::min(piece, rest.size())));
      require(data[1] % 2 != 0 || !check.finish().empty());
    }
  }
  return 0;
}
