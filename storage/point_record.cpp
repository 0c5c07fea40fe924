#include "storage/point_record.h"

#include <fmt/format.h>

namespace gradtap::storage {
namespace {

using schema::ObjectRef;
using schema::PointRecord;

std::unexpected<Error> at(Error error, std::string_view key) {
  error.where = error.where.empty() ? std::string(key) : fmt::format("{}: {}", key, error.where);
  if (error.code == ErrorCode::kStoreCorrupt) error.code = ErrorCode::kObjectCorrupt;
  return std::unexpected<Error>(std::move(error));
}

Result<StoredPoint> decoded_point(std::string_view key, const std::vector<std::uint8_t>& bytes) {
  auto record = schema::decode_point(bytes);
  if (!record) return at(record.error(), key);
  if (const Status names = check_point_names(*record, key); !names) return std::unexpected<Error>(names.error());
  return StoredPoint{std::move(*record), sha256(bytes), bytes.size()};
}

Result<StoredPoint> point_at(const ObjectStore& store, const std::string& key) {
  const auto bytes = store.get(key, schema::kPointRecordBytesMax);
  if (!bytes) return std::unexpected<Error>(bytes.error());
  return decoded_point(key, *bytes);
}

}  // namespace

Result<ObjectRef> put_object(ObjectStore& store, const std::string& key, std::vector<ByteSpan> payload) {
  const auto identity = identity_of(key);
  if (!identity) return std::unexpected<Error>(identity.error());
  const SealedObject object = seal_object(*identity, std::move(payload));
  GRADTAP_TRY(store.put(key, object.parts()));
  ObjectRef ref{key, object.bytes, object.sha256};
  GRADTAP_TRY(check_object(store, ref));
  const auto head = store.read(key, 0, kObjectHeaderBytes);
  if (!head) return std::unexpected<Error>(head.error());
  if (!std::equal(head->begin(), head->end(), object.header.begin(), object.header.end()))
    return fail(ErrorCode::kObjectCorrupt, "object does not read back as it was written", key + " offset 0",
                to_hex(object.header), to_hex(head->data(), head->size()), "check the disk of the object store");
  return ref;
}

Status check_object(const ObjectStore& store, const ObjectRef& ref) {
  const auto identity = identity_of(ref.key);
  if (!identity) return std::unexpected<Error>(identity.error());
  const auto length = store.length(ref.key);
  if (!length) return std::unexpected<Error>(length.error());
  if (*length != ref.bytes)
    return fail(ErrorCode::kObjectCorrupt, "object has another length", ref.key, fmt::format("{} bytes", ref.bytes),
                fmt::format("{} bytes", *length));
  const auto head = store.read(ref.key, 0, kObjectHeaderBytes);
  if (!head) return std::unexpected<Error>(head.error());
  const auto header = parse_object_header(*head);
  if (!header) return at(header.error(), ref.key);
  if (header->identity != *identity)
    return fail(ErrorCode::kObjectForeign, "object is another one than its key says", ref.key, describe(*identity),
                describe(header->identity));
  if (header->object_bytes() != ref.bytes)
    return fail(ErrorCode::kObjectCorrupt, "object does not have the length that its header says", ref.key,
                fmt::format("{} bytes", header->object_bytes()), fmt::format("{} bytes", ref.bytes));
  return {};
}

Result<LoadedObject> read_object(const ObjectStore& store, const ObjectRef& ref, std::uint64_t bytes_max) {
  if (ref.bytes > bytes_max)
    return fail(ErrorCode::kLimitReached, "object is longer than it can be", ref.key,
                fmt::format("at most {} bytes", bytes_max), fmt::format("{} bytes", ref.bytes));
  Sha256Stream sha;
  auto bytes = store.load(ref.key, bytes_max, [&sha](ByteSpan piece) { sha.add(piece.data(), piece.size()); });
  if (!bytes) return std::unexpected<Error>(bytes.error());
  const auto header = parse_object_header(bytes->bytes());
  const auto identity = identity_of(ref.key);
  const bool named = sha.finish() == ref.sha256 && bytes->size() == ref.bytes && header &&
                     header->object_bytes() == ref.bytes && identity && header->identity == *identity;
  if (!named) {
    // Only a damaged object is read again: its own digests say where.
    ObjectCheck check(ref);
    check.add(bytes->bytes());
    if (const auto findings = check.finish(); !findings.empty())
      return std::unexpected<Error>(findings.front().error());
    if (!header) return at(header.error(), ref.key);
  }
  return LoadedObject(std::move(*bytes), header->stored_bytes);
}

std::vector<PointObject> objects_of(const PointRecord& record) {
  std::vector<PointObject> out;
  for (const schema::ShardObjects& shard : record.shards) {
    out.push_back({&shard.base, KeyKind::kFull, shard.shard, shard.base_step});
    for (const schema::StepObject& log : shard.logs) out.push_back({&log.object, KeyKind::kLog, shard.shard, log.step});
  }
  for (const schema::StepObject& step : record.steps) out.push_back({&step.object, KeyKind::kStep, 0, step.step});
  out.push_back({&record.side, KeyKind::kSide, 0, record.canonical.step});
  out.push_back({&record.meta, KeyKind::kMeta, 0, 0});
  return out;
}

Status check_point_names(const PointRecord& record, std::string_view key) {
  const schema::PointCanonical& canonical = record.canonical;
  const std::string own = point_key(canonical.job_name, canonical.lineage, canonical.step);
  if (own != key)
    return fail(ErrorCode::kObjectForeign, "record is the one of another recovery point", std::string(key),
                std::string(key), own);
  for (const PointObject& object : objects_of(record)) {
    const auto parsed = parse_key(object.ref->key);
    if (parsed && parsed->kind == object.kind && parsed->job == canonical.job_name &&
        parsed->lineage == canonical.lineage && parsed->shard == object.shard && parsed->step == object.step)
      continue;
    return fail(ErrorCode::kObjectForeign, "record references an object that cannot be part of the point",
                std::string(key), fmt::format("shard {} step {}", object.shard, object.step),
                object.ref->key.substr(0, 300));
  }
  return {};
}

Result<StoredPoint> read_point(const ObjectStore& store, std::string_view job, LineageId lineage, StepNumber step) {
  return point_at(store, point_key(job, lineage, step));
}

Result<CreatedPoint> create_point(ObjectStore& store, const PointRecord& record) {
  const std::string key = point_key(record.canonical.job_name, record.canonical.lineage, record.canonical.step);
  const auto bytes = schema::encode(record);
  if (!bytes) return at(bytes.error(), key);
  // What no reader would accept must not be created: its name could never be used again.
  auto own = decoded_point(key, *bytes);
  if (!own) return std::unexpected<Error>(own.error());
  const auto created = store.create(key, *bytes);
  if (!created) return std::unexpected<Error>(created.error());
  if (*created == Created::kCreated) return CreatedPoint{PointOutcome::kCreated, std::move(*own)};
  auto found = point_at(store, key);
  if (!found) return std::unexpected<Error>(found.error());
  if (found->record.canonical != record.canonical)
    return fail(ErrorCode::kObjectConflict, "another publisher created this recovery point with another state", key,
                "state root " + to_hex(record.canonical.state_root),
                "state root " + to_hex(found->record.canonical.state_root),
                "nothing more of this lineage is published; compare the two owners' digests");
  return CreatedPoint{PointOutcome::kExisted, std::move(*found)};
}

}  // namespace gradtap::storage
