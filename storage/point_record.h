// Reading and creating the parts of a recovery point: data objects by reference, and the record that is written last.
//
// Purpose: put_object() uploads and reads back what a record may name; read_object() gives only verified bytes;
// create_point() is the moment of publication. Ownership: the store is the caller's. Threads: any (blocking).
// Invariants: what read_object() and read_point() return has passed every digest. Failure: named errors with the key;
// OBJECT_CONFLICT from create_point() is a PUBLISH_CONFLICT: two publishers disagree about a step.
#pragma once

#include <cstdint>
#include <functional>
#include <string>
#include <string_view>
#include <vector>

#include "schema/point_codec.h"
#include "storage/object_format.h"
#include "storage/object_store.h"

namespace gradtap::storage {

// Uploads a data object whose identity is that of its key, then reads length and header back.
[[nodiscard]] Result<schema::ObjectRef> put_object(ObjectStore& store, const std::string& key,
                                                   std::vector<ByteSpan> payload);
// The object is there, with the length of the reference and a header that fits its key. Reads 96 bytes.
[[nodiscard]] Status check_object(const ObjectStore& store, const schema::ObjectRef& ref);

class LoadedObject {
 public:
  explicit LoadedObject(LargeBuffer bytes, std::uint64_t payload_bytes)
      : bytes_(std::move(bytes)), payload_bytes_(payload_bytes) {}
  [[nodiscard]] ByteSpan payload() const {
    return ByteSpan(bytes_.bytes()).subspan(kObjectHeaderBytes, payload_bytes_);
  }

 private:
  LargeBuffer bytes_;
  std::uint64_t payload_bytes_;
};
// The whole object, every digest checked; LIMIT_REACHED when the reference is longer than bytes_max.
[[nodiscard]] Result<LoadedObject> read_object(const ObjectStore& store, const schema::ObjectRef& ref,
                                               std::uint64_t bytes_max);

// Everything that a record references, each with the key kind, shard and step that it must have.
struct PointObject {
  const schema::ObjectRef* ref = nullptr;
  KeyKind kind = KeyKind::kFull;
  ShardId shard = 0;
  StepNumber step = 0;
};
[[nodiscard]] std::vector<PointObject> objects_of(const schema::PointRecord& record);

// The record is the one that `key` (a point key) names, and it references objects of its own lineage, each of the right
// shard and step: OBJECT_FOREIGN otherwise.
[[nodiscard]] Status check_point_names(const schema::PointRecord& record, std::string_view key);

struct StoredPoint {
  schema::PointRecord record;
  Sha256 digest{};  // SHA-256 of the record as stored
  std::uint64_t bytes = 0;
};
// Reads, decodes and checks names; errors carry the key.
[[nodiscard]] Result<StoredPoint> read_point(const ObjectStore& store, std::string_view job, LineageId lineage,
                                             StepNumber step);

enum class PointOutcome : std::uint8_t {
  kCreated,  // this record is the point
  kExisted,  // it was there, ours by an earlier try or a twin's, with an equal canonical part: success as well
};
struct CreatedPoint {
  PointOutcome outcome = PointOutcome::kCreated;
  StoredPoint point;  // as the store holds it: what to announce
};
[[nodiscard]] Result<CreatedPoint> create_point(ObjectStore& store, const schema::PointRecord& record);

}  // namespace gradtap::storage
