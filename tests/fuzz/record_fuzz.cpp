// Everything that the store reads back is hostile: keys, chunk headers, digest entries, envelopes and records.
#include <cstddef>
#include <cstdint>
#include <cstdlib>
#include <string>

#include "schema/record_codec.h"
#include "storage/key.h"
#include "storage/value_format.h"

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
  const auto again = decode(ByteSpan(schema::encode(*record)));
  require(again.has_value() && *again == *record);
}

}  // namespace

extern "C" int LLVMFuzzerTestOneInput(const std::uint8_t* data, std::size_t size) {
  if (size == 0) return 0;
  const ByteSpan bytes(data + 1, size - 1);
  switch (data[0] % 8) {
    case 0:
      if (const auto key = storage::parse_chunk_key(bytes)) require(storage::encode(*key).size() == bytes.size());
      break;
    case 1:
      if (const auto header = storage::parse_chunk_header(bytes)) {
        require(header->offset + header->plain_bytes <= header->total);
        require(storage::kChunkHeaderBytes + header->stored_bytes == bytes.size());
      }
      break;
    case 2:
      if (const auto entry = storage::parse_digest_entry(bytes)) {
        require(storage::kDigestHeaderBytes + entry->digests.size() * 8 == bytes.size());
        const std::string again = storage::encode(*entry);
        require(storage::parse_digest_entry({reinterpret_cast<const std::uint8_t*>(again.data()), again.size()})
                    .has_value());
      }
      break;
    // Sealed here, so that the checksum does not hide the message from the fuzzer.
    case 3:
      round_trip(schema::seal(schema::RecordType::kLineage, bytes), schema::decode_lineage);
      break;
    case 4:
      round_trip(schema::seal(schema::RecordType::kStep, bytes), schema::decode_step);
      break;
    case 5:
      round_trip(schema::seal(schema::RecordType::kMark, bytes), schema::decode_mark);
      break;
    case 6:
      (void)schema::unseal(schema::RecordType::kRaw, bytes);
      break;
    default:
      round_trip(bytes, schema::decode_mark);
  }
  return 0;
}
