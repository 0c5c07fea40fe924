// The format of every data object of the object store (docs/formats.md, Object store): header, payload, chunk digests.
//
// Purpose: an object says what it is (job, lineage, shard, step, kind), so that a copied or renamed file is seen, and
// where it is damaged: each chunk of the payload has a digest of its own after the payload, and the header one of
// those digests. The SHA-256 of the whole lies apart, in the point record. Ownership: values. Threads: any; an
// ObjectCheck belongs to one. Failure: bytes are hostile; parsing answers an error or findings, never crashes.
#pragma once

#include <array>
#include <cstdint>
#include <string>
#include <vector>

#include "common/bytes.h"
#include "common/error.h"
#include "common/ids.h"
#include "common/sha256.h"
#include "schema/point_codec.h"
#include "storage/finding.h"
#include "storage/object_key.h"

struct XXH3_state_s;

namespace gradtap::storage {

inline constexpr std::uint16_t kObjectFormat = 1;
inline constexpr std::size_t kObjectHeaderBytes = 96;
inline constexpr std::uint32_t kObjectChunkBytes = std::uint32_t{1} << 20;  // as written
inline constexpr std::uint32_t kObjectChunkMin = 4096;                      // as read
inline constexpr std::uint64_t kObjectPayloadMax = std::uint64_t{1} << 40;  // readers refuse more

enum class ObjectKind : std::uint8_t { kFull = 1, kLog = 2, kStep = 3, kSide = 4, kMeta = 5 };

struct ObjectIdentity {
  ObjectKind kind = ObjectKind::kFull;
  JobId job{};
  LineageId lineage = 0;
  ShardId shard = 0;    // kFull, kLog
  StepNumber step = 0;  // not kMeta
  friend bool operator==(const ObjectIdentity&, const ObjectIdentity&) = default;
};
[[nodiscard]] std::string describe(const ObjectIdentity& identity);  // "log of shard 3 step 17 lineage 1 job 5f3a.."
// What the object under this key must be; BAD_TEXT when the key is none of a data object.
[[nodiscard]] Result<ObjectIdentity> identity_of(std::string_view key);

struct ObjectHeader {
  ObjectIdentity identity;
  std::uint8_t codec = 0;       // 0: plain
  std::uint8_t encryption = 0;  // 0: none
  std::uint32_t chunk_bytes = kObjectChunkBytes;
  std::uint64_t plain_bytes = 0;
  std::uint64_t stored_bytes = 0;                   // of the payload as stored
  std::array<std::uint8_t, 16> chunk_table_hash{};  // XXH3-128 of the chunk digests
  friend bool operator==(const ObjectHeader&, const ObjectHeader&) = default;

  [[nodiscard]] std::uint64_t chunks() const;
  [[nodiscard]] std::uint64_t object_bytes() const;  // header, payload and chunk digests
};

[[nodiscard]] std::array<std::uint8_t, kObjectHeaderBytes> encode(const ObjectHeader& header);
// OBJECT_CORRUPT or STORE_FORMAT; `bytes` may be longer than the header.
[[nodiscard]] Result<ObjectHeader> parse_object_header(ByteSpan bytes);

// An object ready to be put: header, the caller's parts (not copied), chunk digests.
struct SealedObject {
  std::array<std::uint8_t, kObjectHeaderBytes> header{};
  std::vector<ByteSpan> payload;
  std::vector<std::uint8_t> chunk_table;
  std::uint64_t bytes = 0;
  Sha256 sha256{};

  [[nodiscard]] std::vector<ByteSpan> parts() const;  // points into this object and the caller's parts
};
[[nodiscard]] SealedObject seal_object(const ObjectIdentity& identity, std::vector<ByteSpan> payload);

// Parts of a full version's payload: one per kind of the shard store (storage/key.h), each kind once.
struct PartSize {
  std::uint8_t kind = 0;
  std::uint64_t bytes = 0;
};
[[nodiscard]] std::vector<std::uint8_t> encode_part_table(const std::vector<PartSize>& parts);
struct Part {
  std::uint8_t kind = 0;
  ByteSpan bytes;
};
[[nodiscard]] Result<std::vector<Part>> parse_parts(ByteSpan payload);  // views into `payload`

// Judges an object that is fed from its first byte to its last, in pieces of any size, against the record's words and
// its own. Memory: 8 bytes per chunk.
class ObjectCheck {
 public:
  explicit ObjectCheck(const schema::ObjectRef& ref);
  ~ObjectCheck();
  ObjectCheck(const ObjectCheck&) = delete;
  ObjectCheck& operator=(const ObjectCheck&) = delete;

  void add(ByteSpan bytes);
  // Empty: the object is exactly the one that the record names, and it is what its key says.
  [[nodiscard]] std::vector<Finding> finish();

 private:
  void add_payload(ByteSpan bytes);
  void close_chunk();
  void locate(std::vector<Finding>& findings, const std::string& expected, const std::string& actual) const;

  const schema::ObjectRef ref_;
  Sha256Stream sha_;
  std::uint64_t seen_ = 0;
  std::vector<std::uint8_t> head_;
  Result<ObjectHeader> header_;
  std::uint64_t payload_left_ = 0;
  std::uint64_t chunk_left_ = 0;
  std::vector<std::uint64_t> chunk_hashes_;
  std::vector<std::uint8_t> table_;
  XXH3_state_s* hash_ = nullptr;
};

}  // namespace gradtap::storage
